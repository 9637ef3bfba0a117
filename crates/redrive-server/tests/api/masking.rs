//! No response shows a credential, and only keys with the permission see bodies. The tests call every route of the OpenAPI
//! document, so that new routes are covered too.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt as _;
use redrive::{Redrive, Task};
use redrive_core::steps::{NewStep, Step, StepKind, Steps as _};
use redrive_core::store::{Settlement, Store as _};
use redrive_core::{AttemptReport, Job, Reason, RecordStore as _, Verdict};
use redrive_delivery::Call;
use redrive_server::keys::NewKey;
use redrive_wire::Scope;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::stage::Stage;

/// A text in the values of headers that carry credentials. No key may see it.
const CREDENTIAL: &str = "MARKER-CREDENTIAL";
/// A text in request bodies, payloads, outputs, metadata and steps.
const REQUEST: &str = "MARKER-REQUEST";
/// A text in the responses of targets.
const RESPONSE: &str = "MARKER-RESPONSE";
/// Headers that carry credentials.
const HEADERS: [&str; 5] = ["Authorization", "Cookie", "X-Api-Key", "X-Session-Token", "X-Client-Secret"];

#[derive(Serialize, Deserialize)]
struct Charge {
    card: String,
}

impl Task for Charge {
    const KIND: &'static str = "charge";
    type Output = String;
}

fn task() -> Value {
    let credentials = HEADERS.map(|name| (name.to_owned(), json!(format!("Bearer {CREDENTIAL}"))));
    let mut headers: serde_json::Map<String, Value> = credentials.into_iter().collect();
    headers.insert("X-Trace".into(), json!("plain"));
    json!({"target": "http://example.com/hook", "headers": headers, "body": REQUEST, "idempotencyKey": "k"})
}

/// Settles a claimed job as dead, with [`RESPONSE`] as the response of its target.
async fn kill(stage: &Stage, job: &Job) {
    let entry = AttemptReport {
        run: job.run,
        attempt: job.attempt,
        started_at: job.started_at.unwrap(),
        duration: Duration::from_millis(12),
        outcome: "failed".into(),
        error: Some("the target answered 503".into()),
        detail: Some(json!({"phase": "ANSWERED", "status": 503, "excerpt": RESPONSE}).to_string()),
    };
    let settlement = Settlement {
        error: Some("the target answered 503".into()),
        status: Some(503),
        entry: Some(entry),
        ..Settlement::new(job.lease(), Verdict::DeadLetter(Reason::NotRetryable))
    };
    stage.store.settle(vec![settlement]).await.unwrap();
}

/// Creates a dead task and a dead job of the library, with the markers in every field that can have them. Returns their ids.
async fn create_marked_jobs(stage: &Stage, writer: &str) -> [String; 2] {
    let headers = [("authorization", writer)];
    let created = stage.send("POST", "/v1/tasks", Some(task()), &headers).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let library = Redrive::on(stage.store.clone());
    let charge = library.enqueue(Charge { card: REQUEST.into() }).metadata(REQUEST).await.unwrap().id();
    for job in stage.claim().await {
        if job.id == charge {
            let value = format!("\"{REQUEST}\"").into_bytes();
            let step = Step { place: 0, name: "pay".parse().unwrap(), kind: StepKind::Done, value };
            stage.store.remember(vec![NewStep::new(job.lease(), step)]).await.unwrap();
        }
        kill(stage, &job).await;
    }
    [created.id().to_string(), charge.to_string()]
}

/// The path and the response of every GET route, for each of the ids, as this key sees them.
async fn get_every_route(stage: &Stage, key: &str, ids: &[String]) -> Vec<(String, String)> {
    let document = stage.get("/openapi.json").await.body;
    let mut answers = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        if !item.as_object().unwrap().contains_key("get") || path == "/v1/events" {
            continue;
        }
        for id in ids {
            let real = path
                .replace("{taskId}", id)
                .replace("{jobId}", id)
                .replace("{operationId}", id)
                .replace("{policyId}", "default")
                .replace("{name}", "default")
                .replace("{keyId}", id);
            assert!(!real.contains('{'), "{path} has a parameter that this test does not know");
            let real = if path == "/v1/origins/series" { format!("{real}?origin=x") } else { real };
            let answer = stage.send("GET", &real, None, &[("authorization", key)]).await;
            answers.push((real, answer.body.to_string()));
        }
    }
    assert!(answers.len() > 40, "only {} answers", answers.len());
    answers
}

#[tokio::test]
async fn a_key_without_the_permission_sees_no_body_on_any_route() {
    let stage = Stage::open().await;
    let bearer = |key: String| format!("Bearer {key}");
    let admin = bearer(stage.key(None, Scope::Admin).await);
    let reader = bearer(stage.key(None, Scope::Read).await);
    let writer = bearer(stage.key(None, Scope::Write).await);
    let ids = create_marked_jobs(&stage, &writer).await;
    for (scope, key) in [("read", &reader), ("write", &writer)] {
        for (path, shown) in get_every_route(&stage, key, &ids).await {
            for marker in [CREDENTIAL, REQUEST, RESPONSE] {
                assert!(!shown.contains(marker), "GET {path} shows {marker} to a {scope} key: {shown}");
            }
        }
    }
    let answers = get_every_route(&stage, &admin, &ids).await;
    for (path, shown) in &answers {
        assert!(!shown.contains(CREDENTIAL), "GET {path} shows a credential: {shown}");
    }
    for marker in [REQUEST, RESPONSE] {
        assert!(answers.iter().any(|(_, shown)| shown.contains(marker)), "an admin key must see {marker}");
    }
}

#[tokio::test]
async fn bodies_need_their_own_permission_and_hidden_fields_are_marked_as_hidden() {
    let stage = Stage::open().await;
    let bearer = |key: String| format!("Bearer {key}");
    let with = bearer(stage.new_key(NewKey { bodies: true, ..NewKey::new("b", Scope::Read) }).await);
    let without = bearer(stage.key(None, Scope::Read).await);
    let writer = bearer(stage.key(None, Scope::Write).await);
    let [task, job] = create_marked_jobs(&stage, &writer).await;
    let get =
        async |key: &str, path: &str| stage.send("GET", path, None, &[("authorization", key)]).await.body;
    let path = format!("/v1/tasks/{task}/attempts");
    let (shown, hidden) = (get(&with, &path).await, get(&without, &path).await);
    assert_eq!(
        (&shown["items"][0]["responseExcerpt"], &shown["items"][0]["bodyHidden"]),
        (&json!(RESPONSE), &json!(null))
    );
    assert_eq!(
        (&hidden["items"][0]["responseExcerpt"], &hidden["items"][0]["bodyHidden"]),
        (&json!(null), &json!(true))
    );
    assert_eq!(hidden["items"][0]["errorMessage"], "the target answered 503", "the error is not hidden");
    let path = format!("/v1/jobs/{job}");
    assert_eq!(get(&with, &path).await["payload"]["json"]["card"], REQUEST);
    let hidden = get(&without, &path).await;
    for field in ["payload", "metadata"] {
        assert_eq!(
            (&hidden[field]["hidden"], &hidden[field]["json"]),
            (&json!(true), &json!(null)),
            "{hidden}"
        );
    }
    let steps = get(&without, &format!("/v1/jobs/{job}/steps")).await;
    assert_eq!(
        (&steps["items"][0]["name"], &steps["items"][0]["value"]["hidden"]),
        (&json!("pay"), &json!(true))
    );
    // A search must not reveal the content of a body.
    for (key, found) in [(&with, 2), (&without, 0)] {
        let listed = get(key, &format!("/v1/jobs?text={REQUEST}")).await;
        assert_eq!(listed["items"].as_array().unwrap().len(), found, "{listed}");
        assert_eq!(get(key, &format!("/v1/jobs/count?text={REQUEST}")).await["count"], found);
    }
    assert_eq!(
        get(&without, "/v1/jobs/count?text=answered%20503").await["count"],
        2,
        "a search finds texts in errors"
    );
}

#[tokio::test]
async fn routes_that_create_or_change_a_task_mask_its_credentials() {
    let stage = Stage::open().await;
    let writer = format!("Bearer {}", stage.key(None, Scope::Write).await);
    let send = async |method: &str, path: &str, body: Option<Value>| {
        let answer = stage.send(method, path, body, &[("authorization", &writer)]).await;
        assert!(answer.status < 300, "{method} {path}: {}", answer.body);
        let shown = answer.body.to_string();
        assert!(!shown.contains(CREDENTIAL), "{method} {path}: {shown}");
        answer.body
    };
    let created = send("POST", "/v1/tasks", Some(task())).await;
    for name in HEADERS {
        assert_eq!(created["headers"][name], "***", "{created}");
    }
    assert_eq!(created["headers"]["X-Trace"], "plain");
    let repeated = send("POST", "/v1/tasks", Some(task())).await;
    assert_eq!(repeated["taskId"], created["taskId"], "a repeated request returns the same task");
    send("POST", "/v1/tasks/batch", Some(json!({"items": [task(), task()]}))).await;
    let id = created["taskId"].as_str().unwrap();
    for job in stage.claim().await {
        kill(&stage, &job).await;
    }
    send("POST", &format!("/v1/tasks/{id}/redrive"), None).await;
    send("POST", &format!("/v1/jobs/{id}/pause"), None).await;
    send("POST", &format!("/v1/jobs/{id}/resume"), None).await;
    send("POST", &format!("/v1/tasks/{id}/cancel"), None).await;
    let mut other = task();
    other["headers"]["Authorization"] = json!("Bearer another");
    let conflict = stage.send("POST", "/v1/tasks", Some(other), &[("authorization", &writer)]).await;
    assert_eq!(conflict.status, 422, "the fingerprint of a request covers its credentials");
}

#[tokio::test]
async fn events_contain_no_bodies_and_no_credentials() {
    let stage = Stage::open().await;
    let reader = format!("Bearer {}", stage.key(None, Scope::Read).await);
    let writer = format!("Bearer {}", stage.key(None, Scope::Write).await);
    let request = Request::get("/v1/events").header("authorization", &reader).body(Body::empty()).unwrap();
    let answer = stage.api.router().oneshot(request).await.unwrap();
    let mut stream = answer.into_body().into_data_stream();
    let [id, _] = create_marked_jobs(&stage, &writer).await;
    stage.send("POST", &format!("/v1/tasks/{id}/redrive"), None, &[("authorization", &writer)]).await;
    let mut received = String::new();
    while received.matches("event: ").count() < 2 {
        let chunk = tokio::time::timeout(Duration::from_secs(20), stream.next()).await.expect("events");
        received += &String::from_utf8_lossy(&chunk.unwrap().unwrap());
    }
    for marker in [CREDENTIAL, REQUEST, RESPONSE] {
        assert!(!received.contains(marker), "{received}");
    }
}

#[tokio::test]
async fn credentials_are_encrypted_in_the_store() {
    let stage = Stage::open().await;
    assert_eq!(stage.post("/v1/tasks", task()).await.status, 201);
    let [job] = &stage.claim().await[..] else { panic!("one task") };
    assert!(!String::from_utf8_lossy(&job.payload).contains(CREDENTIAL));
    let mut call = Call::decode(&job.payload).unwrap();
    call.open_headers(&crate::stage::parts().vault, &job.tenant, job.id).unwrap();
    for name in HEADERS {
        assert_eq!(call.header_map().unwrap()[name.to_lowercase()], format!("Bearer {CREDENTIAL}"));
    }
    for kind in ["key", "session", "keyring", "policy"] {
        for record in stage.store.scan(kind, None, 100).await.unwrap() {
            assert!(!String::from_utf8_lossy(&record.value).contains(CREDENTIAL));
        }
    }
}
