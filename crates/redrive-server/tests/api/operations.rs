//! Operations on jobs in any state: each job is visited once, even if the node dies in between.

use std::time::Duration;

use redrive_core::records::{Precondition, RecordStore as _, RecordWrite};
use redrive_core::store::Store as _;
use redrive_core::{Job, JobId, State, Verdict};
use redrive_wire::Scope;
use serde_json::{Value, json};

use crate::stage::Stage;

/// Creates a task with this body that is due in an hour.
async fn create_delayed(stage: &Stage, body: &str) -> JobId {
    let task = json!({"target": "http://example.com/a", "delayMs": 3_600_000, "body": body});
    stage.post("/v1/tasks", task).await.id()
}

async fn job(stage: &Stage, id: JobId) -> Job {
    stage.store.get(vec![id]).await.unwrap().remove(0).unwrap()
}

/// Creates an operation and returns its path.
async fn start(stage: &Stage, request: Value) -> String {
    let created = stage.post("/v1/operations", request).await;
    assert_eq!((created.status, &created.body["state"]), (202, &json!("running")), "{}", created.body);
    created.header("location").unwrap().to_owned()
}

/// Waits until an operation has ended.
async fn wait_until_ended(stage: &Stage, path: &str) -> Value {
    let waiting = async {
        loop {
            let operation = stage.get(path).await.body;
            if operation["state"] != "running" {
                return operation;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the operation ends")
}

/// The state, and the numbers of jobs that matched, were changed and failed.
fn progress(operation: &Value) -> (&Value, u64, u64, u64) {
    let number = |name: &str| operation[name].as_u64().unwrap();
    (&operation["state"], number("matched"), number("done"), number("failed"))
}

/// Resets an operation to its state before its first step, as if its node had died before it saved its progress.
async fn reset_progress(stage: &Stage, path: &str) {
    let fields = [("state", json!("running")), ("cursor", Value::Null), ("finishedAt", Value::Null)];
    change(stage, path, &fields).await;
    change(stage, path, &[("owner", Value::Null), ("done", json!(0)), ("failed", json!(0))]).await;
}

/// Changes fields of an operation's record.
async fn change(stage: &Stage, path: &str, fields: &[(&str, Value)]) {
    let id = path.rsplit('/').next().unwrap();
    let record = stage.store.read("operation", id).await.unwrap().unwrap();
    let mut operation: Value = serde_json::from_slice(&record.value).unwrap();
    for (field, value) in fields {
        operation[*field] = value.clone();
    }
    overwrite(stage, path, serde_json::to_vec(&operation).unwrap()).await;
}

/// Replaces the record of an operation.
async fn overwrite(stage: &Stage, path: &str, value: Vec<u8>) {
    let id = path.rsplit('/').next().unwrap().to_owned();
    let change = RecordWrite { kind: "operation".into(), id, expect: Precondition::Any, value: Some(value) };
    stage.store.write(change).await.unwrap();
}

/// A node runs operations in the order of their ids, so a failing one must not stop those with higher ids.
#[tokio::test]
async fn operations_that_fail_do_not_block_later_ones() {
    let stage = Stage::open().await;
    let (first, last) = (create_delayed(&stage, "first").await, create_delayed(&stage, "last").await);
    let cancel = |text: &str| json!({"kind": "cancel", "filter": {"text": text}});
    let fails = start(&stage, cancel("first")).await;
    let damaged = start(&stage, cancel("damaged")).await;
    let paced =
        start(&stage, json!({"kind": "run_now", "filter": {"text": "none"}, "ratePerSecond": 5})).await;
    let works = start(&stage, cancel("last")).await;
    // The count is already done. Each step fails because the cursor is invalid.
    change(&stage, &fails, &[("matched", json!(1)), ("cursor", json!("no cursor"))]).await;
    overwrite(&stage, &damaged, b"no operation".to_vec()).await;

    tokio::spawn(stage.api.clone().run_operations());
    assert_eq!(progress(&wait_until_ended(&stage, &works).await), (&json!("done"), 1, 1, 0));
    assert_eq!(progress(&wait_until_ended(&stage, &paced).await), (&json!("done"), 0, 0, 0));
    assert_eq!(job(&stage, last).await.state, State::Cancelled);
    assert_eq!(stage.get(&fails).await.body["state"], "running", "a failing operation is tried again");
    assert_eq!(job(&stage, first).await.state, State::Pending);

    // An operation that is created later is not blocked either. The failing one continues once its cursor is valid.
    let later = start(&stage, cancel("nothing has this")).await;
    assert_eq!(progress(&wait_until_ended(&stage, &later).await), (&json!("done"), 0, 0, 0));
    change(&stage, &fails, &[("cursor", Value::Null)]).await;
    assert_eq!(progress(&wait_until_ended(&stage, &fails).await), (&json!("done"), 1, 1, 0));
    assert_eq!(job(&stage, first).await.state, State::Cancelled);
}

#[tokio::test]
async fn a_cancel_ends_matching_jobs_and_requests_the_end_of_running_ones() {
    let stage = Stage::open().await;
    let running = stage.task().await;
    stage.claim().await;
    let (matching, other) =
        (create_delayed(&stage, "order-7 please").await, create_delayed(&stage, "order-8").await);
    tokio::spawn(stage.api.clone().run_operations());
    let path = start(&stage, json!({"kind": "cancel", "filter": {"text": "ORDER-7"}})).await;
    let operation = wait_until_ended(&stage, &path).await;
    assert_eq!(progress(&operation), (&json!("done"), 1, 1, 0));
    assert_eq!(operation["filter"], json!({"text": "ORDER-7"}));
    assert_eq!(job(&stage, matching).await.state, State::Cancelled);
    assert_eq!(job(&stage, other).await.state, State::Pending);
    let path = start(&stage, json!({"kind": "cancel"})).await;
    assert_eq!(progress(&wait_until_ended(&stage, &path).await), (&json!("done"), 2, 2, 0));
    assert_eq!(job(&stage, other).await.state, State::Cancelled);
    let requested = job(&stage, running).await;
    assert_eq!((requested.state, requested.cancel_requested), (State::Running, true));

    // The node dies before it saves its progress. The repeated operation changes no job that has ended or whose end was requested.
    reset_progress(&stage, &path).await;
    let new = create_delayed(&stage, "new").await;
    assert_eq!(progress(&wait_until_ended(&stage, &path).await), (&json!("done"), 2, 0, 0));
    assert_eq!(
        job(&stage, new).await.state,
        State::Pending,
        "the operation skips jobs that were created after it"
    );
    stage.closing.cancel();
}

#[tokio::test]
async fn a_job_is_made_due_once_even_if_the_node_dies_before_it_saves_its_progress() {
    let stage = Stage::open().await;
    let (first, second) = (create_delayed(&stage, "a").await, create_delayed(&stage, "b").await);
    tokio::spawn(stage.api.clone().run_operations());
    let path = start(&stage, json!({"kind": "run_now", "filter": {"kind": "delivery"}})).await;
    assert_eq!(progress(&wait_until_ended(&stage, &path).await), (&json!("done"), 2, 2, 0));
    let claimed = stage.claim().await;
    assert_eq!(claimed.len(), 2, "both are due");
    for job in &claimed {
        stage.settle(job, Verdict::Retry(Duration::from_secs(600))).await;
    }
    let planned = job(&stage, first).await.next_run_at;
    reset_progress(&stage, &path).await;
    assert_eq!(wait_until_ended(&stage, &path).await["state"], "done");
    assert_eq!(
        job(&stage, first).await.next_run_at,
        planned,
        "the repeated operation does not skip the new wait"
    );
    assert_eq!(job(&stage, second).await.state, State::Retrying);
    stage.closing.cancel();
}

#[tokio::test]
async fn run_now_makes_its_canary_due_first() {
    let stage = Stage::open().await;
    for _ in 0..4 {
        create_delayed(&stage, "x").await;
    }
    tokio::spawn(stage.api.clone().run_operations());
    let path = start(&stage, json!({"kind": "run_now", "canary": 1})).await;
    let first = async {
        loop {
            if let [job] = &stage.claim().await[..] {
                return job.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let first = tokio::time::timeout(Duration::from_secs(60), first).await.expect("the canary is due");
    stage.settle(&first, Verdict::Complete(None)).await;
    assert_eq!(progress(&wait_until_ended(&stage, &path).await), (&json!("done"), 4, 4, 0));
    stage.closing.cancel();
}

#[tokio::test]
async fn a_dry_run_counts_the_jobs_that_each_kind_would_change() {
    let stage = Stage::open().await;
    create_delayed(&stage, "order-7").await;
    stage.task().await;
    stage.kill().await;
    stage.task().await;
    for (kind, filter, matched) in [
        ("redrive", json!({}), 1),
        ("discard", json!({"state": "dead", "reason": "not_retryable"}), 1),
        ("discard", json!({"reason": "body_lost"}), 0),
        ("cancel", json!({}), 2),
        ("cancel", json!({"text": "order-7"}), 1),
        ("cancel", json!({"kind": "receipt"}), 0),
        ("run_now", json!({"state": "pending", "tenant": ""}), 2),
        ("run_now", json!({"tenant": "acme"}), 0),
        ("run_now", json!({"createdBefore": 5}), 0),
    ] {
        let request = json!({"kind": kind, "filter": filter, "dryRun": true});
        let counted = stage.post("/v1/operations", request.clone()).await;
        assert_eq!(counted.body, json!({"matched": matched, "atLeast": false}), "{request}");
    }
    assert_eq!(stage.get("/v1/operations").await.body["items"], json!([]), "a dry run creates no operation");
}

#[tokio::test]
async fn an_invalid_request_is_rejected_with_its_field() {
    let stage = Stage::open().await;
    for (request, field) in [
        (json!({}), "kind"),
        (json!({"kind": "BURN"}), "kind"),
        (json!({"kind": "redrive", "filter": {"state": "pending"}}), "filter.state"),
        (json!({"kind": "run_now", "filter": {"state": "dead"}}), "filter.state"),
        (json!({"kind": "cancel", "filter": {"queue": ""}}), "filter.queue"),
        (json!({"kind": "cancel", "filter": {"text": "x".repeat(257)}}), "filter.text"),
        (json!({"kind": "cancel", "filter": {"size": 1}}), "filter.size"),
        (json!({"kind": "cancel", "canary": 1}), "canary"),
        (json!({"kind": "run_now", "canary": 101}), "canary"),
        (json!({"kind": "run_now", "ratePerSecond": -1}), "ratePerSecond"),
    ] {
        let refused = stage.post("/v1/operations", request.clone()).await;
        assert_eq!(refused.problem(), (422, "invalid", Some(field)), "{request}: {}", refused.body);
    }
}

#[tokio::test]
async fn a_bound_key_operates_only_on_jobs_of_its_tenant() {
    let stage = Stage::open().await;
    create_delayed(&stage, "x").await;
    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Admin).await);
    let post = async |request: Value| {
        stage.send("POST", "/v1/operations", Some(request), &[("authorization", &key)]).await
    };
    let counted = post(json!({"kind": "cancel", "dryRun": true})).await;
    assert_eq!(counted.body["matched"], 0);
    let named = post(json!({"kind": "cancel", "filter": {"tenant": ""}, "dryRun": true})).await;
    assert_eq!(named.problem(), (403, "forbidden", None));
    let own = post(json!({"kind": "cancel", "filter": {"tenant": "acme"}, "dryRun": true})).await;
    assert_eq!(own.status, 200, "{}", own.body);
}

/// The records of earlier versions have a filter of tasks, without a state.
#[tokio::test]
async fn an_operation_of_an_earlier_version_continues() {
    let stage = Stage::open().await;
    let task = stage.task().await;
    stage.kill().await;
    let path = start(&stage, json!({"kind": "redrive", "filter": {"kind": "receipt"}})).await;
    let id = path.rsplit('/').next().unwrap();
    let record = stage.store.read("operation", id).await.unwrap().unwrap();
    let mut old: Value = serde_json::from_slice(&record.value).unwrap();
    old["filter"] = json!({"target": "http://example.com/"});
    for field in ["counted", "countCursor"] {
        old.as_object_mut().unwrap().remove(field);
    }
    let value = Some(serde_json::to_vec(&old).unwrap());
    let change = RecordWrite { kind: "operation".into(), id: id.into(), expect: Precondition::Any, value };
    stage.store.write(change).await.unwrap();
    tokio::spawn(stage.api.clone().run_operations());
    let operation = wait_until_ended(&stage, &path).await;
    assert_eq!(progress(&operation), (&json!("done"), 1, 1, 0));
    let expected = json!({"state": "dead", "kind": "delivery", "target": "http://example.com/"});
    assert_eq!(operation["filter"], expected);
    assert_eq!(job(&stage, task).await.state, State::Pending);
    stage.closing.cancel();
}
