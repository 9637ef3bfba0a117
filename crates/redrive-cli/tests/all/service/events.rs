//! Changes of state as they happen, and the demonstration that shows them to newcomers.

use std::process::Stdio;
use std::time::Instant;

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::stage::{Launch, PATIENCE, Reply, Target, redrive};

#[tokio::test]
async fn a_listener_hears_of_each_change_of_its_task_and_of_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target =
        Target::start(|call| Reply::status(if call.path == "/" && call.number < 3 { 503 } else { 200 }))
            .await;
    let policy =
        json!({"maxAttempts": 5, "backoffType": "FIXED", "initialDelayMs": 20, "jitterType": "NONE"});
    let task = json!({"targetUrl": target.url("/"), "delayMs": 60_000, "policy": policy});
    let id = client.create(&task).await;
    let path = format!("/events?taskId={id}");
    let mut stream = client.send(Method::GET, &path, Default::default()).await.unwrap().into_body();
    client.ended(&client.create(&json!({"targetUrl": target.url("/other")})).await).await;
    client.post(&format!("/retry-tasks/{id}/run-now"), &json!({})).await.json(200);

    let listening = async {
        let (mut text, mut events) = (String::new(), Vec::new());
        while !events.last().is_some_and(|event: &Value| event["status"] == "SUCCEEDED") {
            let frame = stream.frame().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            events = data.filter_map(|json| serde_json::from_str(json).ok()).collect();
        }
        events
    };
    let events = tokio::time::timeout(PATIENCE, listening).await.unwrap();
    assert!(events.iter().all(|event| event["taskId"] == id), "{events:?}");
    let heard: Vec<_> = events
        .iter()
        .map(|event| (event["status"].as_str().unwrap(), event["attemptNumber"].as_u64().unwrap()))
        .collect();
    // The request that made it due tells of it as well, before the worker or after it.
    let mut rest = heard.iter();
    for expected in [("IN_FLIGHT", 1), ("PENDING", 1), ("IN_FLIGHT", 2), ("SUCCEEDED", 2)] {
        assert!(rest.any(|heard| *heard == expected), "{expected:?} is missing or late in {heard:?}");
    }
    let failed = events.iter().find(|event| event["responseStatus"] == 503).unwrap();
    assert!(failed["nextAttemptAt"].is_i64(), "{failed}");
}

#[test]
fn the_demonstration_shows_tasks_arriving_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let output = redrive(folder.path())
        .args(["demo", "--listen", "127.0.0.1:0", "--seconds", "5"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!((5..30).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("redrive listens on http://127.0.0.1:"), "{text}");
    let last =
        text.lines().rev().find(|line| line.contains(" succeeded, ")).unwrap_or_else(|| panic!("{text}"));
    let succeeded: u32 = last.split(' ').next().unwrap().parse().unwrap();
    assert!(succeeded > 0, "{text}");
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "it left something behind");
}
