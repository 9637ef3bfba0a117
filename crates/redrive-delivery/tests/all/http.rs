//! One attempt over HTTP/1.1, with targets that misbehave.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Method};
use http_body_util::{BodyExt as _, Full};
use redrive_core::FailureKind;
use redrive_delivery::{BoxError, OutgoingRequest, Phase, Progress, TransportFailureKind, Upload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::fixture::{Server, expect_close, post, read_request, send, transport};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine";

#[tokio::test]
async fn each_answer_of_a_failing_target_is_read_correctly() {
    let server = Server::answering(|number| match number {
        1 => "HTTP/1.1 503 Service Unavailable\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy".into(),
        2 => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".into(),
        _ => OK.into(),
    })
    .await;
    let (transport, target) = (transport(), server.target("/hook"));

    let first = post(&transport, &target).await;
    assert_eq!((first.phase, first.status), (Phase::Answered, Some(503)));
    let failure = first.to_failure().unwrap();
    assert_eq!((failure.kind, failure.retry_after), (FailureKind::Status(503), Some(Duration::from_secs(7))));
    assert_eq!(failure.message, "the target answered 503 Service Unavailable");
    assert_eq!(first.failure.unwrap().kind, TransportFailureKind::Status(503));
    assert_eq!(first.retry_after, Some(Duration::from_secs(7)));
    assert_eq!(first.excerpt.as_deref(), Some("busy"));

    let second = post(&transport, &target).await;
    assert_eq!(second.failure.unwrap().kind, TransportFailureKind::Status(404));
    assert_eq!((second.retry_after, second.excerpt), (None, None));

    let third = post(&transport, &target).await;
    assert!(third.is_success());
    assert_eq!((third.status, third.excerpt.as_deref()), (Some(200), Some("fine")));
    let peer = third.peer.unwrap();
    assert_eq!((peer.address, peer.protocol.name()), (server.address, "http/1.1"));
}

#[tokio::test]
async fn connections_are_reused() {
    let server = Server::answering(|_| OK.into()).await;
    let (transport, target) = (transport(), server.target("/"));
    for _ in 0..10 {
        assert!(post(&transport, &target).await.is_success());
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_request_has_the_given_headers_and_few_others() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let sender = sender.clone();
        async move {
            while let Some(request) = read_request(&mut stream).await {
                sender.send(request).unwrap();
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let (transport, target) = (transport(), server.target("/a/b?c=d"));

    let mut outgoing = OutgoingRequest::new(&target);
    outgoing.method = Method::PUT;
    outgoing.headers.insert("idempotency-key", HeaderValue::from_static("k-1"));
    outgoing.body = Upload::bytes("hello");
    assert!(send(&transport, outgoing).await.is_success());
    let host = server.address;
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "PUT /a/b?c=d HTTP/1.1\r\nidempotency-key: k-1\r\nuser-agent: redrive/{version}\r\nhost: {host}\r\ncontent-length: 5\r\n\r\nhello"
    );
    assert_eq!(receiver.recv().await.unwrap(), expected);

    let mut outgoing = OutgoingRequest::new(&target);
    outgoing.headers.insert("user-agent", HeaderValue::from_static("mine"));
    assert!(send(&transport, outgoing).await.is_success());
    let empty = receiver.recv().await.unwrap();
    assert!(empty.contains("user-agent: mine\r\n") && !empty.contains("redrive/"), "{empty}");
    assert_eq!(empty.matches("content-length: 0\r\n").count(), 1, "{empty}");
}

#[tokio::test]
async fn every_2xx_is_success_and_nothing_else_is() {
    for (status, success) in [
        (200, true),
        (201, true),
        (202, true),
        (204, true),
        (206, true),
        (299, true),
        (300, false),
        (304, false),
        (307, false),
        (400, false),
        (429, false),
        (499, false),
        (500, false),
        (599, false),
        (999, false),
    ] {
        let server =
            Server::answering(move |_| format!("HTTP/1.1 {status} X\r\nConnection: close\r\n\r\n")).await;
        let exchange = post(&transport(), &server.target("/")).await;
        assert_eq!((exchange.is_success(), exchange.status), (success, Some(status)), "{exchange:?}");
    }
}

#[tokio::test]
async fn an_interim_answer_is_skipped() {
    let server = Server::answering(|_| format!("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n{OK}")).await;
    assert_eq!(post(&transport(), &server.target("/")).await.status, Some(200));
}

#[tokio::test]
async fn a_retry_after_date_uses_the_clock_of_the_target() {
    let at = |seconds| httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let (date, until) = (at(1_000_000_000), at(1_000_000_042));
    let answer =
        format!("HTTP/1.1 429 Slow\r\ndate: {date}\r\nretry-after: {until}\r\ncontent-length: 0\r\n\r\n");
    let server = Server::answering(move |_| answer.clone()).await;
    let exchange = post(&transport(), &server.target("/")).await;
    assert_eq!(exchange.retry_after, Some(Duration::from_secs(42)));
}

#[tokio::test]
async fn a_hanging_target_counts_as_sent_and_its_connection_is_closed() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let sender = sender.clone();
        async move {
            sender.send(read_request(&mut stream).await.is_some()).unwrap();
            expect_close(&mut stream).await;
            sender.send(true).unwrap();
        }
    })
    .await;
    let (transport, target) = (transport(), server.target("/"));
    let progress = Progress::new();
    let outgoing = OutgoingRequest {
        progress: progress.clone(),
        body: Upload::bytes("x"),
        ..OutgoingRequest::new(&target)
    };
    let attempt = tokio::time::timeout(Duration::from_millis(200), transport.send(outgoing));
    assert!(attempt.await.is_err());
    assert!(receiver.recv().await.unwrap());
    assert_eq!((progress.phase(), progress.status()), (Phase::NoAnswer, None));
    assert_eq!(progress.evidence().address, Some(server.address.to_string()));
    assert!(receiver.recv().await.unwrap(), "the connection is closed with the attempt");
}

#[tokio::test]
async fn a_slow_body_is_limited_by_the_caller_and_counts_as_answered() {
    let server = Server::start(|mut stream, _| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
        while stream.write_all(b".").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    let (transport, target) = (transport(), server.target("/"));
    let progress = Progress::new();
    let outgoing = OutgoingRequest { progress: progress.clone(), ..OutgoingRequest::new(&target) };
    let attempt = tokio::time::timeout(Duration::from_millis(200), transport.send(outgoing));
    assert!(attempt.await.is_err());
    assert_eq!((progress.phase(), progress.status()), (Phase::Answered, Some(200)));
}

#[tokio::test]
async fn an_answer_of_two_gib_is_not_read() {
    const WHOLE: u64 = 2 * 1024 * 1024 * 1024;
    let written = Arc::new(AtomicU64::new(0));
    let (counter, (sender, mut receiver)) = (written.clone(), mpsc::unbounded_channel());
    let server = Server::start(move |mut stream, _| {
        let (counter, sender) = (counter.clone(), sender.clone());
        async move {
            read_request(&mut stream).await;
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {WHOLE}\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let chunk = vec![b'x'; 64 * 1024];
            while counter.load(Ordering::SeqCst) < WHOLE {
                match stream.write(&chunk).await {
                    Ok(count) => counter.fetch_add(count as u64, Ordering::SeqCst),
                    Err(_) => break,
                };
            }
            sender.send(()).unwrap();
        }
    })
    .await;
    let (transport, target) = (transport(), server.target("/"));
    let exchange = post(&transport, &target).await;
    assert!(exchange.is_success(), "the status was a success: {exchange:?}");
    assert_eq!(exchange.excerpt.unwrap().len(), 4096);
    receiver.recv().await.unwrap();
    // Beyond the 64 KiB that were read, the target could only fill the buffers of two sockets.
    let written = written.load(Ordering::SeqCst);
    assert!(written < 16 * 1024 * 1024, "the target could send {written} bytes");
    assert_eq!(server.connections(), 1);
    assert!(post(&transport, &target).await.is_success());
    assert_eq!(server.connections(), 2, "the connection was dropped, not drained");
}

#[tokio::test]
async fn an_answer_within_the_limit_is_read_to_its_end() {
    let server = Server::answering(|_| {
        format!("HTTP/1.1 200 OK\r\ncontent-length: 65536\r\n\r\n{}", "y".repeat(65536))
    })
    .await;
    let (transport, target) = (transport(), server.target("/"));
    for _ in 0..3 {
        assert!(post(&transport, &target).await.is_success());
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_answer_that_breaks_off_keeps_its_status() {
    for (status, kind) in [
        (200, None),
        (204, None),
        (500, Some(TransportFailureKind::Status(500))),
        (302, Some(TransportFailureKind::Status(302))),
    ] {
        let server = Server::answering(move |_| {
            format!("HTTP/1.1 {status} X\r\nConnection: close\r\ncontent-length: 100\r\n\r\npart")
        })
        .await;
        let exchange = post(&transport(), &server.target("/")).await;
        assert_eq!(exchange.failure.as_ref().map(|failure| failure.kind), kind);
        assert_eq!((exchange.phase, exchange.status), (Phase::Answered, Some(status)));
        if status == 204 {
            continue; // It has no body that could break off.
        }
        assert_eq!(exchange.excerpt.as_deref(), Some("part"));
        let note = exchange.evidence().note.unwrap();
        assert!(note.contains("broke off"), "{note}");
    }
}

#[tokio::test]
async fn bytes_that_are_not_http_are_no_answer() {
    let headers = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "h".repeat(1024 * 1024));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(500));
    for garbage in [
        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "\0\u{1}\u{2}\u{3}\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 20 x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        &headers,
        &many,
    ] {
        let garbage = garbage.to_owned();
        let shown: String = garbage.chars().take(60).collect();
        let server = Server::answering(move |_| garbage.clone()).await;
        let exchange = post(&transport(), &server.target("/")).await;
        let failure = exchange.failure.unwrap_or_else(|| panic!("{shown:?} was read as an answer"));
        assert_eq!(failure.kind, TransportFailureKind::Connection, "{shown:?} {failure:?}");
        assert_eq!((exchange.phase, exchange.status), (Phase::NoAnswer, None), "{shown:?}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let private = Server::answering(|_| OK.into()).await;
    let elsewhere = private.address;
    for location in
        [format!("http://{elsewhere}/"), "http://169.254.169.254/".into(), "http://10.0.0.1/".into()]
    {
        let server = Server::answering(move |_| {
            format!("HTTP/1.1 307 Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
        })
        .await;
        let exchange = post(&transport(), &server.target("/")).await;
        let failure = exchange.failure.unwrap();
        assert_eq!(failure.kind, TransportFailureKind::Status(307));
        assert!(failure.message.contains("not followed"), "{}", failure.message);
    }
    assert_eq!(private.connections(), 0);
}

fn streamed_body(bytes: &'static [u8], length: u64) -> Upload {
    let body = Full::new(Bytes::from_static(bytes)).map_err(|never| -> BoxError { match never {} });
    Upload::stream(body, length)
}

#[tokio::test]
async fn a_body_is_streamed_with_its_length() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let sender = sender.clone();
        async move {
            sender.send(read_request(&mut stream).await.unwrap()).unwrap();
            stream.write_all(OK.as_bytes()).await.unwrap();
        }
    })
    .await;
    let target = server.target("/");
    let outgoing = OutgoingRequest { body: streamed_body(b"from afar", 9), ..OutgoingRequest::new(&target) };
    assert!(send(&transport(), outgoing).await.is_success());
    let request = receiver.recv().await.unwrap();
    assert!(request.contains("content-length: 9\r\n") && request.ends_with("\r\n\r\nfrom afar"), "{request}");
}

#[tokio::test]
async fn a_body_of_the_wrong_length_is_a_failure_of_the_body() {
    for length in [5, 20] {
        let server = Server::start(|mut stream, _| async move {
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
        })
        .await;
        let target = server.target("/");
        let outgoing =
            OutgoingRequest { body: streamed_body(b"from afar", length), ..OutgoingRequest::new(&target) };
        let exchange = send(&transport(), outgoing).await;
        assert_eq!(exchange.failure.unwrap().kind, TransportFailureKind::Body, "{length}");
        assert_eq!(exchange.phase, Phase::NoAnswer, "the head may have been sent");
    }
}
