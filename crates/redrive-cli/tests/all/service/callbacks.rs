//! How a task ended is delivered as a task of its own, created in the settlement: none is lost and none is doubled.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::crash::all_ended;
use crate::stage::{Launch, Reply, Target};

/// Processes that are killed.
const ROUNDS: usize = 5;
/// Tasks in each round.
const TASKS: usize = 60;

#[tokio::test]
async fn the_end_of_a_task_is_reported_to_who_the_task_or_its_policy_names() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|call| match call.path.as_str() {
        "/good" => Reply::Answer(200, "", "thank you".into()),
        _ => Reply::Answer(400, "", "no such order".into()),
    })
    .await;
    let listener = Target::start(|_| Reply::status(200)).await;
    let policy = json!({
        "policyId": "reporting", "onSuccessUrl": listener.url("/policy-success"),
        "onExhaustedUrl": listener.url("/policy-exhausted"),
    });
    client.post("/retry-policies", &policy).await.json(201);

    for (path, field, report, by_policy) in [
        ("/good", "onSuccessUrl", "/task-success", false),
        ("/bad", "onExhaustedUrl", "/task-exhausted", false),
        ("/good", "onSuccessUrl", "/policy-success", true),
        ("/bad", "onExhaustedUrl", "/policy-exhausted", true),
    ] {
        let mut task = json!({"targetUrl": target.url(path), "policyId": "reporting"});
        if !by_policy {
            task[field] = listener.url(report).into();
        }
        let before = listener.count();
        let id = client.create(&task).await;
        let ended = client.ended(&id).await;
        let call = listener.expect(before + 1).await.pop().unwrap();
        assert_eq!(call.path, report);
        assert_ne!(call.task_id(), id, "a task of its own");
        check_report(&call.json(), &ended, path);
        client.ended(call.task_id()).await;
    }
    assert_eq!(listener.count(), 4, "each end is reported once");
}

fn check_report(report: &Value, ended: &Value, path: &str) {
    let (kind, status, answer, excerpt) = match path {
        "/good" => ("task.succeeded", "SUCCEEDED", 200, "thank you"),
        _ => ("task.exhausted", "EXHAUSTED", 400, "no such order"),
    };
    assert_eq!(report["type"], kind);
    assert_eq!((&report["task"]["status"], &ended["status"]), (&json!(status), &json!(status)));
    assert_eq!(report["lastResponseStatus"], answer);
    assert_eq!(report["responseExcerpt"], excerpt);
    assert_eq!(report["lastError"], ended["lastError"]);
    assert_eq!(report["lastError"].is_null(), path == "/good", "{report}");
    for field in ["taskId", "targetUrl", "method", "policyId", "policyVersion", "attemptNumber", "reason"] {
        assert_eq!(report["task"][field], ended[field], "{field}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_exhausted_task_has_exactly_one_report_though_the_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new(folder.path()).flags(&["--lease-ms", "500"]);
    let target = Target::start(|_| Reply::status(400)).await;
    let listener = Target::start(|_| Reply::status(200)).await;
    // More attempts than are killed: the tasks end because of the answer, and not of the kills.
    let task = json!({
        "targetUrl": target.url("/"), "onExhaustedUrl": listener.url("/report"),
        "policy": {"maxAttempts": 20, "initialDelayMs": 1, "jitterType": "NONE"},
    });
    let mut service = launch.start();
    for round in 1..=ROUNDS {
        let items = vec![task.clone(); TASKS];
        service.client().post("/retry-tasks/batch", &json!({ "items": items })).await.json(200);
        // Somewhere among the settlements of the round.
        target.expect(fastrand::usize(1..=TASKS) + (round - 1) * TASKS).await;
        service.kill();
        service = launch.start();
    }
    let client = service.client();
    all_ended(&client).await;

    let dead = client.list(&format!("/dead-letters?target={}", target.origin())).await;
    assert_eq!(dead.len(), ROUNDS * TASKS);
    let mut reports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for call in listener.calls() {
        let subject = call.json()["task"]["taskId"].as_str().unwrap().to_owned();
        reports.entry(subject).or_default().insert(call.task_id().to_owned());
    }
    for task in &dead {
        let reports = reports.get(task["taskId"].as_str().unwrap());
        assert_eq!(reports.map_or(0, BTreeSet::len), 1, "{reports:?} for {task}");
    }
    let made = client.list(&format!("/retry-tasks?target={}", listener.origin())).await;
    assert_eq!(made.len(), dead.len(), "one report for each, delivered or not");
    assert!(made.iter().all(|report| report["status"] == "SUCCEEDED"));
}
