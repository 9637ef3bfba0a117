//! The limits of request bodies, on every route that has one: authentication comes first, then the minimum rate and the memory.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redrive_server::ListenLimits;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::socket::{Client, HttpAnswer, ListeningService, SHORT, TIMEOUT};

const MIB: usize = 1024 * 1024;

/// Every route of the OpenAPI document that takes a request body.
async fn routes(service: &ListeningService) -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(&service.get("/openapi.json").await.body).unwrap();
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["requestBody"].is_object() {
                let path = path
                    .replace("{taskId}", "00000000-0000-7000-8000-000000000001")
                    .replace("{jobId}", "00000000-0000-7000-8000-000000000001")
                    .replace("{policyId}", "default")
                    .replace("{name}", "x");
                assert!(!path.contains('{'), "{path} has a parameter that this test does not know");
                routes.push((method.to_uppercase(), path));
            }
        }
    }
    assert!(routes.len() > 10, "{routes:?}");
    routes
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

#[tokio::test]
async fn no_route_reads_a_body_before_it_has_authenticated_the_caller() {
    let (service, _) = ListeningService::with_key(ListenLimits::default()).await;
    for (method, path) in routes(&service).await {
        let mut client = service.connect().await;
        client.begin(&method, &path, &[], MIB).await;
        let got = client.answer().await;
        assert_eq!(got.problem(), (401, "unauthenticated".to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_rejected_on_every_route() {
    let quick = ListenLimits { body_timeout: SHORT, ..ListenLimits::default() };
    let (service, key) = ListeningService::with_key(quick).await;
    for (method, path) in routes(&service).await {
        let mut client = service.connect().await;
        client.begin(&method, &path, &[("authorization", &bearer(&key))], 100).await;
        client.write(b"{").await;
        let got = client.answer().await;
        assert_eq!(got.problem(), (408, "request_too_slow".to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn a_body_that_arrives_too_slowly_is_rejected() {
    let slow = ListenLimits {
        body_timeout: Duration::from_secs(1),
        body_bytes_per_second_min: 100_000,
        ..ListenLimits::default()
    };
    let service = ListeningService::start(slow).await;
    let mut client = service.connect().await;
    client.begin("POST", "/v1/tasks", &[], MIB).await;
    let (mut reader, mut writer) = client.0.into_split();
    let trickle = tokio::spawn(async move {
        while tokio::io::AsyncWriteExt::write_all(&mut writer, b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut answer = vec![0; 4096];
    let read = timeout(TIMEOUT, tokio::io::AsyncReadExt::read(&mut reader, &mut answer)).await;
    let count = read.expect("an answer").unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer[..count]));
    trickle.abort();
}

#[tokio::test]
async fn a_body_that_exceeds_the_shared_memory_is_rejected_on_every_route() {
    let small = ListenLimits { buffered_bytes_max: 100_000, ..ListenLimits::default() };
    let (service, key) = ListeningService::with_key(small).await;
    for (method, path) in routes(&service).await {
        let mut client = service.connect().await;
        let got = client.ask(&method, &path, &[("authorization", &bearer(&key))], &vec![b' '; 200_000]).await;
        assert_eq!(got.problem(), (429, "overloaded".to_owned()), "{method} {path}");
        assert!(got.header("retry-after").is_some(), "{method} {path}: {got:?}");
    }
}

fn task(bytes: usize) -> Vec<u8> {
    json!({"target": "http://example.com/", "body": "x".repeat(bytes)}).to_string().into_bytes()
}

async fn create(service: &ListeningService, bytes: usize) -> HttpAnswer {
    service.connect().await.ask("POST", "/v1/tasks", &[], &task(bytes)).await
}

#[tokio::test]
async fn unfinished_uploads_use_a_bounded_amount_of_memory_and_free_it() {
    let small = ListenLimits { buffered_bytes_max: 2 * MIB, ..ListenLimits::default() };
    let service = ListeningService::start(small).await;
    let mut unfinished = Vec::new();
    for _ in 0..10 {
        let mut client = service.connect().await;
        client.begin("POST", "/v1/tasks", &[], MIB).await;
        // The write fails if the service has already rejected the request.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut client.0, &vec![b'x'; MIB / 2]).await;
        unfinished.push(client);
    }
    // Three of the uploads fit into the memory. Which three is a matter of chance.
    let mut answers: FuturesUnordered<_> = unfinished.iter_mut().map(Client::answer).collect();
    for _ in 0..7 {
        let refused = answers.next().await.expect("ten clients");
        assert_eq!(refused.problem(), (429, "overloaded".to_owned()));
    }
    drop(answers);
    assert_eq!(create(&service, 1_000).await.status, 201, "small requests are still accepted");
    drop(unfinished);
    let accepted = async {
        while create(&service, 600_000).await.status != 201 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, accepted).await.expect("the memory is free again");
}

#[tokio::test]
async fn an_upload_is_streamed_and_never_in_memory_as_a_whole() {
    let small = ListenLimits { buffered_bytes_max: 18 * MIB, ..ListenLimits::default() };
    let service = ListeningService::start(small).await;
    let got = service.connect().await.ask("PUT", "/v1/bodies", &[], &vec![7; 40 * MIB]).await;
    assert_eq!(got.status, 201, "{got:?}");
}
