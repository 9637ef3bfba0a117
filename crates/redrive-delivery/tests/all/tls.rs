//! HTTP over TLS: HTTP/2 where both sides can, and no talk with strangers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use redrive_delivery::{Phase, Sort, Target, Transport, TransportSettings};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::stage::{Names, Server, local, post};

/// A certificate for `hook.test` and a server side that speaks `protocols`.
pub(crate) fn acceptor(protocols: &[&str]) -> (TlsAcceptor, CertificateDer<'static>) {
    let certified = rcgen::generate_simple_self_signed(["hook.test".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    (TlsAcceptor::from(Arc::new(config)), certificate)
}

/// A transport that trusts `roots` and knows the test's names.
pub(crate) fn trusting(roots: &[CertificateDer<'static>]) -> Transport {
    let resolver = Names::of(&[
        ("hook.test", &[&["127.0.0.1"]]),
        ("hook.test.", &[&["127.0.0.1"]]),
        ("other.test", &[&["127.0.0.1"]]),
    ]);
    let connect_timeout = Duration::from_millis(500);
    Transport::new(TransportSettings { resolver, connect_timeout, extra_roots: roots.to_vec(), ..local() })
        .unwrap()
}

/// A body that has no end and counts what was taken of it.
struct Endless(Arc<AtomicU64>);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(16 * 1024, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'z'; 16 * 1024])))))
    }
}

async fn serve<B>(stream: TcpStream, tls: TlsAcceptor, answer: impl Fn(Request<Incoming>) -> B + Clone)
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let Ok(stream) = tls.accept(stream).await else { return };
    let service = service_fn(move |request| {
        let body = answer(request);
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

fn target(server: &Server, name: &str) -> Target {
    Target::parse(&format!("https://{name}:{}/x", server.address.port())).unwrap()
}

#[tokio::test]
async fn http2_is_spoken_where_both_sides_can() {
    for (protocols, spoken) in
        [(&["h2", "http/1.1"][..], "h2"), (&["h2"], "h2"), (&["http/1.1"], "http/1.1"), (&[], "http/1.1")]
    {
        let (tls, root) = acceptor(protocols);
        let server = Server::start(move |stream, _| {
            serve(stream, tls.clone(), |request| {
                http_body_util::Full::new(Bytes::from(format!(
                    "{:?} {}",
                    request.version(),
                    request.uri().path()
                )))
            })
        })
        .await;
        let (transport, target) = (trusting(&[root]), target(&server, "hook.test"));
        for _ in 0..5 {
            let exchange = post(&transport, &target).await;
            assert!(exchange.is_success(), "{exchange:?}");
            assert_eq!(exchange.peer.unwrap().protocol.name(), spoken);
            let version = if spoken == "h2" { "HTTP/2.0 /x" } else { "HTTP/1.1 /x" };
            assert_eq!(exchange.excerpt.as_deref(), Some(version));
        }
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn an_endless_answer_over_http2_is_not_read() {
    let (tls, root) = acceptor(&["h2"]);
    let taken = Arc::new(AtomicU64::new(0));
    let counter = taken.clone();
    let server = Server::start(move |stream, _| {
        let counter = counter.clone();
        serve(stream, tls.clone(), move |_| Endless(counter.clone()))
    })
    .await;
    let transport = trusting(&[root]);
    for _ in 0..3 {
        let exchange = post(&transport, &target(&server, "hook.test")).await;
        assert!(exchange.is_success(), "{exchange:?}");
        assert_eq!(exchange.excerpt.unwrap().len(), 4096);
    }
    let taken = taken.load(Ordering::SeqCst);
    assert!(taken < 8 * 1024 * 1024, "{taken} bytes were taken");
}

#[tokio::test]
async fn a_name_with_a_dot_at_its_end_is_the_same_name() {
    let (tls, root) = acceptor(&["h2"]);
    let server = Server::start(move |stream, _| {
        serve(stream, tls.clone(), |_| http_body_util::Full::new(Bytes::new()))
    })
    .await;
    let exchange = post(&trusting(&[root]), &target(&server, "hook.test.")).await;
    assert!(exchange.is_success(), "{exchange:?}");
}

#[tokio::test]
async fn strangers_are_not_spoken_to() {
    let (tls, root) = acceptor(&["h2", "http/1.1"]);
    let (_, other_root) = acceptor(&[]);
    let server = Server::start(move |stream, _| {
        serve(stream, tls.clone(), |_| http_body_util::Full::new(Bytes::new()))
    })
    .await;
    for (roots, name) in [
        (&[][..], "hook.test"),
        (std::slice::from_ref(&other_root), "hook.test"),
        (std::slice::from_ref(&root), "other.test"),
        (std::slice::from_ref(&root), "127.0.0.1"),
    ] {
        let exchange = post(&trusting(roots), &target(&server, name)).await;
        let trouble = exchange.trouble.unwrap();
        assert_eq!(
            (trouble.sort, exchange.phase),
            (Sort::Tls, Phase::NeverSent),
            "{name}: {}",
            trouble.message
        );
        assert!(trouble.message.contains("certificate"), "{}", trouble.message);
    }
}

#[tokio::test]
async fn a_target_without_tls_is_no_https_target() {
    let plain = Server::answering(|_| "HTTP/1.1 200 OK\r\n\r\n".into()).await;
    let mute = Server::start(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    for (server, sort) in [(plain, Sort::ConnectTimeout), (mute, Sort::ConnectTimeout)] {
        let exchange = post(&trusting(&[]), &target(&server, "hook.test")).await;
        assert_eq!((exchange.trouble.unwrap().sort, exchange.phase), (sort, Phase::NeverSent));
    }
    let garbage = Server::start(|mut stream, _| async move {
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"220 mail ready\r\n").await;
        crate::stage::read_request(&mut stream).await;
    })
    .await;
    let exchange = post(&trusting(&[]), &target(&garbage, "hook.test")).await;
    assert_eq!((exchange.trouble.unwrap().sort, exchange.phase), (Sort::Tls, Phase::NeverSent));
}
