//! Large bodies and signing secrets.

use axum::body::Body;
use axum::http::Request;
use redrive_delivery::{Call, CallBody};
use serde_json::json;

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
