//! Operations on dead letters: each job is visited once, and another node continues an operation after a shutdown.

use std::time::Duration;

use redrive_server::Access;
use serde_json::{Value, json};

use crate::stage::Stage;

async fn create_dead_letters(stage: &Stage, count: usize) {
    let items = vec![json!({"target": "http://example.com/a"}); count];
    stage.post("/v1/tasks/batch", json!({"items": items})).await;
    stage.kill().await;
}

/// Polls an operation until `condition` holds.
async fn wait_until(stage: &Stage, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let waiting = async {
        loop {
            let operation = stage.get(path).await.body;
            if condition(&operation) {
                return operation;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the operation makes progress")
}

/// Creates an operation and returns its path.
async fn start(stage: &Stage, kind: &str, mut request: Value) -> String {
    request["kind"] = json!(kind);
    let created = stage.post("/v1/operations", request).await;
    assert_eq!(created.status, 202, "{}", created.body);
    assert_eq!(created.body["state"], "running");
    created.header("location").unwrap().to_owned()
}

#[tokio::test]
async fn a_dry_run_counts_and_changes_nothing() {
    let stage = Stage::open().await;
    create_dead_letters(&stage, 3).await;
    for (filter, matched) in [
        (json!({}), 3),
        (json!({"reason": "not_retryable", "target": "http://example.com/"}), 3),
        (json!({"reason": "body_lost"}), 0),
        (json!({"policyId": "other"}), 0),
        (json!({"finishedBefore": 5}), 0),
    ] {
        let request = json!({"kind": "redrive", "dryRun": true, "filter": filter});
        let counted = stage.post("/v1/operations", request).await;
        assert_eq!((counted.status, &counted.body["matched"]), (200, &json!(matched)), "{filter}");
    }
    assert_eq!(stage.get("/v1/dead-letters").await.body["items"].as_array().unwrap().len(), 3);
    for wrong in [json!({"kind": "redrive", "canary": 0}), json!({"kind": "redrive", "ratePerSecond": 0})] {
        assert_eq!(stage.post("/v1/operations", wrong).await.status, 422);
    }
}

#[tokio::test]
async fn redrive_and_discard_visit_every_dead_letter() {
    let stage = Stage::open().await;
    create_dead_letters(&stage, 5).await;
    let path = start(&stage, "redrive", json!({})).await;
    tokio::spawn(stage.api.clone().run_operations());
    let done = wait_until(&stage, &path, |operation| operation["state"] == "done").await;
    assert_eq!((&done["matched"], &done["done"], &done["failed"]), (&json!(5), &json!(5), &json!(0)));
    assert_eq!(
        stage.post(&format!("{path}/cancel"), json!({})).await.problem(),
        (409, "operation_ended", None)
    );
    stage.kill().await;
    let path = start(&stage, "discard", json!({})).await;
    wait_until(&stage, &path, |operation| operation["state"] == "done").await;
    assert_eq!(stage.get("/v1/tasks").await.body["items"], json!([]));
    stage.closing.cancel();
}

#[tokio::test]
async fn a_canary_that_dies_stops_the_operation() {
    let stage = Stage::open().await;
    create_dead_letters(&stage, 5).await;
    let path = start(&stage, "redrive", json!({"canary": 2})).await;
    tokio::spawn(stage.api.clone().run_operations());
    wait_until(&stage, &path, |operation| operation["done"] == 2).await;
    stage.kill().await;
    let failed = wait_until(&stage, &path, |operation| operation["state"] == "canary_failed").await;
    assert_eq!(failed["done"], 2);
    let path = start(&stage, "redrive", json!({"canary": 2})).await;
    wait_until(&stage, &path, |operation| operation["done"] == 2).await;
    stage.complete().await;
    let done = wait_until(&stage, &path, |operation| operation["state"] == "done").await;
    assert_eq!((&done["done"], &done["failed"]), (&json!(5), &json!(0)));
    stage.closing.cancel();
}

#[tokio::test]
async fn a_rate_limits_an_operation_and_another_node_continues_it_after_a_shutdown() {
    let stage = Stage::open().await;
    create_dead_letters(&stage, 4).await;
    let path = start(&stage, "redrive", json!({"ratePerSecond": 0.001})).await;
    let first = tokio::spawn(stage.api.clone().run_operations());
    let slow = wait_until(&stage, &path, |operation| operation["done"] == 1).await;
    assert_eq!(slow["state"], "running");
    stage.closing.cancel();
    first.await.unwrap();
    let second = Stage::on(stage.store.clone(), Access::OpenWithoutKeys).await;
    let continued = second.get(&path).await.body;
    assert_eq!((&continued["state"], &continued["done"]), (&json!("running"), &json!(1)));
    let cancelled = second.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!((cancelled.status, &cancelled.body["state"]), (200, &json!("cancelled")));
    assert_eq!(second.get("/v1/dead-letters").await.body["items"].as_array().unwrap().len(), 3);
    assert_eq!(second.get("/v1/operations").await.body["items"].as_array().unwrap().len(), 1);
}
