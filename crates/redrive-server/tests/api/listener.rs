//! The limits of the listener: idle, slow and greedy clients do not block the others.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use redrive_server::ListenLimits;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::socket::{Client, ListeningService, SHORT, TIMEOUT};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn limits() -> ListenLimits {
    ListenLimits::default()
}

#[tokio::test]
async fn a_client_must_send_its_first_head_before_the_deadline() {
    let service = ListeningService::start(ListenLimits { head_timeout: SHORT, ..limits() }).await;
    for sent in [&b""[..], b"P", b"PRI * HTT", PREFACE, b"G", b"GET /healthz HTTP/1.1\r\nHost: "] {
        let mut client = service.connect().await;
        client.write(sent).await;
        let what = String::from_utf8_lossy(sent).into_owned();
        client.wait_until_closed(&format!("{what:?} and then nothing")).await;
    }
    let client = service.connect().await;
    send_slowly(client, "a head that arrives byte by byte").await;
}

/// Sends a request byte by byte until the server closes the connection.
async fn send_slowly(client: Client, what: &str) {
    let (mut reader, mut writer) = client.0.into_split();
    let sending = tokio::spawn(async move {
        loop {
            for byte in b"GET /healthz HTTP/1.1\r\nX: ".iter().chain(&[b'x'; 30_000]) {
                if tokio::io::AsyncWriteExt::write_all(&mut writer, &[*byte]).await.is_err() {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let ended = timeout(TIMEOUT, reader.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "{what}: the connection is still open");
    sending.abort();
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let service = ListeningService::start(ListenLimits { idle_timeout: SHORT, ..limits() }).await;
    let mut client = service.connect().await;
    client.write(REQUEST).await;
    assert_eq!(client.answer().await.status, 200);
    client.wait_until_closed("an idle HTTP/1 connection").await;

    let mut client = service.connect().await;
    client.write(REQUEST).await;
    assert_eq!(client.answer().await.status, 200);
    send_slowly(client, "a second head that arrives byte by byte").await;
}

type Http2 = (http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<()>);

/// An HTTP/2 client that answers pings and sends a ping every 20 ms.
async fn http2(service: &ListeningService, window: u32) -> Http2 {
    let stream = TokioIo::new(TcpStream::connect(service.address).await.unwrap());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .keep_alive_interval(Duration::from_millis(20))
        .keep_alive_timeout(TIMEOUT)
        .keep_alive_while_idle(true);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    (sender, tokio::spawn(async { connection.await.unwrap_or_default() }))
}

fn http2_get(service: &ListeningService, path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{}{path}", service.address)).body(Empty::new()).unwrap()
}

#[tokio::test]
async fn an_idle_http2_connection_is_closed_although_its_client_sends_pings() {
    let quick = ListenLimits { idle_timeout: SHORT, head_timeout: SHORT, ..limits() };
    let service = ListeningService::start(quick).await;
    let (silent, connection) = http2(&service, 65_535).await;
    timeout(TIMEOUT, connection).await.expect("a connection without a request is closed").unwrap();
    drop(silent);

    let (mut sender, connection) = http2(&service, 65_535).await;
    let answer = sender.send_request(http2_get(&service, "/healthz")).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok\n");
    timeout(TIMEOUT, connection).await.expect("a connection is closed after its last response").unwrap();
}

#[tokio::test]
async fn health_checks_and_metrics_are_answered_while_silent_connections_fill_the_listener() {
    let few = ListenLimits {
        connections_max: 50,
        connections_per_peer_max: 40,
        reserved_connections_max: 8,
        head_timeout: Duration::from_secs(600),
        ..limits()
    };
    let service = ListeningService::start(few).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(service.connect().await);
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        let got = service.get(path).await;
        assert_eq!((got.status, got.header("connection")), (200, Some("close")), "{path}: {got:?}");
    }
    let refused = service.get("/v1/tasks").await;
    assert_eq!(refused.problem(), (503, "unavailable".to_owned()));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(refused.header("connection"), Some("close"));

    // The limit per peer leaves connections for other peers, and the reserve leaves some for health checks.
    let mut other = service.connect_from(2).await;
    assert_eq!(other.ask("GET", "/v1/tasks", &[], b"").await.status, 200);
    let mut more = Vec::new();
    for _ in 0..30 {
        more.push(service.connect_from(2).await);
    }
    assert_eq!(service.connect_from(3).await.ask("GET", "/v1/tasks", &[], b"").await.status, 503);
    assert_eq!(service.connect_from(3).await.ask("GET", "/healthz", &[], b"").await.status, 200);
    assert_eq!(
        other.ask("GET", "/v1/tasks", &[], b"").await.status,
        200,
        "an open connection is not closed for newer ones"
    );
    drop((silent, more));
    service.get_until("/v1/tasks", 200).await;
}

#[tokio::test]
async fn a_silent_reserved_connection_is_closed() {
    let few = ListenLimits {
        connections_max: 1,
        connections_per_peer_max: 1,
        reserved_connections_max: 8,
        reserved_head_timeout: SHORT,
        ..limits()
    };
    let service = ListeningService::start(few).await;
    let _regular = service.connect().await;
    service.get_until("/v1/tasks", 503).await;
    service.connect().await.wait_until_closed("a silent reserved connection").await;
}

#[tokio::test]
async fn a_connection_whose_client_does_not_read_its_response_is_closed() {
    let strict = ListeningService::start(ListenLimits { write_timeout: SHORT, ..limits() }).await;
    let lenient = ListeningService::start(ListenLimits { write_timeout: TIMEOUT * 100, ..limits() }).await;
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500);
    let (mut kept, mut closed) = (lenient.connect().await, strict.connect().await);
    kept.write(&request).await;
    closed.write(&request).await;
    let (mut sender, connection) = http2(&strict, 1).await;
    let unread = sender.send_request(http2_get(&strict, "/openapi.json")).await.unwrap();
    timeout(TIMEOUT, connection).await.expect("an HTTP/2 connection is closed").unwrap();
    let closing = async {
        while is_open(&closed) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, closing).await.expect("an HTTP/1 connection is closed");
    assert!(is_open(&kept), "only the write timeout closes a connection");
    drop(unread);
}

/// Whether the server still accepts bytes. It does not read the responses.
fn is_open(client: &Client) -> bool {
    match client.0.try_write(b"G") {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

#[tokio::test]
async fn an_event_stream_stays_open_while_nothing_happens() {
    let quick = ListenLimits { head_timeout: SHORT, idle_timeout: SHORT, write_timeout: SHORT, ..limits() };
    let service = ListeningService::start(quick).await;
    let mut events = service.connect().await;
    events.write(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let (mut sender, _connection) = http2(&service, 65_535).await;
    let mut stream = sender.send_request(http2_get(&service, "/v1/events")).await.unwrap().into_body();
    for _ in 0..4 {
        service.connect().await.wait_until_closed("a silent connection").await;
    }
    let task = json!({"target": "http://example.com/", "delayMs": 60_000}).to_string();
    let created = service.connect().await.ask("POST", "/v1/tasks", &[], task.as_bytes()).await;
    assert_eq!(created.status, 201, "{created:?}");
    let mut received = String::new();
    while !received.contains("event: pending") {
        let mut buffer = vec![0; 4096];
        let count = timeout(TIMEOUT, events.0.read(&mut buffer)).await.expect("an event").unwrap();
        assert!(count > 0, "the stream was closed: {received}");
        received += &String::from_utf8_lossy(&buffer[..count]);
    }
    let frame = timeout(TIMEOUT, stream.frame()).await.expect("an event").expect("a stream").unwrap();
    assert!(frame.data_ref().is_some_and(|data| data.starts_with(b"id: 1\nevent: pending")), "{frame:?}");
}

#[tokio::test]
async fn a_request_must_name_exactly_one_host() {
    let service = ListeningService::start(limits()).await;
    for (head, status) in [
        ("GET /healthz HTTP/1.1\r\nHost: localhost", 200),
        ("GET /healthz HTTP/1.1\r\nX: y", 400),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
        ("GET /v1/tasks HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        ("GET http://evil.example/v1/tasks HTTP/1.1\r\nHost: localhost", 400),
        ("GET /healthz HTTP/1.0\r\nX: y", 200),
    ] {
        let mut client = service.connect().await;
        client.write(format!("{head}\r\n\r\n").as_bytes()).await;
        let got = client.answer().await;
        assert_eq!(got.status, status, "{head}: {got:?}");
        if status == 400 {
            assert_eq!(got.problem().1, "invalid_host");
        }
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_rejected() {
    let service = ListeningService::start(limits()).await;
    let mut client = service.connect().await;
    let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    // The server may close the connection before it has received the whole head.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut client.0, head.as_bytes()).await;
    let received = client.wait_until_closed("a large head").await;
    assert!(received.is_empty() || received.starts_with("HTTP/1.1 431"), "{received}");
}
