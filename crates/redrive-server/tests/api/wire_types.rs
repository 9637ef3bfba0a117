//! A client can read every response, and write every request, with the types of `redrive-wire` that the service uses.

use redrive_wire::event::EventsQuery;
use redrive_wire::filter::JobFilter;
use redrive_wire::group::DeadLetterGroups;
use redrive_wire::job::{Job, JobAttempt, JobStep};
use redrive_wire::key::{ApiKey, KeyRequest};
use redrive_wire::node::Nodes;
use redrive_wire::operation::{Operation, OperationKind, OperationRequest};
use redrive_wire::origin::{OriginGate, SigningSecretInfo};
use redrive_wire::page::Page;
use redrive_wire::policy::RetryPolicy;
use redrive_wire::preview::PolicyPreview;
use redrive_wire::queue::Queues;
use redrive_wire::task::{BatchAnswer, Task, TaskAttempt, TaskRequest};
use redrive_wire::why::{JobWhy, Why};
use redrive_wire::{Code, ProblemDetails, Scope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::stage::Stage;

/// Checks that a response does not change when it is read as `T` and written again.
fn check<T: DeserializeOwned + Serialize>(body: &Value) {
    let read: T = serde_json::from_str(&body.to_string()).unwrap_or_else(|e| panic!("{e} in {body}"));
    assert_eq!(serde_json::to_value(read).unwrap(), *body);
}

#[tokio::test]
async fn responses_survive_a_round_trip_through_their_types() {
    let stage = Stage::open().await;
    let id = stage.task().await;
    stage.block_gate("http://example.com:80");
    check::<Why>(&stage.get(&format!("/v1/tasks/{id}/why")).await.body);
    check::<JobWhy>(&stage.get(&format!("/v1/jobs/{id}/why")).await.body);
    stage.kill().await;
    check::<Task>(&stage.get(&format!("/v1/tasks/{id}")).await.body);
    check::<Page<TaskAttempt>>(&stage.get(&format!("/v1/tasks/{id}/attempts")).await.body);
    check::<Job>(&stage.get(&format!("/v1/jobs/{id}")).await.body);
    check::<Page<Job>>(&stage.get("/v1/jobs").await.body);
    check::<Page<JobAttempt>>(&stage.get(&format!("/v1/jobs/{id}/attempts")).await.body);
    check::<Page<JobStep>>(&stage.get(&format!("/v1/jobs/{id}/steps")).await.body);
    check::<Page<Task>>(&stage.get("/v1/dead-letters").await.body);
    check::<DeadLetterGroups>(&stage.get("/v1/dead-letters/groups").await.body);
    check::<Nodes>(&stage.get("/v1/nodes").await.body);
    check::<Queues>(&stage.get("/v1/queues").await.body);
    check::<Page<OriginGate>>(&stage.get("/v1/origins").await.body);
    check::<Page<RetryPolicy>>(&stage.get("/v1/policies").await.body);
    check::<PolicyPreview>(&stage.post("/v1/policies/preview", json!({})).await.body);
    check::<BatchAnswer>(&stage.post("/v1/tasks/batch", json!({"items": [{}]})).await.body);
    check::<Page<SigningSecretInfo>>(&stage.get("/v1/signing-secrets").await.body);
    check::<Operation>(&stage.post("/v1/operations", json!({"kind": "redrive", "canary": 1})).await.body);
    check::<ProblemDetails>(&stage.get("/v1/tasks?limit=0").await.body);
    check::<ApiKey>(&stage.post("/v1/keys", json!({"name": "one", "scope": "admin"})).await.body);
}

#[tokio::test]
async fn the_service_accepts_requests_that_the_types_write() {
    let stage = Stage::open().await;
    let filter = JobFilter { queue: Some("default".into()), ..JobFilter::default() };
    assert_eq!(serde_json::to_value(&filter).unwrap(), json!({"queue": "default"}));
    assert_eq!(serde_json::to_value(EventsQuery::default()).unwrap(), json!({}));
    let request: TaskRequest =
        serde_json::from_value(json!({"target": "http://example.com/", "bodyJson": {"n": 1}})).unwrap();
    let created = stage.post("/v1/tasks", serde_json::to_value(&request).unwrap()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let kind = OperationKind::Redrive;
    let redrive = OperationRequest { kind, filter, dry_run: true, rate_per_second: None, canary: None };
    let counted = stage.post("/v1/operations", serde_json::to_value(&redrive).unwrap()).await;
    assert_eq!(counted.body["matched"], 0, "{}", counted.body);
    let key = KeyRequest { name: "one".into(), tenant: None, scope: Some(Scope::Admin), bodies: false };
    let made = stage.post("/v1/keys", serde_json::to_value(&key).unwrap()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let refused: ProblemDetails = serde_json::from_value(stage.get("/v1/jobs").await.body).unwrap();
    assert_eq!((refused.code, refused.status), (Code::Unauthenticated, 401));
}
