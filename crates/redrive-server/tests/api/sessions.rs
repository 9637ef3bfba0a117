//! Sessions and event streams end with their key.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt as _;
use redrive_server::keys::{self, Scope};
use serde_json::json;
use tower::ServiceExt as _;

use crate::stage::Stage;

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

fn id_of(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

#[tokio::test]
async fn a_session_allows_what_its_key_allows_until_either_ends() {
    let stage = Stage::open().await;
    let key = stage.key(Some("acme"), Scope::Write).await;
    let open = async |credential: &str| {
        let headers = [("authorization", credential)];
        stage.send("POST", "/sessions", None, &headers).await
    };
    let opened = open(&bearer(&key)).await;
    assert_eq!(opened.status, 201, "{}", opened.body);
    let token = opened.body["token"].as_str().unwrap().to_owned();
    let session = bearer(&token);
    assert!(token.starts_with("rds_") && !token.contains(key.split('_').nth(2).unwrap()));
    let me = stage.send("GET", "/me", None, &[("authorization", &session)]).await.body;
    assert_eq!(
        (&me["scope"], &me["tenant"], &me["bodies"]),
        (&json!("write"), &json!("acme"), &json!(false))
    );
    assert_eq!(open(&session).await.status, 403, "a session opens no other");
    assert_eq!(open(&bearer(&format!("{token}x"))).await.status, 401);
    let second = bearer(open(&bearer(&key)).await.body["token"].as_str().unwrap());
    let ended = stage.send("DELETE", "/sessions/current", None, &[("authorization", &session)]).await;
    assert_eq!(ended.status, 204);
    let status = async |credential: &str| {
        stage.send("GET", "/jobs", None, &[("authorization", credential)]).await.status
    };
    assert_eq!((status(&session).await, status(&second).await), (401, 200));
    let admin = bearer(&stage.key(None, Scope::Admin).await);
    let path = format!("/keys/{}", id_of(&key));
    assert_eq!(stage.send("DELETE", &path, None, &[("authorization", &admin)]).await.status, 204);
    assert_eq!(status(&second).await, 401, "it ends with its key");
    assert_eq!(
        stage.send("DELETE", "/sessions/current", None, &[("authorization", &admin)]).await.status,
        404
    );
}

#[tokio::test]
async fn an_open_service_has_no_sessions() {
    let stage = Stage::open().await;
    assert_eq!(stage.post("/sessions", json!({})).await.problem(), (403, "FORBIDDEN", None));
}

/// Opens a stream of events and returns once it is open.
async fn listen(stage: &Stage, credential: Option<&str>) -> axum::body::BodyDataStream {
    let mut request = Request::get("/events").header("host", "localhost");
    if let Some(credential) = credential {
        request = request.header("authorization", credential);
    }
    let answer = stage.api.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.into_body().into_data_stream()
}

/// Whether a stream ends by itself. The time is generous: it takes about a second.
async fn ends(mut stream: axum::body::BodyDataStream) -> bool {
    let end = async { while stream.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(20), end).await.is_ok()
}

#[tokio::test]
async fn an_event_stream_ends_when_its_key_is_revoked_by_any_node() {
    let stage = Stage::open().await;
    let (key, other) = (stage.key(None, Scope::Read).await, stage.key(None, Scope::Read).await);
    let opened = stage.send("POST", "/sessions", None, &[("authorization", &bearer(&key))]).await.body;
    let session = bearer(opened["token"].as_str().unwrap());
    let streams = [listen(&stage, Some(&bearer(&key))).await, listen(&stage, Some(&session)).await];
    let mut kept = listen(&stage, Some(&bearer(&other))).await;
    // As another node does: this one is not told.
    assert!(keys::revoke(&*stage.store, id_of(&key)).await.unwrap());
    for stream in streams {
        assert!(ends(stream).await, "it goes on after its key was revoked");
    }
    let silent = tokio::time::timeout(Duration::from_millis(50), kept.next()).await;
    assert!(silent.is_err(), "that of another key goes on");
}

#[tokio::test]
async fn an_event_stream_without_a_key_ends_when_the_service_closes() {
    let stage = Stage::open().await;
    let stream = listen(&stage, None).await;
    stage.key(None, Scope::Read).await;
    assert!(ends(stream).await);
}
