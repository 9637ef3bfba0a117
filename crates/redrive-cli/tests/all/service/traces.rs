//! Traces over OTLP, as a collector receives them.

use std::time::Duration;

use serde_json::json;

use crate::stage::{Launch, Reply, Target};

#[tokio::test]
async fn the_spans_of_attempts_have_reached_the_collector_when_the_process_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Target::start(|_| Reply::status(200)).await;
    let target = Target::start(|_| Reply::status(200)).await;
    let launch = Launch::new(folder.path()).variable("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.origin());
    let service = launch.start();
    let client = service.client();
    let id = client.create(&json!({"targetUrl": target.url("/")})).await;
    client.ended(&id).await;
    service.terminate();
    let (status, _) = service.end(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(0));
    let calls = collector.calls();
    assert!(!calls.is_empty(), "nothing was exported");
    for call in &calls {
        assert_eq!((call.method.as_str(), call.path.as_str()), ("POST", "/v1/traces"));
        assert_eq!(call.header("content-type"), "application/x-protobuf");
    }
    let said =
        |text: &str| calls.iter().any(|call| call.body.windows(text.len()).any(|w| w == text.as_bytes()));
    assert!(said("execute") && said(&id), "no span is about the attempt");
}
