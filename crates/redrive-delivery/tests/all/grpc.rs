//! gRPC calls against tonic's health service and against servers that misbehave.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use redrive_delivery::{BoxError, Exchange, OutgoingRequest, Phase, Target, TransportFailureKind, Upload};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::Sleep;

use crate::fixture::{Server, post, send, transport};
use crate::tls::{acceptor, transport_with_roots};

/// Encodes `HealthCheckRequest { service }` by hand.
fn health_check_request(service: &str) -> Vec<u8> {
    [&[0x0a, service.len() as u8], service.as_bytes()].concat()
}

async fn start_health_service() -> String {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("shop.Orders", tonic_health::ServingStatus::Serving).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    tokio::spawn(async move {
        let _reporter = reporter;
        tonic::transport::Server::builder().add_service(service).serve(address).await.unwrap();
    });
    for _ in 0..100 {
        if tokio::net::TcpStream::connect(address).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    format!("grpc://{address}")
}

#[tokio::test]
async fn answers_of_a_real_server_are_read() {
    let base = start_health_service().await;
    let transport = transport();
    let call = async |path: &str, body: Upload| {
        let target = Target::parse(&format!("{base}{path}")).unwrap();
        send(
            &transport,
            OutgoingRequest { body, timeout: Some(Duration::from_secs(5)), ..OutgoingRequest::new(&target) },
        )
        .await
    };
    let exchange =
        call("/grpc.health.v1.Health/Check", Upload::bytes(health_check_request("shop.Orders"))).await;
    assert!(exchange.is_success(), "{exchange:?}");
    assert_eq!((exchange.phase, exchange.status, exchange.grpc_code), (Phase::Answered, None, Some(0)));
    assert_eq!(exchange.peer.unwrap().protocol.name(), "h2c");

    let message = http_body_util::Full::new(Bytes::from(health_check_request("shop.Orders")));
    let streamed = Upload::stream(message.map_err(|never| -> BoxError { match never {} }), 13);
    assert!(call("/grpc.health.v1.Health/Check", streamed).await.is_success());

    for (path, body, code) in [
        ("/grpc.health.v1.Health/Check", health_check_request("nobody.Knows"), 5),
        ("/grpc.health.v1.Health/Nothing", vec![], 12),
        ("/no.Service/Nothing", vec![], 12),
        ("/grpc.health.v1.Health/Check", vec![0xff; 3], 13),
    ] {
        let exchange = call(path, Upload::bytes(body)).await;
        let failure = exchange.failure.unwrap();
        assert_eq!(
            (failure.kind, exchange.grpc_code),
            (TransportFailureKind::Grpc(code), Some(code)),
            "{}",
            failure.message
        );
        assert!(!exchange.no_retry);
    }
}

type Answer = Response<BoxBody<Bytes, BoxError>>;

/// An answer with these headers, this message and these trailers.
fn answer(
    status: u16,
    headers: &[(&str, &str)],
    message: Option<&[u8]>,
    trailers: &[(&str, &str)],
) -> Answer {
    let map = |pairs: &[(&str, &str)]| -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    };
    let mut frames: Vec<Result<Frame<Bytes>, BoxError>> = Vec::new();
    if let Some(message) = message {
        frames.push(Ok(Frame::data([&[0, 0, 0, 0, message.len() as u8], message].concat().into())));
    }
    if !trailers.is_empty() {
        frames.push(Ok(Frame::trailers(map(trailers))));
    }
    let mut response = Response::new(BoxBody::new(Frames::new(frames)));
    *response.status_mut() = status.try_into().unwrap();
    *response.headers_mut() = map(headers);
    response
}

/// Sends frames one after the other. An error is delayed until the frames before it have arrived.
struct Frames(VecDeque<Result<Frame<Bytes>, BoxError>>, Option<Pin<Box<Sleep>>>);

impl Frames {
    fn new(frames: impl IntoIterator<Item = Result<Frame<Bytes>, BoxError>>) -> Self {
        Self(frames.into_iter().collect(), None)
    }
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(Err(_)) = self.0.front() {
            let wait = || Box::pin(tokio::time::sleep(Duration::from_millis(50)));
            ready!(self.1.get_or_insert_with(wait).as_mut().poll(cx));
        }
        Poll::Ready(self.0.pop_front())
    }
}

async fn serve<I>(io: I, reply: impl Fn(Request<Incoming>) -> Answer + Clone + Send + 'static)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        let reply = reply.clone();
        async move {
            while let Some(Ok(_)) = request.body_mut().frame().await {}
            Ok::<_, Infallible>(reply(request))
        }
    });
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(io), service).await;
}

async fn start_grpc_server(
    reply: impl Fn(Request<Incoming>) -> Answer + Clone + Send + Sync + 'static,
) -> Server {
    Server::start(move |stream, _| serve(stream, reply.clone())).await
}

fn target(server: &Server) -> Target {
    Target::parse(&format!("grpc://{}/a.B/C", server.address)).unwrap()
}

async fn call(reply: impl Fn(Request<Incoming>) -> Answer + Clone + Send + Sync + 'static) -> Exchange {
    let server = start_grpc_server(reply).await;
    post(&transport(), &target(&server)).await
}

#[tokio::test]
async fn a_call_sends_its_timeout_and_previous_attempts() {
    let (header_sender, mut header_receiver) = mpsc::unbounded_channel();
    let server = start_grpc_server(move |request| {
        header_sender.send(request.headers().clone()).unwrap();
        answer(200, &[], Some(b"fine"), &[("grpc-status", "0")])
    })
    .await;
    let (transport, target) = (transport(), target(&server));
    let mut again = OutgoingRequest::new(&target);
    again.previous_attempts = 3;
    again.timeout = Some(Duration::from_millis(1500));
    again.headers.insert("x-token-bin", HeaderValue::from_static("AAEC"));
    again.headers.insert("idempotency-key", HeaderValue::from_static("k"));
    let exchange = send(&transport, again).await;
    assert!(exchange.is_success(), "{exchange:?}");
    assert_eq!(exchange.excerpt.as_deref(), Some("fine"));
    let headers = header_receiver.recv().await.unwrap();
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-previous-rpc-attempts", "3"),
        ("grpc-timeout", "1500m"),
        ("x-token-bin", "AAEC"),
        ("idempotency-key", "k"),
    ] {
        assert_eq!(headers.get(name).map(|value| value.to_str().unwrap()), Some(value), "{name}");
    }
    assert!(send(&transport, OutgoingRequest::new(&target)).await.is_success());
    let first = header_receiver.recv().await.unwrap();
    assert!(!first.contains_key("grpc-previous-rpc-attempts") && !first.contains_key("grpc-timeout"));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_status_is_read_from_headers_and_trailers() {
    let unavailable = [("grpc-status", "14"), ("grpc-message", "try%20later")];
    let in_trailers = call(move |_| answer(200, &[], None, &unavailable)).await;
    let in_headers = call(move |_| answer(200, &unavailable, None, &[])).await;
    let after_a_message = call(move |_| answer(200, &[], Some(b"part"), &unavailable)).await;
    let beside_a_bad_status = call(move |_| answer(503, &unavailable, None, &[])).await;
    for exchange in [in_trailers, in_headers, after_a_message, beside_a_bad_status] {
        let failure = exchange.failure.unwrap();
        assert_eq!((failure.kind, exchange.phase), (TransportFailureKind::Grpc(14), Phase::Answered));
        assert_eq!(failure.message, "the target answered UNAVAILABLE", "an error never quotes the answer");
        assert_eq!(exchange.excerpt.as_deref(), Some("try later"));
    }
    for (http, code) in [(200, 2), (404, 12), (429, 14), (503, 14), (500, 2)] {
        let exchange = call(move |_| answer(http, &[], None, &[])).await;
        assert_eq!(exchange.failure.unwrap().kind, TransportFailureKind::Grpc(code), "{http}");
        // Every gRPC server answers 200, so it is not recorded.
        assert_eq!(exchange.status, (http != 200).then_some(http));
    }
}

#[tokio::test]
async fn pushback_becomes_the_requested_pause() {
    for (value, wait, stop) in
        [("2500", Some(Duration::from_millis(2500)), false), ("-1", None, true), ("x", None, true)]
    {
        let pairs = [("grpc-status", "14"), ("grpc-retry-pushback-ms", value)];
        let in_trailers = call(move |_| answer(200, &[], None, &pairs)).await;
        let in_headers = call(move |_| answer(200, &pairs, None, &[])).await;
        let apart = call(move |_| answer(200, &pairs[1..], None, &pairs[..1])).await;
        for exchange in [in_trailers, in_headers, apart] {
            assert_eq!((exchange.retry_after, exchange.no_retry), (wait, stop), "{value}");
        }
    }
}

#[tokio::test]
async fn an_answer_without_a_status_is_a_failure() {
    let broken = call(|_| {
        let failing =
            Frames::new([Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x09part"))), Err("broken".into())]);
        Response::new(BoxBody::new(failing))
    })
    .await;
    assert_eq!(
        (broken.failure.unwrap().kind, broken.phase),
        (TransportFailureKind::Connection, Phase::Answered)
    );

    let endless = call(|_| {
        let frames = (0..300).map(|_| Ok(Frame::data(Bytes::from_static(&[0; 16 * 1024]))));
        Response::new(BoxBody::new(Frames::new(frames)))
    })
    .await;
    assert_eq!(endless.failure.unwrap().kind, TransportFailureKind::Grpc(8));
}

#[tokio::test]
async fn an_http1_server_is_not_a_grpc_target() {
    let server = Server::answering(|_| "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".into()).await;
    let exchange = post(&transport(), &target(&server)).await;
    assert_eq!(exchange.failure.unwrap().kind, TransportFailureKind::Connection);
    assert_ne!(exchange.phase, Phase::Answered);
}

#[tokio::test]
async fn grpcs_requires_http2_over_tls() {
    for (protocols, works) in
        [(&["h2"][..], true), (&["h2", "http/1.1"], true), (&["http/1.1"], false), (&[], false)]
    {
        let (tls, root) = acceptor(protocols);
        let server = Server::start(move |stream, _| {
            let tls = tls.clone();
            async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                serve(stream, |_| answer(200, &[], Some(b""), &[("grpc-status", "0")])).await;
            }
        })
        .await;
        let target = Target::parse(&format!("grpcs://hook.test:{}/a.B/C", server.address.port())).unwrap();
        let exchange = post(&transport_with_roots(&[root]), &target).await;
        if works {
            assert!(exchange.is_success(), "{exchange:?}");
            assert_eq!(exchange.peer.unwrap().protocol.name(), "h2");
        } else {
            assert_eq!(
                (exchange.failure.unwrap().kind, exchange.phase),
                (TransportFailureKind::Tls, Phase::NeverSent)
            );
        }
    }
}
