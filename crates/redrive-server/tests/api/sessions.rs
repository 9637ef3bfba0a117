//! Sessions and event streams end when their key is revoked.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt as _;
use redrive_server::keys;
use redrive_wire::Scope;
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
async fn a_session_has_the_permissions_of_its_key_until_either_ends() {
    let stage = Stage::open().await;
    let key = stage.key(Some("acme"), Scope::Write).await;
    let open = async |credential: &str| {
        let headers = [("authorization", credential)];
        stage.send("POST", "/v1/sessions", None, &headers).await
    };
    let opened = open(&bearer(&key)).await;
    assert_eq!(opened.status, 201, "{}", opened.body);
    let token = opened.body["token"].as_str().unwrap().to_owned();
    let session = bearer(&token);
    assert!(token.starts_with("rds_") && !token.contains(key.split('_').nth(2).unwrap()));
    let me = stage.send("GET", "/v1/me", None, &[("authorization", &session)]).await.body;
    assert_eq!(
        (&me["scope"], &me["tenant"], &me["bodies"]),
        (&json!("write"), &json!("acme"), &json!(false))
    );
    assert_eq!(open(&session).await.status, 403, "a session cannot open another session");
    assert_eq!(open(&bearer(&format!("{token}x"))).await.status, 401);
    let second = bearer(open(&bearer(&key)).await.body["token"].as_str().unwrap());
    let ended = stage.send("DELETE", "/v1/sessions/current", None, &[("authorization", &session)]).await;
    assert_eq!(ended.status, 204);
    let status = async |credential: &str| {
        stage.send("GET", "/v1/jobs", None, &[("authorization", credential)]).await.status
    };
    assert_eq!((status(&session).await, status(&second).await), (401, 200));
    let admin = bearer(&stage.key(None, Scope::Admin).await);
    let path = format!("/v1/keys/{}", id_of(&key));
    assert_eq!(stage.send("DELETE", &path, None, &[("authorization", &admin)]).await.status, 204);
    assert_eq!(status(&second).await, 401, "the session ends with its key");
    assert_eq!(
        stage.send("DELETE", "/v1/sessions/current", None, &[("authorization", &admin)]).await.status,
        404
    );
}

#[tokio::test]
async fn an_open_service_has_no_sessions() {
    let stage = Stage::open().await;
    assert_eq!(stage.post("/v1/sessions", json!({})).await.problem(), (403, "forbidden", None));
}

/// Opens a stream of events.
async fn listen(stage: &Stage, credential: Option<&str>) -> axum::body::BodyDataStream {
    let mut request = Request::get("/v1/events").header("host", "localhost");
    if let Some(credential) = credential {
        request = request.header("authorization", credential);
    }
    let answer = stage.api.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.into_body().into_data_stream()
}

/// Whether the service ends a stream. This usually takes about a second.
async fn ends(mut stream: axum::body::BodyDataStream) -> bool {
    let end = async { while stream.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(20), end).await.is_ok()
}

#[tokio::test]
async fn an_event_stream_ends_when_another_node_revokes_its_key() {
    let stage = Stage::open().await;
    let (key, other) = (stage.key(None, Scope::Read).await, stage.key(None, Scope::Read).await);
    let opened = stage.send("POST", "/v1/sessions", None, &[("authorization", &bearer(&key))]).await.body;
    let session = bearer(opened["token"].as_str().unwrap());
    let streams = [listen(&stage, Some(&bearer(&key))).await, listen(&stage, Some(&session)).await];
    let mut of_other_key = listen(&stage, Some(&bearer(&other))).await;
    // This is what another node does. It does not notify this one.
    assert!(keys::revoke(&*stage.store, id_of(&key)).await.unwrap());
    for stream in streams {
        assert!(ends(stream).await, "the stream continues after its key was revoked");
    }
    let next = tokio::time::timeout(Duration::from_millis(50), of_other_key.next()).await;
    assert!(next.is_err(), "the stream of another key stays open");
}

#[tokio::test]
async fn an_event_stream_without_a_key_ends_when_the_first_key_is_created() {
    let stage = Stage::open().await;
    let stream = listen(&stage, None).await;
    stage.key(None, Scope::Read).await;
    assert!(ends(stream).await);
}
