//! The event stream, and `redrive demo`.

use std::process::Stdio;
use std::time::Instant;

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::fixtures::{Launch, Reply, TIMEOUT, Target, redrive};

#[tokio::test]
async fn a_subscriber_gets_each_change_of_its_task_and_no_other_event() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target =
        Target::start(|call| Reply::status(if call.path == "/" && call.number < 3 { 503 } else { 200 }))
            .await;
    let policy =
        json!({"maxAttempts": 5, "backoffType": "fixed", "initialDelayMs": 20, "jitterType": "none"});
    let task = json!({"target": target.url("/"), "delayMs": 60_000, "policy": policy});
    let id = client.create(&task).await;
    let path = format!("/v1/events?taskId={id}");
    let mut stream = client.send(Method::GET, &path, Default::default()).await.unwrap().into_body();
    client.wait_for_end(&client.create(&json!({"target": target.url("/other")})).await).await;
    client.post(&format!("/v1/tasks/{id}/run-now"), &json!({})).await.json(200);

    let read_events = async {
        let (mut text, mut events) = (String::new(), Vec::new());
        while !events.last().is_some_and(|event: &Value| event["state"] == "succeeded") {
            let frame = stream.frame().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            events = data.filter_map(|json| serde_json::from_str(json).ok()).collect();
        }
        events
    };
    let events = tokio::time::timeout(TIMEOUT, read_events).await.unwrap();
    assert!(events.iter().all(|event| event["taskId"] == id), "{events:?}");
    let changes: Vec<_> = events
        .iter()
        .map(|event| (event["state"].as_str().unwrap(), event["attemptNumber"].as_u64().unwrap()))
        .collect();
    // The run-now request also sends an event, before or after those of the worker.
    let mut rest = changes.iter();
    for expected in [("running", 1), ("retrying", 1), ("running", 2), ("succeeded", 2)] {
        assert!(rest.any(|change| *change == expected), "{expected:?} is missing or late in {changes:?}");
    }
    let failed = events.iter().find(|event| event["responseStatus"] == 503).unwrap();
    assert!(failed["nextAttemptAt"].is_i64(), "{failed}");
}

#[test]
fn the_demo_delivers_tasks_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let output = redrive(folder.path())
        .args(["demo", "--listen", "127.0.0.1:0", "--seconds", "5"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!((5..30).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("redrive listens on http://127.0.0.1:"), "{text}");
    let last =
        text.lines().rev().find(|line| line.contains(" succeeded, ")).unwrap_or_else(|| panic!("{text}"));
    let succeeded: u32 = last.split(' ').next().unwrap().parse().unwrap();
    assert!(succeeded > 0, "{text}");
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "the demo left files behind");
}
