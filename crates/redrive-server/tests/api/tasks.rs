//! The life of a task as its owner sees it.

use std::time::Duration;

use redrive_core::{Reason, Verdict};
use serde_json::{Value, json};

use crate::stage::Stage;

fn hook(more: Value) -> Value {
    let mut task = json!({"targetUrl": "http://example.com/hook"});
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

#[tokio::test]
async fn a_created_task_is_the_one_that_is_found() {
    let stage = Stage::open().await;
    let request = hook(json!({
        "method": "put", "headers": {"X-A": "1"}, "bodyJson": {"b": 2}, "idempotencyKey": "k-1", "delayMs": 60000,
        "priority": 7, "timeoutMs": 500, "onSuccessUrl": "http://example.com/ok",
    }));
    let created = stage.post("/retry-tasks", request).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let path = created.header("location").unwrap().to_owned();
    assert_eq!(path, format!("/retry-tasks/{}", created.id()));
    let mut found = stage.get(&path).await.body;
    // The store's clock has moved on since the answer was written.
    for time in ["createdAt", "nextAttemptAt"] {
        let (told, kept) = (created.body[time].as_i64().unwrap(), found[time].as_i64().unwrap());
        assert!((0..5_000).contains(&(kept - told)), "{time}: {told} {kept}");
        found[time] = created.body[time].clone();
    }
    assert_eq!(found, created.body);
    assert_eq!(found["headers"], json!({"X-A": "1", "content-type": "application/json"}));
    assert_eq!((&found["method"], &found["status"]), (&json!("PUT"), &json!("PENDING")));
    assert_eq!((&found["policyId"], &found["maxAttempts"]), (&json!("default"), &json!(8)));
}

#[tokio::test]
async fn the_same_request_under_the_same_key_is_the_same_task() {
    let stage = Stage::open().await;
    let request = hook(json!({"idempotencyKey": "k", "body": "x", "delayMs": 10}));
    let first = stage.post("/retry-tasks", request.clone()).await;
    let again = stage.post("/retry-tasks", request).await;
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
        json!({"body": "x", "delayMs": 10, "onExhaustedUrl": "http://example.com/"}),
        json!({"body": "x", "delayMs": 10, "targetUrl": "http://example.com/other"}),
    ] {
        let mut other = hook(other);
        other["idempotencyKey"] = json!("k");
        let refused = stage.post("/retry-tasks", other.clone()).await;
        assert_eq!(refused.problem(), (422, "IDEMPOTENCY_KEY_REUSED", Some("idempotencyKey")), "{other}");
    }
}

#[tokio::test]
async fn the_header_is_a_key_and_the_request_id_is_none() {
    let stage = Stage::open().await;
    let send = async |headers: &[(&str, &str)]| {
        stage.send("POST", "/retry-tasks", Some(hook(json!({}))), headers).await
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
    let passport: Value = serde_json::from_str(job.metadata.as_deref().unwrap()).unwrap();
    assert_eq!(passport, json!({"traceparent": trace}));
    for created in [&one, &two] {
        assert_eq!(created.body["idempotencyKey"], json!(created.id().to_string()), "one key for two tasks");
    }
    assert_eq!(send(&[("idempotency-key", "")]).await.status, 422);
}

#[tokio::test]
async fn an_outcome_cannot_be_reported_over_grpc() {
    let stage = Stage::open().await;
    for field in ["onSuccessUrl", "onExhaustedUrl"] {
        for url in ["grpc://example.com/shop.Orders/Done", "grpcs://example.com/shop.Orders/Done"] {
            let task = stage.post("/retry-tasks", hook(json!({field: url}))).await;
            assert_eq!(task.problem(), (422, "INVALID", Some(field)), "{}", task.body);
            assert!(task.body["detail"].as_str().unwrap().contains("http or https"), "{}", task.body);
            let policy = stage.post("/retry-policies", json!({"policyId": "p", field: url})).await;
            assert_eq!(policy.problem(), (422, "INVALID", Some(field)), "{}", policy.body);
            let batch = stage.post("/retry-tasks/batch", json!({"items": [hook(json!({field: url}))]})).await;
            assert_eq!(batch.body["items"][0]["status"], 422, "{}", batch.body);
        }
        let http = stage.post("/retry-tasks", hook(json!({field: "https://example.com/done"}))).await;
        assert_eq!(http.status, 201, "{}", http.body);
    }
}

#[tokio::test]
async fn tasks_are_filtered_and_paged_newest_first() {
    let stage = Stage::open().await;
    stage.post("/retry-policies", json!({"policyId": "p"})).await;
    let a = stage.post("/retry-tasks", hook(json!({"policyId": "p"}))).await.id().to_string();
    let b = stage.post("/retry-tasks", json!({"targetUrl": "http://other.example/"})).await.id().to_string();
    let c = stage.post("/retry-tasks", hook(json!({"idempotencyKey": "k"}))).await.id().to_string();
    let list = async |query: &str| -> Vec<String> {
        let page = stage.get(&format!("/retry-tasks?{query}")).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let id = |task: &Value| task["taskId"].as_str().unwrap().to_owned();
        page.body["items"].as_array().unwrap().iter().map(id).collect()
    };
    assert_eq!(list("").await, [c.clone(), b.clone(), a.clone()]);
    assert_eq!(list("policyId=p").await, [a.as_str()]);
    assert_eq!(list("target=http://other").await, [b.as_str()]);
    assert_eq!(list("idempotencyKey=k").await, [c.as_str()]);
    assert_eq!(list("status=SUCCEEDED").await, [""; 0]);
    assert_eq!(list("createdAfter=32503680000000").await, [""; 0]);
    assert_eq!(list("createdBefore=32503680000000&status=PENDING").await.len(), 3);
    let first = stage.get("/retry-tasks?limit=2").await.body;
    let cursor = first["nextCursor"].as_str().unwrap();
    assert_eq!(list(&format!("limit=2&cursor={cursor}")).await, [a]);
}

#[tokio::test]
async fn a_task_is_cancelled_once() {
    let stage = Stage::open().await;
    let path = format!("/retry-tasks/{}", stage.task().await);
    let cancelled = stage.delete(&path).await;
    assert_eq!((cancelled.status, &cancelled.body["status"]), (200, &json!("CANCELLED")));
    assert_eq!(stage.delete(&path).await.problem(), (409, "TASK_ENDED", None));
    let path = format!("/retry-tasks/{}", stage.task().await);
    stage.claim().await;
    let asked = stage.delete(&path).await;
    assert_eq!((asked.status, &asked.body["cancelRequested"]), (202, &json!(true)));
    assert_eq!(asked.body["status"], "IN_FLIGHT");
}

#[tokio::test]
async fn an_exhausted_task_keeps_its_evidence_and_can_be_driven_again() {
    let stage = Stage::open().await;
    let id = stage.task().await;
    let path = format!("/retry-tasks/{id}");
    assert_eq!(stage.post(&format!("{path}/redrive"), json!({})).await.problem().1, "TASK_NOT_EXHAUSTED");
    let jobs = stage.claim().await;
    stage.settle(&jobs[0], Verdict::Retry(Duration::from_secs(60))).await;
    let waiting = stage.get(&path).await.body;
    assert_eq!((&waiting["status"], &waiting["attemptNumber"]), (&json!("PENDING"), &json!(1)));
    assert_eq!((&waiting["lastResponseStatus"], &waiting["lastError"]), (&json!(503), &json!("status 503")));
    assert_eq!(stage.post(&format!("{path}/run-now"), json!({})).await.status, 200);
    let jobs = stage.claim().await;
    assert_eq!(stage.post(&format!("{path}/run-now"), json!({})).await.problem().1, "TASK_NOT_WAITING");
    stage.settle(&jobs[0], Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
    let dead = stage.get(&path).await.body;
    assert_eq!((&dead["status"], &dead["reason"]), (&json!("EXHAUSTED"), &json!("ATTEMPTS_EXHAUSTED")));
    let log = stage.get(&format!("{path}/attempts?limit=1")).await.body;
    let attempt = &log["items"][0];
    assert_eq!((&attempt["attemptNumber"], &attempt["waitMs"]), (&json!(1), &json!(60000)));
    assert_eq!((&attempt["responseStatus"], &attempt["responseExcerpt"]), (&json!(503), &json!("busy")));
    let next = log["nextCursor"].as_str().unwrap();
    let rest = stage.get(&format!("{path}/attempts?cursor={next}")).await.body;
    assert_eq!(rest["items"][0]["ledTo"], "EXHAUSTED");
    let driven = stage.post(&format!("{path}/redrive"), json!({})).await;
    assert_eq!((driven.status, &driven.body["attemptNumber"]), (200, &json!(0)));
}

#[tokio::test]
async fn why_says_what_holds_a_task() {
    let stage = Stage::open().await;
    let id = stage.post("/retry-tasks", hook(json!({"delayMs": 60000}))).await.id();
    let why = async || stage.get(&format!("/retry-tasks/{id}/why")).await.body;
    assert_eq!(why().await["because"], "WAITING");
    assert_eq!(stage.post("/queues/default/pause", json!({})).await.status, 204);
    assert_eq!(why().await["because"], "QUEUE_PAUSED");
    let queues = stage.get("/queues").await.body;
    assert_eq!(queues["items"], json!([{"name": "default", "paused": true, "jobs": {"pending": 1}}]));
    assert_eq!(stage.post("/queues/default/resume", json!({})).await.status, 204);
    stage.post(&format!("/retry-tasks/{id}/run-now"), json!({})).await;
    assert_eq!(why().await["because"], "DUE");
    let jobs = stage.claim().await;
    let leased = why().await;
    assert_eq!((&leased["because"], &leased["worker"]), (&json!("LEASED"), &json!("w1")));
    stage.settle(&jobs[0], Verdict::DeadLetter(Reason::BudgetExceeded)).await;
    let ended = why().await;
    assert_eq!(ended["because"], "ENDED");
    assert!(ended["detail"].as_str().unwrap().contains("BUDGET_EXCEEDED"), "{ended}");
}

#[tokio::test]
async fn why_names_the_gate_that_parked_a_task_and_not_one_it_has_not_come_to() {
    let stage = Stage::open().await;
    let id = stage.task().await;
    let later = stage.post("/retry-tasks", hook(json!({"delayMs": 60000}))).await.id();
    stage.close_gate("http://example.com:80");
    let why = async |id| stage.get(&format!("/retry-tasks/{id}/why")).await.body;
    let jobs = stage.claim().await;
    stage.settle(&jobs[0], Verdict::Park(Duration::from_secs(30))).await;
    let parked = why(id).await;
    assert_eq!(
        (&parked["because"], &parked["origin"]),
        (&json!("GATE_HOLDS"), &json!("http://example.com:80"))
    );
    assert!(parked["until"].is_i64());
    assert_eq!(why(later).await["because"], "WAITING");
    let origin = &stage.get("/origins").await.body["items"][0];
    assert_eq!((&origin["origin"], &origin["state"]), (&json!("http://example.com:80"), &json!("CLOSED")));
    let metrics = stage.get("/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains("retry_gate_state{origin=\"http://example.com:80\"} 2"));
}

#[tokio::test]
async fn what_is_wrong_with_a_task_names_its_field() {
    let stage = Stage::open().await;
    for (more, field) in [
        (json!({"targetUrl": "ftp://example.com/"}), "targetUrl"),
        (json!({"targetUrl": "http://user@example.com/"}), "targetUrl"),
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
        (json!({"targetUrl": "grpc://example.com/a.B/C", "bodyJson": {}}), "bodyJson"),
        (json!({"other": 1}), "other"),
    ] {
        let refused = stage.post("/retry-tasks", hook(more.clone())).await;
        let (status, _, named) = refused.problem();
        assert_eq!((status, named), (422, Some(field)), "{more}: {}", refused.body);
    }
    assert_eq!(stage.post("/retry-tasks", hook(json!({"runAt": -5}))).await.status, 201);
}
