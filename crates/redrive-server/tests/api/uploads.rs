//! Large bodies and signing secrets.

use axum::body::Body;
use axum::http::Request;
use redrive_core::Records as _;
use redrive_delivery::{Call, CallBody};
use serde_json::{Value, json};

use crate::stage::Stage;

#[tokio::test]
async fn an_uploaded_body_is_named_by_a_task() {
    let stage = Stage::open().await;
    let request = Request::builder()
        .method("PUT")
        .uri("/bodies")
        .header("host", "localhost")
        .body(Body::from(vec![7; 100_000]))
        .unwrap();
    let uploaded = stage.raw(request).await;
    assert_eq!((uploaded.status, &uploaded.body["bytes"]), (201, &json!(100_000)));
    let body_ref = uploaded.body["bodyRef"].as_str().unwrap();
    let task = json!({"targetUrl": "http://example.com/", "bodyRef": body_ref});
    let created = stage.post("/retry-tasks", task).await;
    assert_eq!((created.status, &created.body["bodyRef"]), (201, &json!(body_ref)), "{}", created.body);
    let mut forged = body_ref.to_owned();
    forged.replace_range(3..4, if forged[3..4] == *"0" { "1" } else { "0" });
    let refused =
        stage.post("/retry-tasks", json!({"targetUrl": "http://example.com/", "bodyRef": forged})).await;
    assert_eq!(refused.problem(), (422, "UNKNOWN_BODY", Some("bodyRef")));
    let announced = Request::builder()
        .method("PUT")
        .uri("/bodies")
        .header("host", "localhost")
        .header("content-length", (64 << 20) + 1);
    let refused = stage.raw(announced.body(Body::empty()).unwrap()).await;
    assert_eq!(refused.problem(), (413, "BODY_TOO_LARGE", None));
}

#[tokio::test]
async fn a_large_body_goes_to_the_object_store_and_a_small_one_to_the_row() {
    let stage = Stage::open().await;
    for (length, inline) in [(65_536, true), (65_537, false)] {
        let task = json!({"targetUrl": "http://example.com/", "body": "x".repeat(length)});
        let created = stage.post("/retry-tasks", task).await;
        assert_eq!((created.status, created.body["bodyRef"].is_null()), (201, inline));
    }
    let calls: Vec<_> =
        stage.claim().await.iter().map(|job| Call::decode(&job.payload).unwrap().body).collect();
    assert!(calls.iter().any(|body| matches!(body, CallBody::Inline(bytes) if bytes.len() == 65_536)));
    assert!(calls.iter().any(|body| matches!(body, CallBody::Stored(_))));
}

/// How many bodies there are, and how many tasks have claimed one.
async fn bodies_and_claims(stage: &Stage) -> (usize, usize) {
    let records = stage.store.scan("body", None, 10_000).await.unwrap();
    let claims = records.iter().map(|record| {
        let body: Value = serde_json::from_slice(&record.value).unwrap();
        body["tasks"].as_array().unwrap().len()
    });
    (records.len(), claims.sum())
}

async fn upload(stage: &Stage) -> String {
    let request = Request::builder().method("PUT").uri("/bodies").header("host", "localhost");
    let request = request.body(Body::from(vec![7; 100_000])).unwrap();
    stage.raw(request).await.body["bodyRef"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_repeated_creation_stores_and_claims_no_body_again() {
    let stage = Stage::open().await;
    let named =
        json!({"targetUrl": "http://example.com/", "bodyRef": upload(&stage).await, "idempotencyKey": "a"});
    let large =
        json!({"targetUrl": "http://example.com/", "body": "x".repeat(70_000), "idempotencyKey": "b"});
    for (task, repeats) in [(named.clone(), redrive_delivery::bodies::TASKS_MAX + 1), (large.clone(), 3)] {
        let first = stage.post("/retry-tasks", task.clone()).await;
        assert_eq!(first.status, 201, "{}", first.body);
        let before = bodies_and_claims(&stage).await;
        for repeat in 1..=repeats {
            let again = stage.post("/retry-tasks", task.clone()).await;
            assert_eq!((again.status, again.id()), (200, first.id()), "repeat {repeat}: {}", again.body);
            assert_eq!(again.header("idempotency-replayed"), Some("true"));
        }
        let mut other = task;
        other["headers"] = json!({"x-other": "request"});
        let refused = stage.post("/retry-tasks", other).await;
        assert_eq!(refused.problem(), (422, "IDEMPOTENCY_KEY_REUSED", Some("idempotencyKey")));
        assert_eq!(bodies_and_claims(&stage).await, before);
    }

    let mut fresh = large.clone();
    fresh["idempotencyKey"] = json!("c");
    let mut conflict = fresh.clone();
    conflict["headers"] = json!({"x-other": "request"});
    let items = json!({"items": [named, fresh, large, fresh, conflict, {"targetUrl": "x"}, named]});
    let before = bodies_and_claims(&stage).await;
    let answer = stage.post("/retry-tasks/batch", items).await;
    let items = answer.body["items"].as_array().unwrap();
    let statuses: Vec<u64> = items.iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 201, 200, 200, 422, 422, 200], "{}", answer.body);
    assert_eq!(items[1]["task"]["taskId"], items[3]["task"]["taskId"]);
    assert_eq!(items[0]["task"]["taskId"], items[6]["task"]["taskId"]);
    assert_eq!(items[4]["problem"]["code"], "IDEMPOTENCY_KEY_REUSED");
    let (bodies, claims) = bodies_and_claims(&stage).await;
    assert_eq!(claims, before.1 + 1, "of the batch only the new task has claimed a body");
    assert!(bodies <= before.0 + 2, "the new task and the conflict within the batch have stored one");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_equal_creations_at_once_one_keeps_its_body() {
    let stage = Stage::open().await;
    let task = json!({"targetUrl": "http://example.com/", "body": "x".repeat(70_000), "idempotencyKey": "k"});
    let answers = (0..16).map(|_| stage.post("/retry-tasks", task.clone()));
    let answers = futures_util::future::join_all(answers).await;
    let created: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!(created.len(), 1);
    assert!(answers.iter().all(|answer| answer.id() == created[0].id()));
    assert_eq!(bodies_and_claims(&stage).await.1, 1, "what was stored for nothing is let go");
}

#[tokio::test]
async fn a_secret_is_shown_once_and_rotated() {
    let stage = Stage::open().await;
    let made = stage.put("/signing-secrets/main", json!({})).await;
    assert_eq!(made.status, 201);
    assert!(made.body["secret"].as_str().unwrap().starts_with("whsec_"));
    let rotated = stage.send("PUT", "/signing-secrets/main", None, &[]).await;
    assert_eq!(rotated.status, 200);
    assert_ne!(rotated.body["secret"], made.body["secret"]);
    let listed = stage.get("/signing-secrets").await.body;
    assert_eq!(
        (&listed["items"][0]["name"], &listed["items"][0]["hasPrevious"]),
        (&json!("main"), &json!(true))
    );
    assert!(!listed.to_string().contains("whsec_"));
    let task = json!({"targetUrl": "http://example.com/", "signingSecret": "main"});
    assert_eq!(stage.post("/retry-tasks", task).await.status, 201);
    assert_eq!(stage.delete("/signing-secrets/main/previous").await.status, 204);
    assert_eq!(stage.delete("/signing-secrets/main").await.status, 204);
    assert_eq!(stage.delete("/signing-secrets/main").await.status, 404);
    let wrong = stage.put("/signing-secrets/main", json!({"secret": "x"})).await;
    assert_eq!(wrong.problem(), (422, "INVALID", Some("secret")));
}
