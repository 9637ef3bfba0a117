//! With a million tasks in the store, the service answers every page of the console within 200 ms.

mod seed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use redrive_core::WorkerId;
use redrive_delivery::DeliveryParts;
use redrive_delivery::bodies::Bodies;
use redrive_delivery::gate::{GateRules, Gates};
use redrive_delivery::secrets::{SecretKey, Vault};
use redrive_server::{Access, Api};
use redrive_store_sqlite::{Options, SqliteStore};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use seed::{Seeded, TASKS, seed};

/// The maximum time of a response, without the network.
const RESPONSE_TIME_MAX: Duration = Duration::from_millis(200);
/// How often each request is measured. The median counts.
const REPETITIONS: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_answered_within_200_ms() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(folder.path().join("million.db"), Options::default()).unwrap());
    let gates = Arc::new(Gates::new(GateRules::default()));
    let vault = Arc::new(Vault::new(&SecretKey::from_base64(&format!("{}=", "A".repeat(43))).unwrap()));
    let parts = DeliveryParts { bodies: Bodies::open("memory:").unwrap(), gates, vault };
    let node = WorkerId::new("node-1").unwrap();
    let closing = CancellationToken::new();
    let api = Api::open(store.clone(), parts, Access::OpenWithoutKeys, node, closing).await.unwrap();
    let router = api.router();

    let began = Instant::now();
    let seeded = seed(&*store).await;
    println!("{TASKS} tasks in {:?}", began.elapsed());
    api.save_node_state().await.unwrap();

    let mut slow = Vec::new();
    for path in pages(&seeded) {
        let took = median(&router, &path).await;
        println!("{:>6.1} ms  GET {path}", took.as_secs_f64() * 1_000.0);
        if took > RESPONSE_TIME_MAX {
            slow.push((path, took));
        }
    }
    assert!(slow.is_empty(), "slower than {RESPONSE_TIME_MAX:?}: {slow:#?}");
    check_results(&router, &seeded).await;
}

/// The filters of lists and counts.
const FILTERS: [&str; 28] = [
    "state=pending",
    "state=retrying",
    "state=running",
    "state=waiting",
    "state=succeeded",
    "state=dead",
    "state=cancelled",
    "kind=delivery",
    "kind=receipt",
    "queue=default",
    "queue=rare",
    "state=succeeded&queue=rare",
    "policyId=default",
    "policyId=nobody",
    "target=https://target-1.example/",
    "target=https://nobody.example/",
    "idempotencyKey=key-7",
    "idempotencyKey=nobody",
    "reason=not_retryable",
    "reason=body_lost",
    "tenant=acme",
    "tenant=nobody",
    "text=needle",
    "text=target-1",
    "state=dead&text=needle",
    "createdBefore=5",
    "finishedAfter=5&state=succeeded",
    "state=dead&finishedBefore=5",
];

/// Pages without one of [`FILTERS`] and without a cursor.
const PAGES: [&str; 29] = [
    "/v1/jobs",
    "/v1/jobs?limit=1000",
    "/v1/jobs/count",
    "/v1/tasks",
    "/v1/tasks?text=needle",
    "/v1/tasks?policyId=default",
    "/v1/tasks?target=https://target-1.example/",
    "/v1/tasks?reason=body_lost",
    "/v1/dead-letters",
    "/v1/dead-letters?reason=body_lost",
    "/v1/dead-letters?target=https://target-1.example/",
    "/v1/dead-letters?policyId=nobody",
    "/v1/dead-letters/groups",
    "/v1/overview",
    "/v1/series",
    "/v1/series?span=day",
    "/v1/origins",
    "/v1/origins/series?origin=http://target-1.example:443",
    "/v1/nodes",
    "/v1/queues",
    "/v1/schedules",
    "/v1/operations",
    "/v1/policies",
    "/v1/policies/default",
    "/v1/keys",
    "/v1/signing-secrets",
    "/v1/me",
    "/metrics",
    "/readyz",
];

/// The pages, with filters and cursors.
fn pages(seeded: &Seeded) -> Vec<String> {
    let deep = format!("j{}", seeded.middle.0.simple());
    let mut filters: Vec<String> = FILTERS.map(str::to_owned).into();
    filters.push(format!("createdAfter={}", seeded.recently));
    filters.push(format!("state=dead&finishedAfter={}", seeded.recently));
    let mut paths: Vec<String> = PAGES.map(str::to_owned).into();
    for filter in &filters {
        paths.push(format!("/v1/jobs?{filter}"));
        paths.push(format!("/v1/jobs?{filter}&cursor={deep}"));
        paths.push(format!("/v1/jobs/count?{filter}"));
    }
    for state in ["pending", "running", "succeeded", "dead", "cancelled"] {
        paths.push(format!("/v1/tasks?state={state}"));
        paths.push(format!("/v1/tasks?state={state}&cursor={deep}&limit=100"));
    }
    for part in ["", "/attempts", "/why"] {
        paths.push(format!("/v1/jobs/{}{part}", seeded.middle));
        paths.push(format!("/v1/tasks/{}{part}", seeded.middle));
    }
    paths.push(format!("/v1/jobs/{}/steps", seeded.middle));
    paths.push(format!("/v1/jobs?cursor={deep}"));
    paths
}

async fn median(router: &Router, path: &str) -> Duration {
    let mut took = Vec::new();
    for _ in 0..REPETITIONS {
        let began = Instant::now();
        let (status, body) = get(router, path).await;
        took.push(began.elapsed());
        assert_eq!(status, 200, "{path}: {body}");
    }
    took.sort_unstable();
    took[REPETITIONS / 2]
}

async fn get(router: &Router, path: &str) -> (u16, Value) {
    let request = Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Checks that the responses are also correct.
async fn check_results(router: &Router, seeded: &Seeded) {
    for (path, count) in [
        ("/v1/jobs/count", TASKS as u64),
        ("/v1/jobs/count?state=cancelled", seeded.cancelled),
        ("/v1/jobs/count?state=running", seeded.running),
        ("/v1/jobs/count?state=running&kind=delivery", seeded.running),
        ("/v1/jobs/count?state=cancelled&tenant=acme", seeded.cancelled),
        ("/v1/jobs/count?idempotencyKey=key-7", 1),
    ] {
        assert_eq!(get(router, path).await.1, json!({"count": count, "atLeast": false}), "{path}");
    }
    // Rare and old jobs are found by following the cursors.
    for (filter, expected) in
        [("queue=rare", seeded.rare), ("tenant=acme", seeded.cancelled), ("queue=rare&text=needle", 1)]
    {
        let (mut found, mut cursor, mut calls) = (0, String::new(), 0);
        let began = Instant::now();
        loop {
            let (status, page) = get(router, &format!("/v1/jobs?{filter}{cursor}")).await;
            assert_eq!(status, 200, "{page}");
            calls += 1;
            found += page["items"].as_array().unwrap().len() as u64;
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        println!("{filter}: found {found} of {TASKS} jobs with {calls} calls in {:?}", began.elapsed());
        assert_eq!(found, expected, "{filter}");
    }
    let nodes = get(router, "/v1/nodes").await.1;
    let leases: u64 =
        nodes["items"].as_array().unwrap().iter().map(|node| node["leases"].as_u64().unwrap()).sum();
    assert_eq!((leases, &nodes["complete"]), (seeded.running, &json!(true)));
}
