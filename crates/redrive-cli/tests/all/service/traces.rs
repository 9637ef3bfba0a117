//! Traces that are sent to a collector over OTLP.

use std::time::Duration;

use serde_json::json;

use crate::fixtures::{Launch, Reply, Target};

#[tokio::test]
async fn all_spans_are_sent_before_the_process_ends() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Target::start(|_| Reply::status(200)).await;
    let target = Target::start(|_| Reply::status(200)).await;
    let launch = Launch::new(folder.path()).variable("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.origin());
    let service = launch.start();
    let client = service.client();
    let id = client.create(&json!({"target": target.url("/")})).await;
    client.wait_for_end(&id).await;
    service.terminate();
    let (status, _) = service.wait_for_end(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(0));
    let calls = collector.calls();
    assert!(!calls.is_empty(), "nothing was exported");
    for call in &calls {
        assert_eq!((call.method.as_str(), call.path.as_str()), ("POST", "/v1/traces"));
        assert_eq!(call.header("content-type"), "application/x-protobuf");
    }
    let any_call_contains =
        |text: &str| calls.iter().any(|call| call.body.windows(text.len()).any(|w| w == text.as_bytes()));
    assert!(any_call_contains("execute") && any_call_contains(&id), "no span describes the attempt");
}
