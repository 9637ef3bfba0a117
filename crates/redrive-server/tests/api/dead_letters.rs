//! Operations on dead letters: each is visited once, and a restart goes on.

use std::time::Duration;

use redrive_server::Access;
use serde_json::{Value, json};

use crate::stage::Stage;

async fn dead(stage: &Stage, count: usize) {
    let items = vec![json!({"targetUrl": "http://example.com/a"}); count];
    stage.post("/retry-tasks/batch", json!({"items": items})).await;
    stage.kill().await;
}

async fn until(stage: &Stage, path: &str, is: impl Fn(&Value) -> bool) -> Value {
    let waiting = async {
        loop {
            let operation = stage.get(path).await.body;
            if is(&operation) {
                return operation;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the operation goes on")
}

async fn begin(stage: &Stage, verb: &str, request: Value) -> String {
    let begun = stage.post(&format!("/dead-letters/{verb}"), request).await;
    assert_eq!(begun.status, 202, "{}", begun.body);
    assert_eq!(begun.body["state"], "RUNNING");
    begun.header("location").unwrap().to_owned()
}

#[tokio::test]
async fn a_dry_run_counts_and_changes_nothing() {
    let stage = Stage::open().await;
    dead(&stage, 3).await;
    for (filter, matched) in [
        (json!({"dryRun": true}), 3),
        (json!({"dryRun": true, "reason": "NOT_RETRYABLE", "target": "http://example.com/"}), 3),
        (json!({"dryRun": true, "reason": "BODY_LOST"}), 0),
        (json!({"dryRun": true, "policyId": "other"}), 0),
        (json!({"dryRun": true, "finishedBefore": 5}), 0),
    ] {
        let counted = stage.post("/dead-letters/redrive", filter.clone()).await;
        assert_eq!((counted.status, &counted.body["matched"]), (200, &json!(matched)), "{filter}");
    }
    assert_eq!(stage.get("/dead-letters").await.body["items"].as_array().unwrap().len(), 3);
    for wrong in [json!({"canary": 0}), json!({"ratePerSecond": 0})] {
        assert_eq!(stage.post("/dead-letters/redrive", wrong).await.status, 422);
    }
}

#[tokio::test]
async fn redrive_and_discard_go_through_all_that_was_dead() {
    let stage = Stage::open().await;
    dead(&stage, 5).await;
    let path = begin(&stage, "redrive", json!({})).await;
    tokio::spawn(stage.api.clone().drive_operations());
    let done = until(&stage, &path, |operation| operation["state"] == "DONE").await;
    assert_eq!((&done["matched"], &done["done"], &done["failed"]), (&json!(5), &json!(5), &json!(0)));
    assert_eq!(stage.delete(&path).await.problem(), (409, "OPERATION_ENDED", None));
    stage.kill().await;
    let path = begin(&stage, "discard", json!({})).await;
    until(&stage, &path, |operation| operation["state"] == "DONE").await;
    assert_eq!(stage.get("/retry-tasks").await.body["items"], json!([]));
    stage.closing.cancel();
}

#[tokio::test]
async fn a_canary_that_dies_saves_the_rest() {
    let stage = Stage::open().await;
    dead(&stage, 5).await;
    let path = begin(&stage, "redrive", json!({"canary": 2})).await;
    tokio::spawn(stage.api.clone().drive_operations());
    until(&stage, &path, |operation| operation["done"] == 2).await;
    stage.kill().await;
    let failed = until(&stage, &path, |operation| operation["state"] == "CANARY_FAILED").await;
    assert_eq!(failed["done"], 2);
    let path = begin(&stage, "redrive", json!({"canary": 2})).await;
    until(&stage, &path, |operation| operation["done"] == 2).await;
    stage.complete().await;
    let done = until(&stage, &path, |operation| operation["state"] == "DONE").await;
    assert_eq!((&done["done"], &done["failed"]), (&json!(5), &json!(0)));
    stage.closing.cancel();
}

#[tokio::test]
async fn a_rate_holds_an_operation_back_and_another_node_takes_over_after_a_stop_of_the_first() {
    let stage = Stage::open().await;
    dead(&stage, 4).await;
    let path = begin(&stage, "redrive", json!({"ratePerSecond": 0.001})).await;
    let first = tokio::spawn(stage.api.clone().drive_operations());
    let slow = until(&stage, &path, |operation| operation["done"] == 1).await;
    assert_eq!(slow["state"], "RUNNING");
    stage.closing.cancel();
    first.await.unwrap();
    let second = Stage::on(stage.store.clone(), Access::OpenWithoutKeys).await;
    let kept = second.get(&path).await.body;
    assert_eq!((&kept["state"], &kept["done"]), (&json!("RUNNING"), &json!(1)));
    let stopped = second.delete(&path).await;
    assert_eq!((stopped.status, &stopped.body["state"]), (200, &json!("STOPPED")));
    assert_eq!(second.get("/dead-letters").await.body["items"].as_array().unwrap().len(), 3);
    assert_eq!(second.get("/operations").await.body["items"].as_array().unwrap().len(), 1);
}
