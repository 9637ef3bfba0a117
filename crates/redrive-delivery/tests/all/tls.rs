//! HTTP over TLS: HTTP/2 where both sides support it, and trusted certificates only.

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
use redrive_delivery::{Phase, Target, Transport, TransportFailureKind, TransportSettings};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::fixture::{FixedAnswers, Server, local, post};

/// A TLS acceptor for `hook.test` that supports `protocols`, and its certificate.
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
pub(crate) fn transport_with_roots(roots: &[CertificateDer<'static>]) -> Transport {
    let resolver = FixedAnswers::of(&[
        ("hook.test", &[&["127.0.0.1"]]),
        ("hook.test.", &[&["127.0.0.1"]]),
        ("other.test", &[&["127.0.0.1"]]),
    ]);
    let connect_timeout = Duration::from_millis(500);
    Transport::new(TransportSettings { resolver, connect_timeout, extra_roots: roots.to_vec(), ..local() })
        .unwrap()
}

/// An endless body that counts the bytes that were read.
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
async fn http2_is_used_where_both_sides_support_it() {
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
        let (transport, target) = (transport_with_roots(&[root]), target(&server, "hook.test"));
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
    let transport = transport_with_roots(&[root]);
    for _ in 0..3 {
        let exchange = post(&transport, &target(&server, "hook.test")).await;
        assert!(exchange.is_success(), "{exchange:?}");
        assert_eq!(exchange.excerpt.unwrap().len(), 4096);
    }
    let taken = taken.load(Ordering::SeqCst);
    assert!(taken < 8 * 1024 * 1024, "the target could send {taken} bytes");
}

#[tokio::test]
async fn a_trailing_dot_does_not_change_a_name() {
    let (tls, root) = acceptor(&["h2"]);
    let server = Server::start(move |stream, _| {
        serve(stream, tls.clone(), |_| http_body_util::Full::new(Bytes::new()))
    })
    .await;
    let exchange = post(&transport_with_roots(&[root]), &target(&server, "hook.test.")).await;
    assert!(exchange.is_success(), "{exchange:?}");
}

#[tokio::test]
async fn an_untrusted_certificate_is_refused() {
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
        let exchange = post(&transport_with_roots(roots), &target(&server, name)).await;
        let failure = exchange.failure.unwrap();
        assert_eq!(
            (failure.kind, exchange.phase),
            (TransportFailureKind::Tls, Phase::NeverSent),
            "{name}: {}",
            failure.message
        );
        assert!(failure.message.contains("certificate"), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_target_without_tls_fails_the_handshake() {
    let plain = Server::answering(|_| "HTTP/1.1 200 OK\r\n\r\n".into()).await;
    let mute = Server::start(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    for (server, kind) in
        [(plain, TransportFailureKind::ConnectTimeout), (mute, TransportFailureKind::ConnectTimeout)]
    {
        let exchange = post(&transport_with_roots(&[]), &target(&server, "hook.test")).await;
        assert_eq!((exchange.failure.unwrap().kind, exchange.phase), (kind, Phase::NeverSent));
    }
    let garbage = Server::start(|mut stream, _| async move {
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"220 mail ready\r\n").await;
        crate::fixture::read_request(&mut stream).await;
    })
    .await;
    let exchange = post(&transport_with_roots(&[]), &target(&garbage, "hook.test")).await;
    assert_eq!(
        (exchange.failure.unwrap().kind, exchange.phase),
        (TransportFailureKind::Tls, Phase::NeverSent)
    );
}
