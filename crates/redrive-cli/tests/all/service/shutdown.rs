//! SIGTERM: running attempts may finish; the service releases the others, and the next process runs them again.

use std::time::Duration;

use serde_json::json;

use crate::fixtures::{Launch, Reply, Target};

/// The drain time of the service, and 10 s more.
const SHUTDOWN_MAX: Duration = Duration::from_secs(20 + 10);

#[tokio::test]
async fn a_shutdown_finishes_running_attempts_and_releases_those_that_take_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new(folder.path());
    let slow = Target::start(|_| Reply::after_ms(2_000, Reply::status(200))).await;
    let hanging = Target::start(|call| if call.number == 1 { Reply::Hang } else { Reply::status(200) }).await;

    let service = launch.start();
    let client = service.client();
    let finished = client.create(&json!({"target": slow.url("/"), "timeoutMs": 60_000})).await;
    let released = client
        .create(&json!({"target": hanging.url("/"), "timeoutMs": 60_000, "policy": {"maxAttempts": 1}}))
        .await;
    slow.wait_for_calls(1).await;
    hanging.wait_for_calls(1).await;
    service.terminate();
    let (status, took) = service.wait_for_end(SHUTDOWN_MAX).await;
    println!("the service ended after {took:?}");
    assert_eq!(status.code(), Some(0));
    assert!(took > Duration::from_secs(2), "{took:?} is too soon for the slow call to end");

    let service = launch.start();
    let client = service.client();
    let task = client.wait_for_end(&finished).await;
    assert_eq!((&task["state"], &task["attemptNumber"]), (&json!("succeeded"), &json!(1)));
    assert_eq!(slow.count(), 1, "a finished attempt was made again");
    let task = client.wait_for_end(&released).await;
    // The policy allows only one attempt: if the released one were charged, the task would be dead.
    assert_eq!((&task["state"], &task["attemptNumber"]), (&json!("succeeded"), &json!(1)), "{task}");
    let calls = hanging.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].key(), calls[1].key());
}

#[tokio::test]
async fn an_idle_service_ends_at_once_although_a_subscriber_is_connected() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    client.get("/healthz").await;
    let events = client.send(http::Method::GET, "/v1/events", Default::default()).await.unwrap();
    service.terminate();
    let (status, took) = service.wait_for_end(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(12), "{took:?}");
    drop(events);
}
