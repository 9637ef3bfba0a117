//! SIGTERM: what runs may finish, what does not is handed back, and the next process goes on with it.

use std::time::Duration;

use serde_json::json;

use crate::stage::{Launch, Reply, Target};

/// How long running attempts may take to finish, and some more.
const DRAIN_AND_MORE: Duration = Duration::from_secs(20 + 10);

#[tokio::test]
async fn a_stopped_service_finishes_what_it_can_and_hands_back_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new(folder.path());
    let slow = Target::start(|_| Reply::after_ms(2_000, Reply::status(200))).await;
    let hanging = Target::start(|call| if call.number == 1 { Reply::Hang } else { Reply::status(200) }).await;

    let service = launch.start();
    let client = service.client();
    let finished = client.create(&json!({"targetUrl": slow.url("/"), "timeoutMs": 60_000})).await;
    let released = client
        .create(&json!({"targetUrl": hanging.url("/"), "timeoutMs": 60_000, "policy": {"maxAttempts": 1}}))
        .await;
    slow.expect(1).await;
    hanging.expect(1).await;
    service.terminate();
    let (status, took) = service.end(DRAIN_AND_MORE).await;
    println!("it ended after {took:?}");
    assert_eq!(status.code(), Some(0));
    assert!(took > Duration::from_secs(2), "{took:?} is too soon for the slow call to end");

    let service = launch.start();
    let client = service.client();
    let task = client.ended(&finished).await;
    assert_eq!((&task["status"], &task["attemptNumber"]), (&json!("SUCCEEDED"), &json!(1)));
    assert_eq!(slow.count(), 1, "an attempt that could finish was made again");
    let task = client.ended(&released).await;
    // It was the only attempt that its policy allows: charged, the task would be exhausted.
    assert_eq!((&task["status"], &task["attemptNumber"]), (&json!("SUCCEEDED"), &json!(1)), "{task}");
    let calls = hanging.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].key(), calls[1].key());
}

#[tokio::test]
async fn a_service_with_nothing_to_do_ends_at_once_even_while_someone_listens() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    client.get("/healthz").await;
    let events = client.send(http::Method::GET, "/events", Default::default()).await.unwrap();
    service.terminate();
    let (status, took) = service.end(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(12), "{took:?}");
    drop(events);
}
