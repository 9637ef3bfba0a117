//! Callbacks: the settlement that ends a task also creates the callback task, so none is lost and none is doubled.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::fixtures::{Launch, Reply, Target};
use crate::service::crash::wait_until_all_ended;

/// The number of processes that are killed.
const ROUNDS: usize = 5;
/// The number of tasks in each round.
const TASKS: usize = 60;

#[tokio::test]
async fn the_end_of_a_task_is_reported_to_the_url_of_the_task_or_its_policy() {
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
        "onFailureUrl": listener.url("/policy-failure"),
    });
    client.post("/v1/policies", &policy).await.json(201);

    for (path, field, report, by_policy) in [
        ("/good", "onSuccessUrl", "/task-success", false),
        ("/bad", "onFailureUrl", "/task-failure", false),
        ("/good", "onSuccessUrl", "/policy-success", true),
        ("/bad", "onFailureUrl", "/policy-failure", true),
    ] {
        let mut task = json!({"target": target.url(path), "policyId": "reporting"});
        if !by_policy {
            task[field] = listener.url(report).into();
        }
        let before = listener.count();
        let id = client.create(&task).await;
        let ended = client.wait_for_end(&id).await;
        let call = listener.wait_for_calls(before + 1).await.pop().unwrap();
        assert_eq!(call.path, report);
        assert_ne!(call.task_id(), id, "the callback is another task");
        check_report(&call.json(), &ended, path);
        client.wait_for_end(call.task_id()).await;
    }
    assert_eq!(listener.count(), 4, "each end is reported once");
}

fn check_report(report: &Value, ended: &Value, path: &str) {
    let (kind, status, answer, excerpt) = match path {
        "/good" => ("task.succeeded", "succeeded", 200, "thank you"),
        _ => ("task.dead", "dead", 400, "no such order"),
    };
    assert_eq!(report["type"], kind);
    assert_eq!((&report["task"]["state"], &ended["state"]), (&json!(status), &json!(status)));
    assert_eq!(report["lastResponseStatus"], answer);
    assert_eq!(report["responseExcerpt"], excerpt);
    assert_eq!(report["lastError"], ended["lastError"]);
    assert_eq!(report["lastError"].is_null(), path == "/good", "{report}");
    for field in ["taskId", "target", "method", "policyId", "policyVersion", "attemptNumber", "reason"] {
        assert_eq!(report["task"][field], ended[field], "{field}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_dead_task_has_exactly_one_callback_although_the_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new(folder.path()).flags(&["--lease", "500ms"]);
    let target = Target::start(|_| Reply::status(400)).await;
    let listener = Target::start(|_| Reply::status(200)).await;
    // There are more attempts than kills, so the tasks end because of the answer and not because of the
    // kills.
    let task = json!({
        "target": target.url("/"), "onFailureUrl": listener.url("/report"),
        "policy": {"maxAttempts": 20, "initialDelayMs": 1, "jitterType": "none"},
    });
    let mut service = launch.start();
    for round in 1..=ROUNDS {
        let items = vec![task.clone(); TASKS];
        service.client().post("/v1/tasks/batch", &json!({ "items": items })).await.json(200);
        // The kill comes at a random point of the settlements of the round.
        target.wait_for_calls(fastrand::usize(1..=TASKS) + (round - 1) * TASKS).await;
        service.kill();
        service = launch.start();
    }
    let client = service.client();
    wait_until_all_ended(&client).await;

    let dead = client.list(&format!("/v1/dead-letters?target={}", target.origin())).await;
    assert_eq!(dead.len(), ROUNDS * TASKS);
    let mut reports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for call in listener.calls() {
        let task_id = call.json()["task"]["taskId"].as_str().unwrap().to_owned();
        reports.entry(task_id).or_default().insert(call.task_id().to_owned());
    }
    for task in &dead {
        let reports = reports.get(task["taskId"].as_str().unwrap());
        assert_eq!(reports.map_or(0, BTreeSet::len), 1, "{reports:?} for {task}");
    }
    let callbacks = client.list(&format!("/v1/tasks?target={}", listener.origin())).await;
    assert_eq!(callbacks.len(), dead.len(), "one callback for each dead task");
    assert!(callbacks.iter().all(|report| report["state"] == "succeeded"));
}
