//! Every refusal is a problem with a code.

use axum::body::Body;
use axum::http::Request;

use crate::stage::{Answer, Stage};

async fn send(stage: &Stage, method: &str, path: &str, kind: Option<&str>, body: impl Into<Body>) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    if let Some(kind) = kind {
        request = request.header("content-type", kind);
    }
    stage.raw(request.body(body.into()).unwrap()).await
}

#[tokio::test]
async fn a_body_that_cannot_be_read_says_why() {
    let stage = Stage::open().await;
    let json = Some("application/json");
    for (kind, body, expected) in [
        (json, "{", (400, "MALFORMED_JSON", None)),
        (json, "", (400, "MALFORMED_JSON", None)),
        (json, "[]", (422, "INVALID", Some("body"))),
        (json, "{}", (422, "INVALID", Some("targetUrl"))),
        (json, r#"{"targetUrl":7}"#, (422, "INVALID", Some("targetUrl"))),
        (json, r#"{"targetUrl":"http://a/","x":1}"#, (422, "INVALID", Some("x"))),
        (None, "{}", (415, "UNSUPPORTED_MEDIA_TYPE", None)),
        (Some("text/plain"), "{}", (415, "UNSUPPORTED_MEDIA_TYPE", None)),
        (Some("Application/JSON; charset=utf-8"), "{}", (422, "INVALID", Some("targetUrl"))),
    ] {
        let refused = send(&stage, "POST", "/retry-tasks", kind, body).await;
        assert_eq!(refused.problem(), expected, "{kind:?} {body}: {}", refused.body);
    }
    let large = format!(r#"{{"targetUrl":"http://a/","body":"{}"}}"#, "x".repeat(2 << 20));
    let refused = send(&stage, "POST", "/retry-tasks", json, large).await;
    assert_eq!(refused.problem(), (413, "BODY_TOO_LARGE", None));
    assert!(refused.body["detail"].as_str().unwrap().contains("PUT /bodies"));
}

#[tokio::test]
async fn paths_methods_ids_and_queries_that_are_wrong_say_so() {
    let stage = Stage::open().await;
    let unknown = stage.get("/nothing").await;
    assert_eq!(unknown.problem(), (404, "NOT_FOUND", None));
    let method = stage.put("/retry-tasks", serde_json::json!({})).await;
    assert_eq!(method.problem(), (405, "METHOD_NOT_ALLOWED", None));
    let allow = method.header("allow").unwrap();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    for path in [
        "/retry-tasks/x",
        "/retry-tasks/%ff",
        "/retry-tasks/x/attempts",
        "/operations/x",
        "/retry-policies/%00",
    ] {
        assert_eq!(stage.get(path).await.problem(), (404, "NOT_FOUND", None), "{path}");
    }
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=1001", "limit"),
        ("cursor=x", "cursor"),
        ("status=DONE", "status"),
        ("createdAfter=x", "createdAfter"),
        ("other=1", "other"),
        ("policyId=", "policyId"),
    ] {
        let refused = stage.get(&format!("/retry-tasks?{query}")).await;
        assert_eq!(refused.problem(), (422, "INVALID", Some(field)), "{query}: {}", refused.body);
    }
}
