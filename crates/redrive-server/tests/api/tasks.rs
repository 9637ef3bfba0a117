//! The routes of tasks: creating, listing, cancelling and redriving them, and why a task waits.

use std::time::Duration;

use redrive_core::{Reason, Verdict};
use serde_json::{Value, json};

use crate::stage::Stage;

fn hook(more: Value) -> Value {
    let mut task = json!({"target": "http://example.com/hook"});
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

#[tokio::test]
async fn a_created_task_is_returned_by_its_location() {
    let stage = Stage::open().await;
    let request = hook(json!({
        "method": "put", "headers": {"X-A": "1"}, "bodyJson": {"b": 2}, "idempotencyKey": "k-1", "delayMs": 60000,
        "priority": 7, "timeoutMs": 500, "onSuccessUrl": "http://example.com/ok",
    }));
    let created = stage.post("/v1/tasks", request).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let path = created.header("location").unwrap().to_owned();
    assert_eq!(path, format!("/v1/tasks/{}", created.id()));
    let mut found = stage.get(&path).await.body;
    // The response has the times of the node, and the store writes its own a little later.
    for time in ["createdAt", "nextAttemptAt"] {
        let (in_response, stored) = (created.body[time].as_i64().unwrap(), found[time].as_i64().unwrap());
        assert!((0..5_000).contains(&(stored - in_response)), "{time}: {in_response} {stored}");
        found[time] = created.body[time].clone();
    }
    assert_eq!(found, created.body);
    assert_eq!(found["headers"], json!({"X-A": "1", "content-type": "application/json"}));
    assert_eq!((&found["method"], &found["state"]), (&json!("PUT"), &json!("pending")));
    assert_eq!((&found["policyId"], &found["maxAttempts"]), (&json!("default"), &json!(8)));
}

#[tokio::test]
async fn a_repeated_request_with_the_same_key_returns_the_first_task() {
    let stage = Stage::open().await;
    let request = hook(json!({"idempotencyKey": "k", "body": "x", "delayMs": 10}));
    let first = stage.post("/v1/tasks", request.clone()).await;
    let again = stage.post("/v1/tasks", request).await;
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")));
    assert_eq!(again.id(), first.id());
    for other in [
        json!({"body": "y", "delayMs": 10}),
        json!({"body": "x"}),
        json!({"body": "x", "delayMs": 10, "method": "PUT"}),
        json!({"body": "x", "delayMs": 10, "headers": {"a": "b"}}),
        json!({"body": "x", "delayMs": 10, "priority": 1}),
        json!({"body": "x", "delayMs": 10, "timeoutMs": 1}),
        json!({"body": "x", "delayMs": 10, "policy": {"maxAttempts": 2}}),
        json!({"body": "x", "delayMs": 10, "onFailureUrl": "http://example.com/"}),
        json!({"body": "x", "delayMs": 10, "target": "http://example.com/other"}),
    ] {
        let mut other = hook(other);
        other["idempotencyKey"] = json!("k");
        let refused = stage.post("/v1/tasks", other.clone()).await;
        assert_eq!(refused.problem(), (422, "idempotency_key_reused", Some("idempotencyKey")), "{other}");
    }
}

#[tokio::test]
async fn the_header_sets_the_idempotency_key_and_the_request_id_does_not() {
    let stage = Stage::open().await;
    let send = async |headers: &[(&str, &str)]| {
        stage.send("POST", "/v1/tasks", Some(hook(json!({}))), headers).await
    };
    let first = send(&[("idempotency-key", "h")]).await;
    let again = send(&[("idempotency-key", "h")]).await;
    assert_eq!((first.status, again.status, first.id()), (201, 200, again.id()));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let one = send(&[("x-request-id", "r"), ("traceparent", trace)]).await;
    let two = send(&[("x-request-id", "r")]).await;
    assert_eq!((one.status, two.status), (201, 201));
    let job = stage.claim().await.into_iter().find(|job| job.id == one.id()).unwrap();
    assert_eq!(job.key, None);
    let context: Value = serde_json::from_str(job.metadata.as_deref().unwrap()).unwrap();
    assert_eq!(context, json!({"traceparent": trace}));
    for created in [&one, &two] {
        assert_eq!(
            created.body["idempotencyKey"],
            json!(created.id().to_string()),
            "a task without a key sends its own id"
        );
    }
    assert_eq!(send(&[("idempotency-key", "")]).await.status, 422);
}

#[tokio::test]
async fn a_callback_cannot_use_grpc() {
    let stage = Stage::open().await;
    for field in ["onSuccessUrl", "onFailureUrl"] {
        for url in ["grpc://example.com/shop.Orders/Done", "grpcs://example.com/shop.Orders/Done"] {
            let task = stage.post("/v1/tasks", hook(json!({field: url}))).await;
            assert_eq!(task.problem(), (422, "invalid", Some(field)), "{}", task.body);
            assert!(task.body["detail"].as_str().unwrap().contains("http or https"), "{}", task.body);
            let policy = stage.post("/v1/policies", json!({"policyId": "p", field: url})).await;
            assert_eq!(policy.problem(), (422, "invalid", Some(field)), "{}", policy.body);
            let batch = stage.post("/v1/tasks/batch", json!({"items": [hook(json!({field: url}))]})).await;
            assert_eq!(batch.body["items"][0]["status"], 422, "{}", batch.body);
        }
        let http = stage.post("/v1/tasks", hook(json!({field: "https://example.com/done"}))).await;
        assert_eq!(http.status, 201, "{}", http.body);
    }
}

#[tokio::test]
async fn tasks_are_filtered_and_paged_newest_first() {
    let stage = Stage::open().await;
    stage.post("/v1/policies", json!({"policyId": "p"})).await;
    let a = stage.post("/v1/tasks", hook(json!({"policyId": "p"}))).await.id().to_string();
    let b = stage.post("/v1/tasks", json!({"target": "http://other.example/"})).await.id().to_string();
    let c = stage.post("/v1/tasks", hook(json!({"idempotencyKey": "k"}))).await.id().to_string();
    let list = async |query: &str| -> Vec<String> {
        let page = stage.get(&format!("/v1/tasks?{query}")).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let id = |task: &Value| task["taskId"].as_str().unwrap().to_owned();
        page.body["items"].as_array().unwrap().iter().map(id).collect()
    };
    assert_eq!(list("").await, [c.clone(), b.clone(), a.clone()]);
    assert_eq!(list("policyId=p").await, [a.as_str()]);
    assert_eq!(list("target=http://other").await, [b.as_str()]);
    assert_eq!(list("idempotencyKey=k").await, [c.as_str()]);
    assert_eq!(list("state=succeeded").await, [""; 0]);
    assert_eq!(list("createdAfter=32503680000000").await, [""; 0]);
    assert_eq!(list("createdBefore=32503680000000&state=pending").await.len(), 3);
    let first = stage.get("/v1/tasks?limit=2").await.body;
    let cursor = first["nextCursor"].as_str().unwrap();
    assert_eq!(list(&format!("limit=2&cursor={cursor}")).await, [a]);
}

#[tokio::test]
async fn a_task_is_cancelled_once() {
    let stage = Stage::open().await;
    let path = format!("/v1/tasks/{}", stage.task().await);
    let cancelled = stage.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!((cancelled.status, &cancelled.body["state"]), (200, &json!("cancelled")));
    assert_eq!(stage.post(&format!("{path}/cancel"), json!({})).await.problem(), (409, "task_ended", None));
    let path = format!("/v1/tasks/{}", stage.task().await);
    stage.claim().await;
    let requested = stage.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!((requested.status, &requested.body["cancelRequested"]), (202, &json!(true)));
    assert_eq!(requested.body["state"], "running");
}

#[tokio::test]
async fn a_dead_task_keeps_its_attempt_log_and_can_be_redriven() {
    let stage = Stage::open().await;
    let id = stage.task().await;
    let path = format!("/v1/tasks/{id}");
    assert_eq!(stage.post(&format!("{path}/redrive"), json!({})).await.problem().1, "task_not_dead");
    let jobs = stage.claim().await;
    stage.settle(&jobs[0], Verdict::Retry(Duration::from_secs(60))).await;
    let waiting = stage.get(&path).await.body;
    assert_eq!((&waiting["state"], &waiting["attemptNumber"]), (&json!("retrying"), &json!(1)));
    assert_eq!((&waiting["lastResponseStatus"], &waiting["lastError"]), (&json!(503), &json!("status 503")));
    assert_eq!(stage.post(&format!("{path}/run-now"), json!({})).await.status, 200);
    let jobs = stage.claim().await;
    assert_eq!(stage.post(&format!("{path}/run-now"), json!({})).await.problem().1, "task_not_waiting");
    stage.settle(&jobs[0], Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
    let dead = stage.get(&path).await.body;
    assert_eq!((&dead["state"], &dead["reason"]), (&json!("dead"), &json!("attempts_exhausted")));
    let log = stage.get(&format!("{path}/attempts?limit=1")).await.body;
    let attempt = &log["items"][0];
    assert_eq!((&attempt["attemptNumber"], &attempt["ledTo"]), (&json!(2), &json!("dead")));
    assert_eq!((&attempt["responseStatus"], &attempt["responseExcerpt"]), (&json!(503), &json!("busy")));
    let next = log["nextCursor"].as_str().unwrap();
    let rest = stage.get(&format!("{path}/attempts?cursor={next}")).await.body;
    let attempt = &rest["items"][0];
    assert_eq!(
        (&attempt["attemptNumber"], &attempt["waitMs"]),
        (&json!(1), &json!(60000)),
        "the newest comes first"
    );
    let driven = stage.post(&format!("{path}/redrive"), json!({})).await;
    assert_eq!((driven.status, &driven.body["attemptNumber"]), (200, &json!(0)));
}

#[tokio::test]
async fn why_reports_the_reason_that_a_task_does_not_run() {
    let stage = Stage::open().await;
    let id = stage.post("/v1/tasks", hook(json!({"delayMs": 60000}))).await.id();
    let why = async || stage.get(&format!("/v1/tasks/{id}/why")).await.body;
    assert_eq!(why().await["because"], "waiting");
    assert_eq!(stage.post("/v1/queues/default/pause", json!({})).await.status, 204);
    assert_eq!(why().await["because"], "queue_paused");
    let queues = stage.get("/v1/queues").await.body;
    assert_eq!(queues["items"], json!([{"name": "default", "paused": true, "jobs": {"pending": 1}}]));
    assert_eq!(stage.post("/v1/queues/default/resume", json!({})).await.status, 204);
    stage.post(&format!("/v1/tasks/{id}/run-now"), json!({})).await;
    assert_eq!(why().await["because"], "due");
    let jobs = stage.claim().await;
    let leased = why().await;
    assert_eq!((&leased["because"], &leased["worker"]), (&json!("running"), &json!("w1")));
    stage.settle(&jobs[0], Verdict::DeadLetter(Reason::BudgetExceeded)).await;
    let ended = why().await;
    assert_eq!(ended["because"], "ended");
    assert!(ended["detail"].as_str().unwrap().contains("the time budget ran out"), "{ended}");
}

#[tokio::test]
async fn why_names_the_gate_only_for_a_task_that_it_holds() {
    let stage = Stage::open().await;
    let id = stage.task().await;
    let later = stage.post("/v1/tasks", hook(json!({"delayMs": 60000}))).await.id();
    stage.block_gate("http://example.com:80");
    let why = async |id| stage.get(&format!("/v1/tasks/{id}/why")).await.body;
    let jobs = stage.claim().await;
    stage.settle(&jobs[0], Verdict::Hold(Duration::from_secs(30))).await;
    let held = why(id).await;
    assert_eq!((&held["because"], &held["origin"]), (&json!("gate_holds"), &json!("http://example.com:80")));
    assert!(held["until"].is_i64());
    assert_eq!(why(later).await["because"], "waiting");
    let origin = &stage.get("/v1/origins").await.body["items"][0];
    assert_eq!((&origin["origin"], &origin["state"]), (&json!("http://example.com:80"), &json!("blocked")));
    let metrics = stage.get("/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains("retry_gate_state{origin=\"http://example.com:80\"} 2"));
}

#[tokio::test]
async fn an_invalid_task_is_rejected_with_its_field() {
    let stage = Stage::open().await;
    for (more, field) in [
        (json!({"target": "ftp://example.com/"}), "target"),
        (json!({"target": "http://user@example.com/"}), "target"),
        (json!({"method": "TRACE"}), "method"),
        (json!({"headers": {"Host": "x"}}), "headers"),
        (json!({"headers": {"a": "b\r\nc"}}), "headers"),
        (json!({"body": "x", "bodyJson": 1}), "bodyJson"),
        (json!({"bodyBase64": "%"}), "bodyBase64"),
        (json!({"bodyRef": "../x"}), "bodyRef"),
        (json!({"policyId": "none"}), "policyId"),
        (json!({"policyId": "default", "policy": {}}), "policy"),
        (json!({"policy": {"maxAttempts": 0}}), "policy.maxAttempts"),
        (json!({"policy": {"policyId": "x"}}), "policy.policyId"),
        (json!({"policy": {"other": 1}}), "policy.other"),
        (json!({"idempotencyKey": ""}), "idempotencyKey"),
        (json!({"idempotencyKey": "é"}), "idempotencyKey"),
        (json!({"delayMs": 1, "runAt": 1}), "runAt"),
        (json!({"delayMs": 31_536_000_001_u64}), "delayMs"),
        (json!({"runAt": i64::MAX}), "runAt"),
        (json!({"priority": 10}), "priority"),
        (json!({"priority": 1000}), "priority"),
        (json!({"timeoutMs": 0}), "timeoutMs"),
        (json!({"onSuccessUrl": "x"}), "onSuccessUrl"),
        (json!({"signingSecret": "none"}), "signingSecret"),
        (json!({"target": "grpc://example.com/a.B/C", "bodyJson": {}}), "bodyJson"),
        (json!({"other": 1}), "other"),
    ] {
        let refused = stage.post("/v1/tasks", hook(more.clone())).await;
        let (status, _, named) = refused.problem();
        assert_eq!((status, named), (422, Some(field)), "{more}: {}", refused.body);
    }
    assert_eq!(stage.post("/v1/tasks", hook(json!({"runAt": -5}))).await.status, 201);
}
