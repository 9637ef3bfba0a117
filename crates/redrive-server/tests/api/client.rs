//! A program that calls the service reads every answer with the types that wrote it.

use redrive_server::wire::event::EventsQuery;
use redrive_server::wire::job::{Job, JobAttempt, JobStep};
use redrive_server::wire::key::{ApiKey, KeyRequest};
use redrive_server::wire::listing::JobQuery;
use redrive_server::wire::operation::{Operation, RedriveRequest};
use redrive_server::wire::origin::{Origins, SigningSecrets};
use redrive_server::wire::page::Page;
use redrive_server::wire::policy::RetryPolicy;
use redrive_server::wire::preview::PolicyPreview;
use redrive_server::wire::queue::Queues;
use redrive_server::wire::task::{BatchAnswer, Task, TaskAttempt, TaskRequest};
use redrive_server::wire::why::{JobWhy, Why};
use redrive_server::wire::{Code, ProblemDetails, Scope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::stage::Stage;

/// What is read as `T` and written again is what came.
fn check<T: DeserializeOwned + Serialize>(body: &Value) {
    let read: T = serde_json::from_str(&body.to_string()).unwrap_or_else(|e| panic!("{e} in {body}"));
    assert_eq!(serde_json::to_value(read).unwrap(), *body);
}

#[tokio::test]
async fn answers_are_read_by_the_types_that_wrote_them() {
    let stage = Stage::open().await;
    let id = stage.task().await;
    stage.close_gate("http://example.com:80");
    check::<Why>(&stage.get(&format!("/retry-tasks/{id}/why")).await.body);
    check::<JobWhy>(&stage.get(&format!("/jobs/{id}/why")).await.body);
    stage.kill().await;
    check::<Task>(&stage.get(&format!("/retry-tasks/{id}")).await.body);
    check::<Page<TaskAttempt>>(&stage.get(&format!("/retry-tasks/{id}/attempts")).await.body);
    check::<Job>(&stage.get(&format!("/jobs/{id}")).await.body);
    check::<Page<Job>>(&stage.get("/jobs").await.body);
    check::<Page<JobAttempt>>(&stage.get(&format!("/jobs/{id}/attempts")).await.body);
    check::<Page<JobStep>>(&stage.get(&format!("/jobs/{id}/steps")).await.body);
    check::<Page<Task>>(&stage.get("/dead-letters").await.body);
    check::<Queues>(&stage.get("/queues").await.body);
    check::<Origins>(&stage.get("/origins").await.body);
    check::<Page<RetryPolicy>>(&stage.get("/retry-policies").await.body);
    check::<PolicyPreview>(&stage.post("/retry-policies/preview", json!({})).await.body);
    check::<BatchAnswer>(&stage.post("/retry-tasks/batch", json!({"items": [{}]})).await.body);
    check::<SigningSecrets>(&stage.get("/signing-secrets").await.body);
    check::<Operation>(&stage.post("/dead-letters/redrive", json!({"canary": 1})).await.body);
    check::<ProblemDetails>(&stage.get("/retry-tasks?limit=0").await.body);
    check::<ApiKey>(&stage.post("/keys", json!({"name": "one", "scope": "admin"})).await.body);
}

#[tokio::test]
async fn requests_are_written_by_the_types_that_read_them() {
    let stage = Stage::open().await;
    let query = JobQuery { limit: Some(1), queue: Some("default".into()), ..JobQuery::default() };
    assert_eq!(serde_json::to_value(&query).unwrap(), json!({"limit": 1, "queue": "default"}));
    assert_eq!(serde_json::to_value(EventsQuery::default()).unwrap(), json!({}));
    let request: TaskRequest =
        serde_json::from_value(json!({"targetUrl": "http://example.com/", "bodyJson": {"n": 1}})).unwrap();
    let created = stage.post("/retry-tasks", serde_json::to_value(&request).unwrap()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let redrive = RedriveRequest { dry_run: true, ..RedriveRequest::default() };
    let counted = stage.post("/dead-letters/redrive", serde_json::to_value(&redrive).unwrap()).await;
    assert_eq!(counted.body["matched"], 0, "{}", counted.body);
    let key = KeyRequest { name: "one".into(), tenant: None, scope: Some(Scope::Admin), bodies: false };
    let made = stage.post("/keys", serde_json::to_value(&key).unwrap()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let refused: ProblemDetails = serde_json::from_value(stage.get("/jobs").await.body).unwrap();
    assert_eq!((refused.code, refused.status), (Code::Unauthenticated, 401));
}
