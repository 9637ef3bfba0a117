//! Tasks whose target is a real gRPC server.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use tonic::service::interceptor::InterceptedService;

use crate::fixtures::{Launch, eventually};

type Metadata = Arc<Mutex<Vec<tonic::metadata::MetadataMap>>>;

/// An encoded `HealthCheckRequest { service }`.
fn health_check_request(service: &str) -> String {
    let length = u8::try_from(service.len()).unwrap();
    BASE64_STANDARD.encode([&[0x0a, length], service.as_bytes()].concat())
}

/// Starts the health service of tonic. Returns its address and the metadata of its calls.
async fn start_health_service() -> (String, Metadata) {
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
async fn the_grpc_code_decides_and_the_call_carries_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let (url, metadata) = start_health_service().await;
    let task = |of: &str, codes: &[u16]| {
        json!({
            "target": url, "bodyBase64": health_check_request(of), "idempotencyKey": format!("check-{of}"),
            "policy": {"maxAttempts": 2, "initialDelayMs": 1, "retryableGrpcCodes": codes},
        })
    };

    let id = client.create(&task("shop.Orders", &[14])).await;
    assert_eq!(client.wait_for_end(&id).await["state"], "succeeded");
    let attempt = client.attempts(&id).await.pop().unwrap();
    assert_eq!((&attempt["outcome"], &attempt["phase"]), (&json!("succeeded"), &json!("answered")));
    assert_eq!((&attempt["responseStatus"], &attempt["grpcStatus"]), (&json!(0), &json!("OK")));

    let id = client.create(&task("nobody.Knows", &[14])).await;
    let ended = client.wait_for_end(&id).await;
    assert_eq!((&ended["reason"], &ended["lastResponseStatus"]), (&json!("not_retryable"), &json!(5)));
    let attempt = client.attempts(&id).await.pop().unwrap();
    assert_eq!((&attempt["responseStatus"], &attempt["grpcStatus"]), (&json!(5), &json!("NOT_FOUND")));

    let id = client.create(&task("nobody.Else", &[5])).await;
    let ended = client.wait_for_end(&id).await;
    assert_eq!((&ended["reason"], &ended["attemptNumber"]), (&json!("attempts_exhausted"), &json!(2)));

    let metadata = metadata.lock().unwrap();
    let sent = |name: &str| -> Vec<&str> {
        metadata.iter().map(|map| map.get(name).map_or("", |value| value.to_str().unwrap())).collect()
    };
    let keys = ["check-shop.Orders", "check-nobody.Knows", "check-nobody.Else", "check-nobody.Else"];
    assert_eq!(sent("idempotency-key"), keys);
    assert_eq!(sent("grpc-previous-rpc-attempts")[3], "1");
}
