//! Every rejected request gets a problem with a code, and with the field that is wrong.

use axum::body::Body;
use axum::http::Request;

use crate::stage::{Answer, Stage};

async fn send(
    stage: &Stage,
    method: &str,
    path: &str,
    content_type: Option<&str>,
    body: impl Into<Body>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    if let Some(content_type) = content_type {
        request = request.header("content-type", content_type);
    }
    stage.raw(request.body(body.into()).unwrap()).await
}

#[tokio::test]
async fn an_unreadable_body_is_rejected_with_the_reason() {
    let stage = Stage::open().await;
    let json = Some("application/json");
    for (content_type, body, expected) in [
        (json, "{", (400, "malformed_json", None)),
        (json, "", (400, "malformed_json", None)),
        (json, "[]", (422, "invalid", Some("body"))),
        (json, "{}", (422, "invalid", Some("target"))),
        (json, r#"{"target":7}"#, (422, "invalid", Some("target"))),
        (json, r#"{"target":"http://a/","x":1}"#, (422, "invalid", Some("x"))),
        (None, "{}", (415, "unsupported_media_type", None)),
        (Some("text/plain"), "{}", (415, "unsupported_media_type", None)),
        (Some("Application/JSON; charset=utf-8"), "{}", (422, "invalid", Some("target"))),
    ] {
        let refused = send(&stage, "POST", "/v1/tasks", content_type, body).await;
        assert_eq!(refused.problem(), expected, "{content_type:?} {body}: {}", refused.body);
    }
    let large = format!(r#"{{"target":"http://a/","body":"{}"}}"#, "x".repeat(2 << 20));
    let refused = send(&stage, "POST", "/v1/tasks", json, large).await;
    assert_eq!(refused.problem(), (413, "body_too_large", None));
    assert!(refused.body["detail"].as_str().unwrap().contains("PUT /v1/bodies"));
}

#[tokio::test]
async fn wrong_paths_methods_ids_and_queries_have_their_own_codes() {
    let stage = Stage::open().await;
    let unknown = stage.get("/nothing").await;
    assert_eq!(unknown.problem(), (404, "not_found", None));
    let method = stage.put("/v1/tasks", serde_json::json!({})).await;
    assert_eq!(method.problem(), (405, "method_not_allowed", None));
    let allow = method.header("allow").unwrap();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    for path in
        ["/v1/tasks/x", "/v1/tasks/%ff", "/v1/tasks/x/attempts", "/v1/operations/x", "/v1/policies/%00"]
    {
        assert_eq!(stage.get(path).await.problem(), (404, "not_found", None), "{path}");
    }
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=1001", "limit"),
        ("cursor=x", "cursor"),
        ("state=done", "state"),
        ("createdAfter=x", "createdAfter"),
        ("other=1", "other"),
        ("policyId=", "policyId"),
    ] {
        let refused = stage.get(&format!("/v1/tasks?{query}")).await;
        assert_eq!(refused.problem(), (422, "invalid", Some(field)), "{query}: {}", refused.body);
    }
}
