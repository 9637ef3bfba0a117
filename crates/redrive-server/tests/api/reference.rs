//! The paths and fields of the reference document, which are aliases of `/v1`.

use std::time::Duration;

use redrive_core::{Reason, Verdict};
use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn a_task_of_the_reference_document_is_created_shown_and_cancelled() {
    let stage = Stage::open().await;
    let request = json!({
        "targetUrl": "http://example.com/hook",
        "idempotencyKey": "order-7",
        "onExhaustedUrl": "http://example.com/failed",
        "policy": {"maxAttempts": 3, "jitterType": "EQUAL", "visibilityTimeoutMs": 5000},
    });
    let created = stage.post("/retry-tasks", request.clone()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let path = created.header("location").unwrap().to_owned();
    assert_eq!(path, format!("/retry-tasks/{}", created.id()));
    assert_eq!(stage.post("/retry-tasks", request).await.status, 200);
    let task = stage.get(&path).await.body;
    let field = |name: &str| task[name].clone();
    assert_eq!((field("status"), field("attemptNumber")), (json!("PENDING"), json!(0)), "{task}");
    assert_eq!(field("targetUrl"), "http://example.com/hook");
    assert_eq!(field("onExhaustedUrl"), "http://example.com/failed");
    assert!(task["nextAttemptAt"].is_i64() && task["state"].is_null() && task["target"].is_null(), "{task}");
    let same = stage.get(&format!("/v1/tasks/{}", created.id())).await.body;
    assert_eq!((&same["state"], &same["target"]), (&json!("pending"), &task["targetUrl"]));
    let cancelled = stage.delete(&path).await;
    assert_eq!((cancelled.status, &cancelled.body["status"]), (200, &json!("CANCELLED")));
    assert_eq!(stage.delete(&path).await.problem(), (409, "TASK_ENDED", None));
}

#[tokio::test]
async fn the_attempts_of_a_task_have_the_names_of_the_reference_document() {
    let stage = Stage::open().await;
    let created = stage.post("/retry-tasks", json!({"targetUrl": "http://example.com/hook"})).await;
    let path = format!("/retry-tasks/{}", created.id());
    let jobs = stage.claim().await;
    assert_eq!(stage.get(&path).await.body["status"], "IN_FLIGHT");
    stage.settle(&jobs[0], Verdict::Retry(Duration::ZERO)).await;
    let jobs = stage.claim().await;
    stage.settle(&jobs[0], Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
    let task = stage.get(&path).await.body;
    assert_eq!((&task["status"], &task["reason"]), (&json!("EXHAUSTED"), &json!("ATTEMPTS_EXHAUSTED")));
    let first = stage.get(&format!("{path}/attempts?limit=1")).await.body;
    assert_eq!(
        (&first["items"][0]["ledTo"], &first["items"][0]["responseStatus"]),
        (&json!("EXHAUSTED"), &json!(503))
    );
    let next = first["nextCursor"].as_str().unwrap();
    let rest = stage.get(&format!("{path}/attempts?cursor={next}")).await.body;
    assert_eq!(
        (&rest["items"][0]["ledTo"], &rest["items"][0]["phase"]),
        (&json!("PENDING"), &json!("ANSWERED"))
    );
}

#[tokio::test]
async fn a_policy_of_the_reference_document_is_registered_once() {
    let stage = Stage::open().await;
    let policy = json!({
        "policyId": "orders", "maxAttempts": 5, "initialDelayMs": 200, "multiplier": 3.0, "maxDelayMs": 60_000,
        "totalBudgetMs": 600_000, "jitterType": "DECORRELATED", "retryableStatusCodes": [429, 503],
    });
    let created = stage.post("/retry-policies", policy.clone()).await;
    assert_eq!((created.status, created.header("location")), (201, Some("/retry-policies/orders")));
    assert_eq!(stage.post("/retry-policies", policy).await.status, 200);
    let shown = stage.get("/retry-policies/orders").await.body;
    assert_eq!(
        (&shown["jitterType"], &shown["backoffType"]),
        (&json!("DECORRELATED"), &json!("EXPONENTIAL"))
    );
    let other = stage.post("/retry-policies", json!({"policyId": "orders", "maxAttempts": 4})).await;
    assert_eq!(other.problem(), (409, "POLICY_CONFLICT", None));
}

#[tokio::test]
async fn a_wrong_field_is_named_as_the_caller_wrote_it() {
    let stage = Stage::open().await;
    for (request, field) in [
        (json!({"targetUrl": "x"}), "targetUrl"),
        (json!({"targetUrl": "http://a.example/", "onExhaustedUrl": "x"}), "onExhaustedUrl"),
        (
            json!({"targetUrl": "http://a.example/", "policy": {"visibilityTimeoutMs": 1}}),
            "policy.visibilityTimeoutMs",
        ),
    ] {
        let rejected = stage.post("/retry-tasks", request).await;
        assert_eq!(rejected.problem(), (422, "INVALID", Some(field)), "{}", rejected.body);
    }
    for (method, path) in [("PUT", "/retry-tasks"), ("GET", "/retry-tasks"), ("DELETE", "/retry-policies/p")]
    {
        assert_eq!(
            stage.send(method, path, None, &[]).await.problem(),
            (404, "not_found", None),
            "{method} {path}"
        );
    }
}
