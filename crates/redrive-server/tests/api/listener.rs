//! The listener against clients that say nothing, too little, or too much: none may keep it from the others.

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

use crate::socket::{Client, Listening, PATIENCE, SHORT};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn limits() -> ListenLimits {
    ListenLimits::default()
}

#[tokio::test]
async fn one_deadline_runs_from_accept_to_the_end_of_the_head() {
    let service = Listening::start(ListenLimits { head_timeout: SHORT, ..limits() }).await;
    for sent in [&b""[..], b"P", b"PRI * HTT", PREFACE, b"G", b"GET /healthz HTTP/1.1\r\nHost: "] {
        let mut client = service.connect().await;
        client.write(sent).await;
        let what = String::from_utf8_lossy(sent).into_owned();
        client.closed(&format!("{what:?} and then nothing")).await;
    }
    let client = service.connect().await;
    drips(client, "a head that comes byte by byte").await;
}

/// Sends a request byte by byte until the server closes the connection.
async fn drips(client: Client, what: &str) {
    let (mut reader, mut writer) = client.0.into_split();
    let dripping = tokio::spawn(async move {
        loop {
            for byte in b"GET /healthz HTTP/1.1\r\nX: ".iter().chain(&[b'x'; 30_000]) {
                if tokio::io::AsyncWriteExt::write_all(&mut writer, &[*byte]).await.is_err() {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let ended = timeout(PATIENCE, reader.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "{what}: the connection is still open");
    dripping.abort();
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let service = Listening::start(ListenLimits { idle_timeout: SHORT, ..limits() }).await;
    let mut client = service.connect().await;
    client.write(REQUEST).await;
    assert_eq!(client.answer().await.status, 200);
    client.closed("an idle HTTP/1 connection").await;

    let mut client = service.connect().await;
    client.write(REQUEST).await;
    assert_eq!(client.answer().await.status, 200);
    drips(client, "a second head that comes byte by byte").await;
}

type Http2 = (http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<()>);

/// A client that speaks HTTP/2, answers pings, and sends its own all the time.
async fn http2(service: &Listening, window: u32) -> Http2 {
    let stream = TokioIo::new(TcpStream::connect(service.address).await.unwrap());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .keep_alive_interval(Duration::from_millis(20))
        .keep_alive_timeout(PATIENCE)
        .keep_alive_while_idle(true);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    (sender, tokio::spawn(async { connection.await.unwrap_or_default() }))
}

fn over_http2(service: &Listening, path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{}{path}", service.address)).body(Empty::new()).unwrap()
}

#[tokio::test]
async fn an_idle_http2_connection_is_closed_although_it_pings() {
    let quick = ListenLimits { idle_timeout: SHORT, head_timeout: SHORT, ..limits() };
    let service = Listening::start(quick).await;
    let (silent, connection) = http2(&service, 65_535).await;
    timeout(PATIENCE, connection).await.expect("one without a request is closed").unwrap();
    drop(silent);

    let (mut sender, connection) = http2(&service, 65_535).await;
    let answer = sender.send_request(over_http2(&service, "/healthz")).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok\n");
    timeout(PATIENCE, connection).await.expect("one whose request was answered is closed").unwrap();
}

#[tokio::test]
async fn health_and_metrics_answer_while_silent_sockets_fill_the_listener() {
    let few = ListenLimits {
        connections_max: 50,
        connections_per_peer_max: 40,
        reserved_connections_max: 8,
        head_timeout: Duration::from_secs(600),
        ..limits()
    };
    let service = Listening::start(few).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(service.connect().await);
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        let got = service.get(path).await;
        assert_eq!((got.status, got.header("connection")), (200, Some("close")), "{path}: {got:?}");
    }
    let refused = service.get("/retry-tasks").await;
    assert_eq!(refused.problem(), (503, "UNAVAILABLE".to_owned()));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(refused.header("connection"), Some("close"));

    // The limit of a peer leaves room for others, and the limit of all for health.
    let mut other = service.connect_from(2).await;
    assert_eq!(other.ask("GET", "/retry-tasks", &[], b"").await.status, 200);
    let mut more = Vec::new();
    for _ in 0..30 {
        more.push(service.connect_from(2).await);
    }
    assert_eq!(service.connect_from(3).await.ask("GET", "/retry-tasks", &[], b"").await.status, 503);
    assert_eq!(service.connect_from(3).await.ask("GET", "/healthz", &[], b"").await.status, 200);
    assert_eq!(other.ask("GET", "/retry-tasks", &[], b"").await.status, 200, "who was in stays in");
    drop((silent, more));
    service.get_until("/retry-tasks", 200).await;
}

#[tokio::test]
async fn silent_sockets_leave_the_reserve_by_themselves() {
    let few = ListenLimits {
        connections_max: 1,
        connections_per_peer_max: 1,
        reserved_connections_max: 8,
        reserved_head_timeout: SHORT,
        ..limits()
    };
    let service = Listening::start(few).await;
    let _regular = service.connect().await;
    service.get_until("/retry-tasks", 503).await;
    service.connect().await.closed("a silent reserved connection").await;
}

#[tokio::test]
async fn a_response_that_nobody_reads_ends_the_connection() {
    let quick = Listening::start(ListenLimits { write_timeout: SHORT, ..limits() }).await;
    let patient = Listening::start(ListenLimits { write_timeout: PATIENCE * 100, ..limits() }).await;
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500);
    let (mut waits, mut cut) = (patient.connect().await, quick.connect().await);
    waits.write(&request).await;
    cut.write(&request).await;
    let (mut sender, connection) = http2(&quick, 1).await;
    let unread = sender.send_request(over_http2(&quick, "/openapi.json")).await.unwrap();
    timeout(PATIENCE, connection).await.expect("an HTTP/2 connection is closed").unwrap();
    let cutting = async {
        while is_open(&cut) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, cutting).await.expect("an HTTP/1 connection is closed");
    assert!(is_open(&waits), "nothing else has closed it");
    drop(unread);
}

/// Whether the server takes more requests, without a look at its answers.
fn is_open(client: &Client) -> bool {
    match client.0.try_write(b"G") {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

#[tokio::test]
async fn an_event_stream_stays_open_while_nothing_happens() {
    let quick = ListenLimits { head_timeout: SHORT, idle_timeout: SHORT, write_timeout: SHORT, ..limits() };
    let service = Listening::start(quick).await;
    let mut events = service.connect().await;
    events.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let (mut sender, _connection) = http2(&service, 65_535).await;
    let mut stream = sender.send_request(over_http2(&service, "/events")).await.unwrap().into_body();
    for _ in 0..4 {
        service.connect().await.closed("a silent socket").await;
    }
    let task = json!({"targetUrl": "http://example.com/", "delayMs": 60_000}).to_string();
    let created = service.connect().await.ask("POST", "/retry-tasks", &[], task.as_bytes()).await;
    assert_eq!(created.status, 201, "{created:?}");
    let mut heard = String::new();
    while !heard.contains("event: PENDING") {
        let mut buffer = vec![0; 4096];
        let count = timeout(PATIENCE, events.0.read(&mut buffer)).await.expect("an event").unwrap();
        assert!(count > 0, "the stream was cut: {heard}");
        heard += &String::from_utf8_lossy(&buffer[..count]);
    }
    let frame = timeout(PATIENCE, stream.frame()).await.expect("an event").expect("a stream").unwrap();
    assert!(frame.data_ref().is_some_and(|data| data.starts_with(b"id: 1\nevent: PENDING")), "{frame:?}");
}

#[tokio::test]
async fn a_request_names_one_host() {
    let service = Listening::start(limits()).await;
    for (head, status) in [
        ("GET /healthz HTTP/1.1\r\nHost: localhost", 200),
        ("GET /healthz HTTP/1.1\r\nX: y", 400),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
        ("GET /retry-tasks HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        ("GET http://evil.example/retry-tasks HTTP/1.1\r\nHost: localhost", 400),
        ("GET /healthz HTTP/1.0\r\nX: y", 200),
    ] {
        let mut client = service.connect().await;
        client.write(format!("{head}\r\n\r\n").as_bytes()).await;
        let got = client.answer().await;
        assert_eq!(got.status, status, "{head}: {got:?}");
        if status == 400 {
            assert_eq!(got.problem().1, "INVALID_HOST");
        }
    }
}

#[tokio::test]
async fn a_head_has_a_bounded_size() {
    let service = Listening::start(limits()).await;
    let mut client = service.connect().await;
    let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    // The server may have closed before all was written.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut client.0, head.as_bytes()).await;
    let said = client.closed("a large head").await;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431"), "{said}");
}
