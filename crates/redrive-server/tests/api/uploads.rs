//! Large bodies and signing secrets.

use axum::body::Body;
use axum::http::Request;
use redrive_core::RecordStore as _;
use redrive_delivery::{Call, CallBody};
use serde_json::{Value, json};

use crate::stage::Stage;

#[tokio::test]
async fn a_task_can_refer_to_an_uploaded_body() {
    let stage = Stage::open().await;
    let request = Request::builder()
        .method("PUT")
        .uri("/v1/bodies")
        .header("host", "localhost")
        .body(Body::from(vec![7; 100_000]))
        .unwrap();
    let uploaded = stage.raw(request).await;
    assert_eq!((uploaded.status, &uploaded.body["bytes"]), (201, &json!(100_000)));
    let body_ref = uploaded.body["bodyRef"].as_str().unwrap();
    let task = json!({"target": "http://example.com/", "bodyRef": body_ref});
    let created = stage.post("/v1/tasks", task).await;
    assert_eq!((created.status, &created.body["bodyRef"]), (201, &json!(body_ref)), "{}", created.body);
    let mut forged = body_ref.to_owned();
    forged.replace_range(3..4, if forged[3..4] == *"0" { "1" } else { "0" });
    let refused = stage.post("/v1/tasks", json!({"target": "http://example.com/", "bodyRef": forged})).await;
    assert_eq!(refused.problem(), (422, "unknown_body", Some("bodyRef")));
    let too_large = Request::builder()
        .method("PUT")
        .uri("/v1/bodies")
        .header("host", "localhost")
        .header("content-length", (64 << 20) + 1);
    let refused = stage.raw(too_large.body(Body::empty()).unwrap()).await;
    assert_eq!(refused.problem(), (413, "body_too_large", None));
}

#[tokio::test]
async fn a_large_body_is_stored_in_the_object_store_and_a_small_one_in_the_row() {
    let stage = Stage::open().await;
    for (length, inline) in [(65_536, true), (65_537, false)] {
        let task = json!({"target": "http://example.com/", "body": "x".repeat(length)});
        let created = stage.post("/v1/tasks", task).await;
        assert_eq!((created.status, created.body["bodyRef"].is_null()), (201, inline));
    }
    let calls: Vec<_> =
        stage.claim().await.iter().map(|job| Call::decode(&job.payload).unwrap().body).collect();
    assert!(calls.iter().any(|body| matches!(body, CallBody::Inline(bytes) if bytes.len() == 65_536)));
    assert!(calls.iter().any(|body| matches!(body, CallBody::Stored(_))));
}

/// The number of stored bodies, and the number of tasks that they are attached to.
async fn bodies_and_attachments(stage: &Stage) -> (usize, usize) {
    let records = stage.store.scan("body", None, 10_000).await.unwrap();
    let attachments = records.iter().map(|record| {
        let body: Value = serde_json::from_slice(&record.value).unwrap();
        body["tasks"].as_array().unwrap().len()
    });
    (records.len(), attachments.sum())
}

async fn upload(stage: &Stage) -> String {
    let request = Request::builder().method("PUT").uri("/v1/bodies").header("host", "localhost");
    let request = request.body(Body::from(vec![7; 100_000])).unwrap();
    stage.raw(request).await.body["bodyRef"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_repeated_request_stores_and_attaches_no_body_again() {
    let stage = Stage::open().await;
    let named =
        json!({"target": "http://example.com/", "bodyRef": upload(&stage).await, "idempotencyKey": "a"});
    let large = json!({"target": "http://example.com/", "body": "x".repeat(70_000), "idempotencyKey": "b"});
    for (task, repeats) in
        [(named.clone(), redrive_delivery::bodies::TASKS_PER_BODY_MAX + 1), (large.clone(), 3)]
    {
        let first = stage.post("/v1/tasks", task.clone()).await;
        assert_eq!(first.status, 201, "{}", first.body);
        let before = bodies_and_attachments(&stage).await;
        for repeat in 1..=repeats {
            let again = stage.post("/v1/tasks", task.clone()).await;
            assert_eq!((again.status, again.id()), (200, first.id()), "repeat {repeat}: {}", again.body);
            assert_eq!(again.header("idempotency-replayed"), Some("true"));
        }
        let mut other = task;
        other["headers"] = json!({"x-other": "request"});
        let refused = stage.post("/v1/tasks", other).await;
        assert_eq!(refused.problem(), (422, "idempotency_key_reused", Some("idempotencyKey")));
        assert_eq!(bodies_and_attachments(&stage).await, before);
    }

    let mut fresh = large.clone();
    fresh["idempotencyKey"] = json!("c");
    let mut conflict = fresh.clone();
    conflict["headers"] = json!({"x-other": "request"});
    let items = json!({"items": [named, fresh, large, fresh, conflict, {"target": "x"}, named]});
    let before = bodies_and_attachments(&stage).await;
    let answer = stage.post("/v1/tasks/batch", items).await;
    let items = answer.body["items"].as_array().unwrap();
    let statuses: Vec<u64> = items.iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 201, 200, 200, 422, 422, 200], "{}", answer.body);
    assert_eq!(items[1]["task"]["taskId"], items[3]["task"]["taskId"]);
    assert_eq!(items[0]["task"]["taskId"], items[6]["task"]["taskId"]);
    assert_eq!(items[4]["problem"]["code"], "idempotency_key_reused");
    let (bodies, attachments) = bodies_and_attachments(&stage).await;
    assert_eq!(attachments, before.1 + 1, "only the new task of the batch has a body attached");
    assert!(bodies <= before.0 + 2, "only the new task and the conflict within the batch have stored a body");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_equal_concurrent_requests_only_one_keeps_its_body() {
    let stage = Stage::open().await;
    let task = json!({"target": "http://example.com/", "body": "x".repeat(70_000), "idempotencyKey": "k"});
    let answers = (0..16).map(|_| stage.post("/v1/tasks", task.clone()));
    let answers = futures_util::future::join_all(answers).await;
    let created: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!(created.len(), 1);
    assert!(answers.iter().all(|answer| answer.id() == created[0].id()));
    assert_eq!(bodies_and_attachments(&stage).await.1, 1, "the bodies of repeated requests are released");
}

#[tokio::test]
async fn a_signing_secret_is_shown_once_and_can_be_rotated() {
    let stage = Stage::open().await;
    let made = stage.put("/v1/signing-secrets/main", json!({})).await;
    assert_eq!(made.status, 201);
    assert!(made.body["secret"].as_str().unwrap().starts_with("whsec_"));
    let rotated = stage.send("PUT", "/v1/signing-secrets/main", None, &[]).await;
    assert_eq!(rotated.status, 200);
    assert_ne!(rotated.body["secret"], made.body["secret"]);
    let listed = stage.get("/v1/signing-secrets").await.body;
    assert_eq!(
        (&listed["items"][0]["name"], &listed["items"][0]["hasPrevious"]),
        (&json!("main"), &json!(true))
    );
    assert!(!listed.to_string().contains("whsec_"));
    let task = json!({"target": "http://example.com/", "signingSecret": "main"});
    assert_eq!(stage.post("/v1/tasks", task).await.status, 201);
    assert_eq!(stage.delete("/v1/signing-secrets/main/previous").await.status, 204);
    assert_eq!(stage.delete("/v1/signing-secrets/main").await.status, 204);
    assert_eq!(stage.delete("/v1/signing-secrets/main").await.status, 404);
    let wrong = stage.put("/v1/signing-secrets/main", json!({"secret": "x"})).await;
    assert_eq!(wrong.problem(), (422, "invalid", Some("secret")));
}
