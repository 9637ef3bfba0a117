//! A real gRPC server as the target.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use tonic::service::interceptor::InterceptedService;

use crate::stage::{Launch, eventually};

type Metadata = Arc<Mutex<Vec<tonic::metadata::MetadataMap>>>;

/// `HealthCheckRequest { service }`, by hand.
fn check(service: &str) -> String {
    let length = u8::try_from(service.len()).unwrap();
    BASE64_STANDARD.encode([&[0x0a, length], service.as_bytes()].concat())
}

/// Tonic's health service, and the metadata that arrives there.
async fn health() -> (String, Metadata) {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("shop.Orders", tonic_health::ServingStatus::Serving).await;
    let metadata = Metadata::default();
    let seen = metadata.clone();
    let service = InterceptedService::new(service, move |request: tonic::Request<()>| {
        seen.lock().unwrap().push(request.metadata().clone());
        Ok(request)
    });
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    tokio::spawn(async move {
        let _reporter = reporter;
        tonic::transport::Server::builder().add_service(service).serve(free).await.unwrap();
    });
    eventually("the gRPC server listens", async || tokio::net::TcpStream::connect(free).await.ok()).await;
    (format!("grpc://{free}/grpc.health.v1.Health/Check"), metadata)
}

#[tokio::test]
async fn a_grpc_call_is_judged_by_its_code_and_carries_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let (url, metadata) = health().await;
    let task = |of: &str, codes: &[u16]| {
        json!({
            "targetUrl": url, "bodyBase64": check(of), "idempotencyKey": format!("check-{of}"),
            "policy": {"maxAttempts": 2, "initialDelayMs": 1, "retryableGrpcCodes": codes},
        })
    };

    let id = client.create(&task("shop.Orders", &[14])).await;
    assert_eq!(client.ended(&id).await["status"], "SUCCEEDED");
    let attempt = client.attempts(&id).await.pop().unwrap();
    assert_eq!((&attempt["outcome"], &attempt["phase"]), (&json!("succeeded"), &json!("ANSWERED")));
    assert_eq!((&attempt["responseStatus"], &attempt["grpcStatus"]), (&json!(0), &json!("OK")));

    let id = client.create(&task("nobody.Knows", &[14])).await;
    let ended = client.ended(&id).await;
    assert_eq!((&ended["reason"], &ended["lastResponseStatus"]), (&json!("NOT_RETRYABLE"), &json!(5)));
    let attempt = client.attempts(&id).await.pop().unwrap();
    assert_eq!((&attempt["responseStatus"], &attempt["grpcStatus"]), (&json!(5), &json!("NOT_FOUND")));

    let id = client.create(&task("nobody.Else", &[5])).await;
    let ended = client.ended(&id).await;
    assert_eq!((&ended["reason"], &ended["attemptNumber"]), (&json!("ATTEMPTS_EXHAUSTED"), &json!(2)));

    let metadata = metadata.lock().unwrap();
    let sent = |name: &str| -> Vec<&str> {
        metadata.iter().map(|map| map.get(name).map_or("", |value| value.to_str().unwrap())).collect()
    };
    let keys = ["check-shop.Orders", "check-nobody.Knows", "check-nobody.Else", "check-nobody.Else"];
    assert_eq!(sent("idempotency-key"), keys);
    assert_eq!(sent("grpc-previous-rpc-attempts")[3], "1");
}
