//! Operations on many jobs of any state: each is visited once, whatever happens to the node in between.

use std::time::Duration;

use redrive_core::records::{Change, Expect, Records as _};
use redrive_core::store::Store as _;
use redrive_core::{Job, JobId, State, Verdict};
use redrive_server::keys::Scope;
use serde_json::{Value, json};

use crate::stage::Stage;

/// A task that is due in an hour, with a body.
async fn later(stage: &Stage, body: &str) -> JobId {
    let task = json!({"targetUrl": "http://example.com/a", "delayMs": 3_600_000, "body": body});
    stage.post("/retry-tasks", task).await.id()
}

async fn job(stage: &Stage, id: JobId) -> Job {
    stage.store.get(vec![id]).await.unwrap().remove(0).unwrap()
}

async fn begin(stage: &Stage, request: Value) -> String {
    let begun = stage.post("/operations", request).await;
    assert_eq!((begun.status, &begun.body["state"]), (202, &json!("RUNNING")), "{}", begun.body);
    begun.header("location").unwrap().to_owned()
}

/// Waits until an operation has gone through everything.
async fn done(stage: &Stage, path: &str) -> Value {
    let waiting = async {
        loop {
            let operation = stage.get(path).await.body;
            if operation["state"] != "RUNNING" {
                return operation;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the operation goes on")
}

fn numbers(operation: &Value) -> (&Value, u64, u64, u64) {
    let number = |name: &str| operation[name].as_u64().unwrap();
    (&operation["state"], number("matched"), number("done"), number("failed"))
}

/// Puts an operation back to where it was before it acted: its node has died before it could save.
async fn rewind(stage: &Stage, path: &str) {
    let fields = [("state", json!("RUNNING")), ("cursor", Value::Null), ("finishedAt", Value::Null)];
    change(stage, path, &fields).await;
    change(stage, path, &[("owner", Value::Null), ("done", json!(0)), ("failed", json!(0))]).await;
}

/// Changes fields of an operation's record.
async fn change(stage: &Stage, path: &str, fields: &[(&str, Value)]) {
    let id = path.rsplit('/').next().unwrap();
    let record = stage.store.read("operation", id).await.unwrap().unwrap();
    let mut kept: Value = serde_json::from_slice(&record.value).unwrap();
    for (field, value) in fields {
        kept[*field] = value.clone();
    }
    overwrite(stage, path, serde_json::to_vec(&kept).unwrap()).await;
}

/// Replaces the record of an operation.
async fn overwrite(stage: &Stage, path: &str, value: Vec<u8>) {
    let id = path.rsplit('/').next().unwrap().to_owned();
    let change = Change { kind: "operation".into(), id, expect: Expect::Any, value: Some(value) };
    stage.store.write(change).await.unwrap();
}

/// Operations are visited in the order of their ids, so the first ones that fail would stop all the others.
#[tokio::test]
async fn operations_that_fail_do_not_block_those_behind_them() {
    let stage = Stage::open().await;
    let (first, last) = (later(&stage, "first").await, later(&stage, "last").await);
    let cancel = |text: &str| json!({"kind": "CANCEL", "filter": {"text": text}});
    let fails = begin(&stage, cancel("first")).await;
    let damaged = begin(&stage, cancel("damaged")).await;
    let paced =
        begin(&stage, json!({"kind": "RUN_NOW", "filter": {"text": "none"}, "ratePerSecond": 5})).await;
    let works = begin(&stage, cancel("last")).await;
    // The count is done; each step then fails at the cursor.
    change(&stage, &fails, &[("matched", json!(1)), ("cursor", json!("no cursor"))]).await;
    overwrite(&stage, &damaged, b"no operation".to_vec()).await;

    tokio::spawn(stage.api.clone().drive_operations());
    assert_eq!(numbers(&done(&stage, &works).await), (&json!("DONE"), 1, 1, 0));
    assert_eq!(numbers(&done(&stage, &paced).await), (&json!("DONE"), 0, 0, 0));
    assert_eq!(job(&stage, last).await.state, State::Cancelled);
    assert_eq!(stage.get(&fails).await.body["state"], "RUNNING", "it is not given up");
    assert_eq!(job(&stage, first).await.state, State::Pending);

    // One that begins later is not blocked either, and the first one goes on once its cause is gone.
    let later = begin(&stage, cancel("nothing has this")).await;
    assert_eq!(numbers(&done(&stage, &later).await), (&json!("DONE"), 0, 0, 0));
    change(&stage, &fails, &[("cursor", Value::Null)]).await;
    assert_eq!(numbers(&done(&stage, &fails).await), (&json!("DONE"), 1, 1, 0));
    assert_eq!(job(&stage, first).await.state, State::Cancelled);
}

#[tokio::test]
async fn a_cancel_ends_what_matches_and_asks_what_runs() {
    let stage = Stage::open().await;
    let running = stage.task().await;
    stage.claim().await;
    let (waits, other) = (later(&stage, "order-7 please").await, later(&stage, "order-8").await);
    tokio::spawn(stage.api.clone().drive_operations());
    let path = begin(&stage, json!({"kind": "CANCEL", "filter": {"text": "ORDER-7"}})).await;
    let operation = done(&stage, &path).await;
    assert_eq!(numbers(&operation), (&json!("DONE"), 1, 1, 0));
    assert_eq!(operation["filter"], json!({"text": "ORDER-7"}));
    assert_eq!(job(&stage, waits).await.state, State::Cancelled);
    assert_eq!(job(&stage, other).await.state, State::Pending);
    let path = begin(&stage, json!({"kind": "CANCEL"})).await;
    assert_eq!(numbers(&done(&stage, &path).await), (&json!("DONE"), 2, 2, 0));
    assert_eq!(job(&stage, other).await.state, State::Cancelled);
    let asked = job(&stage, running).await;
    assert_eq!((asked.state, asked.cancel_requested), (State::Running, true));

    // Its node died before it could save: what has ended, or was asked to end, is left alone.
    rewind(&stage, &path).await;
    let new = later(&stage, "new").await;
    assert_eq!(numbers(&done(&stage, &path).await), (&json!("DONE"), 2, 0, 0));
    assert_eq!(job(&stage, new).await.state, State::Pending, "it came after the operation began");
    stage.closing.cancel();
}

#[tokio::test]
async fn a_wait_is_skipped_once_even_if_the_node_dies_before_it_saves() {
    let stage = Stage::open().await;
    let (first, second) = (later(&stage, "a").await, later(&stage, "b").await);
    tokio::spawn(stage.api.clone().drive_operations());
    let path = begin(&stage, json!({"kind": "RUN_NOW", "filter": {"kind": "delivery"}})).await;
    assert_eq!(numbers(&done(&stage, &path).await), (&json!("DONE"), 2, 2, 0));
    let claimed = stage.claim().await;
    assert_eq!(claimed.len(), 2, "both are due");
    for job in &claimed {
        stage.settle(job, Verdict::Retry(Duration::from_secs(600))).await;
    }
    let planned = job(&stage, first).await.next_run_at;
    rewind(&stage, &path).await;
    assert_eq!(done(&stage, &path).await["state"], "DONE");
    assert_eq!(job(&stage, first).await.next_run_at, planned, "its new wait is not skipped");
    assert_eq!(job(&stage, second).await.state, State::Retrying);
    stage.closing.cancel();
}

#[tokio::test]
async fn a_canary_of_jobs_that_are_made_due_goes_first() {
    let stage = Stage::open().await;
    for _ in 0..4 {
        later(&stage, "x").await;
    }
    tokio::spawn(stage.api.clone().drive_operations());
    let path = begin(&stage, json!({"kind": "RUN_NOW", "canary": 1})).await;
    let first = async {
        loop {
            if let [job] = &stage.claim().await[..] {
                return job.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let first = tokio::time::timeout(Duration::from_secs(60), first).await.expect("one is due");
    stage.settle(&first, Verdict::Complete(None)).await;
    assert_eq!(numbers(&done(&stage, &path).await), (&json!("DONE"), 4, 4, 0));
    stage.closing.cancel();
}

#[tokio::test]
async fn a_dry_run_counts_what_each_kind_is_for() {
    let stage = Stage::open().await;
    later(&stage, "order-7").await;
    stage.task().await;
    stage.kill().await;
    stage.task().await;
    for (kind, filter, matched) in [
        ("REDRIVE", json!({}), 1),
        ("DISCARD", json!({"state": "dead", "reason": "NOT_RETRYABLE"}), 1),
        ("DISCARD", json!({"reason": "BODY_LOST"}), 0),
        ("CANCEL", json!({}), 2),
        ("CANCEL", json!({"text": "order-7"}), 1),
        ("CANCEL", json!({"kind": "receipt"}), 0),
        ("RUN_NOW", json!({"state": "pending", "tenant": ""}), 2),
        ("RUN_NOW", json!({"tenant": "acme"}), 0),
        ("RUN_NOW", json!({"createdBefore": 5}), 0),
    ] {
        let request = json!({"kind": kind, "filter": filter, "dryRun": true});
        let counted = stage.post("/operations", request.clone()).await;
        assert_eq!(counted.body, json!({"matched": matched, "atLeast": false}), "{request}");
    }
    assert_eq!(stage.get("/operations").await.body["items"], json!([]), "nothing was begun");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let stage = Stage::open().await;
    for (request, field) in [
        (json!({}), "kind"),
        (json!({"kind": "BURN"}), "kind"),
        (json!({"kind": "REDRIVE", "filter": {"state": "pending"}}), "filter.state"),
        (json!({"kind": "RUN_NOW", "filter": {"state": "waiting"}}), "filter.state"),
        (json!({"kind": "CANCEL", "filter": {"queue": ""}}), "filter.queue"),
        (json!({"kind": "CANCEL", "filter": {"text": "x".repeat(257)}}), "filter.text"),
        (json!({"kind": "CANCEL", "filter": {"size": 1}}), "filter.size"),
        (json!({"kind": "CANCEL", "canary": 1}), "canary"),
        (json!({"kind": "RUN_NOW", "canary": 101}), "canary"),
        (json!({"kind": "RUN_NOW", "ratePerSecond": -1}), "ratePerSecond"),
    ] {
        let refused = stage.post("/operations", request.clone()).await;
        assert_eq!(refused.problem(), (422, "INVALID", Some(field)), "{request}: {}", refused.body);
    }
}

#[tokio::test]
async fn a_tenant_operates_on_what_is_theirs() {
    let stage = Stage::open().await;
    later(&stage, "x").await;
    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Admin).await);
    let post = async |request: Value| {
        stage.send("POST", "/operations", Some(request), &[("authorization", &key)]).await
    };
    let counted = post(json!({"kind": "CANCEL", "dryRun": true})).await;
    assert_eq!(counted.body["matched"], 0);
    let named = post(json!({"kind": "CANCEL", "filter": {"tenant": ""}, "dryRun": true})).await;
    assert_eq!(named.problem(), (403, "FORBIDDEN", None));
    let own = post(json!({"kind": "CANCEL", "filter": {"tenant": "acme"}, "dryRun": true})).await;
    assert_eq!(own.status, 200, "{}", own.body);
}

/// A record as an earlier version wrote it: about tasks, without a state.
#[tokio::test]
async fn an_operation_of_an_earlier_version_goes_on() {
    let stage = Stage::open().await;
    let task = stage.task().await;
    stage.kill().await;
    let path = begin(&stage, json!({"kind": "REDRIVE", "filter": {"kind": "receipt"}})).await;
    let id = path.rsplit('/').next().unwrap();
    let record = stage.store.read("operation", id).await.unwrap().unwrap();
    let mut kept: Value = serde_json::from_slice(&record.value).unwrap();
    kept["filter"] = json!({"target": "http://example.com/"});
    for field in ["counted", "countCursor"] {
        kept.as_object_mut().unwrap().remove(field);
    }
    let value = Some(serde_json::to_vec(&kept).unwrap());
    let change = Change { kind: "operation".into(), id: id.into(), expect: Expect::Any, value };
    stage.store.write(change).await.unwrap();
    tokio::spawn(stage.api.clone().drive_operations());
    let operation = done(&stage, &path).await;
    assert_eq!(numbers(&operation), (&json!("DONE"), 1, 1, 0));
    let expected = json!({"state": "dead", "kind": "delivery", "subject": "http://example.com/"});
    assert_eq!(operation["filter"], expected);
    assert_eq!(job(&stage, task).await.state, State::Pending);
    stage.closing.cancel();
}
