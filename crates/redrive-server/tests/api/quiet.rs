//! A million tasks in the store: every page of the console is answered within 200 ms.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod seed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use redrive_core::WorkerId;
use redrive_delivery::Parts;
use redrive_delivery::bodies::Bodies;
use redrive_delivery::gate::{GateRules, Gates};
use redrive_delivery::secrets::{SecretKey, Vault};
use redrive_server::{Access, Api};
use redrive_store_sqlite::{Options, SqliteStore};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use seed::{Seeded, TASKS, seed};

/// What an answer may take on the server's side.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// Each question is asked so many times; the median counts.
const TIMES: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_answered_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(folder.path().join("million.db"), Options::default()).unwrap());
    let gates = Arc::new(Gates::new(GateRules::default()));
    let vault = Arc::new(Vault::new(&SecretKey::from_base64(&format!("{}=", "A".repeat(43))).unwrap()));
    let parts = Parts { bodies: Bodies::open("memory:").unwrap(), gates, vault };
    let node = WorkerId::new("node-1").unwrap();
    let closing = CancellationToken::new();
    let api = Api::open(store.clone(), parts, Access::OpenWithoutKeys, node, closing).await.unwrap();
    let router = api.router();

    let began = Instant::now();
    let seeded = seed(&*store).await;
    println!("{TASKS} tasks in {:?}", began.elapsed());
    api.write_down().await.unwrap();

    let mut slow = Vec::new();
    for path in pages(&seeded) {
        let took = median(&router, &path).await;
        println!("{:>6.1} ms  GET {path}", took.as_secs_f64() * 1_000.0);
        if took > ANSWER_WITHIN {
            slow.push((path, took));
        }
    }
    assert!(slow.is_empty(), "slower than {ANSWER_WITHIN:?}: {slow:#?}");
    check_that_it_is_right(&router, &seeded).await;
}

/// How jobs are narrowed.
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
    "subject=https://target-1.example/",
    "subject=https://nobody.example/",
    "idempotencyKey=key-7",
    "idempotencyKey=nobody",
    "reason=NOT_RETRYABLE",
    "reason=BODY_LOST",
    "tenant=acme",
    "tenant=nobody",
    "text=needle",
    "text=target-1",
    "state=dead&text=needle",
    "createdBefore=5",
    "finishedAfter=5&state=succeeded",
    "state=dead&finishedBefore=5",
];

/// Pages that are asked for as they are.
const PLAIN: [&str; 29] = [
    "/jobs",
    "/jobs?limit=1000",
    "/jobs/count",
    "/retry-tasks",
    "/retry-tasks?text=needle",
    "/retry-tasks?policyId=default",
    "/retry-tasks?target=https://target-1.example/",
    "/retry-tasks?reason=BODY_LOST",
    "/dead-letters",
    "/dead-letters?reason=BODY_LOST",
    "/dead-letters?target=https://target-1.example/",
    "/dead-letters?policyId=nobody",
    "/dead-letters/groups",
    "/overview",
    "/series",
    "/series?span=day",
    "/origins",
    "/origins/series?origin=http://target-1.example:443",
    "/nodes",
    "/queues",
    "/schedules",
    "/operations",
    "/retry-policies",
    "/retry-policies/default",
    "/keys",
    "/signing-secrets",
    "/me",
    "/metrics",
    "/readyz",
];

/// The pages in the forms in which people ask for them.
fn pages(seeded: &Seeded) -> Vec<String> {
    let deep = format!("j{}", seeded.middle.0.simple());
    let mut filters: Vec<String> = FILTERS.map(str::to_owned).into();
    filters.push(format!("createdAfter={}", seeded.recently));
    filters.push(format!("state=dead&finishedAfter={}", seeded.recently));
    let mut paths: Vec<String> = PLAIN.map(str::to_owned).into();
    for filter in &filters {
        paths.push(format!("/jobs?{filter}"));
        paths.push(format!("/jobs?{filter}&cursor={deep}"));
        paths.push(format!("/jobs/count?{filter}"));
    }
    for status in ["PENDING", "IN_FLIGHT", "SUCCEEDED", "EXHAUSTED", "CANCELLED"] {
        paths.push(format!("/retry-tasks?status={status}"));
        paths.push(format!("/retry-tasks?status={status}&cursor={deep}&limit=100"));
    }
    for part in ["", "/attempts", "/why"] {
        paths.push(format!("/jobs/{}{part}", seeded.middle));
        paths.push(format!("/retry-tasks/{}{part}", seeded.middle));
    }
    paths.push(format!("/jobs/{}/steps", seeded.middle));
    paths.push(format!("/jobs?cursor={deep}"));
    paths
}

async fn median(router: &Router, path: &str) -> Duration {
    let mut took = Vec::new();
    for _ in 0..TIMES {
        let began = Instant::now();
        let (status, body) = get(router, path).await;
        took.push(began.elapsed());
        assert_eq!(status, 200, "{path}: {body}");
    }
    took.sort_unstable();
    took[TIMES / 2]
}

async fn get(router: &Router, path: &str) -> (u16, Value) {
    let request = Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Quick answers must be right ones too.
async fn check_that_it_is_right(router: &Router, seeded: &Seeded) {
    for (path, count) in [
        ("/jobs/count", TASKS as u64),
        ("/jobs/count?state=cancelled", seeded.cancelled),
        ("/jobs/count?state=running", seeded.running),
        ("/jobs/count?state=running&kind=delivery", seeded.running),
        ("/jobs/count?state=cancelled&tenant=acme", seeded.cancelled),
        ("/jobs/count?idempotencyKey=key-7", 1),
    ] {
        assert_eq!(get(router, path).await.1, json!({"count": count, "atLeast": false}), "{path}");
    }
    // What is rare and old is found by going on.
    for (filter, wanted) in
        [("queue=rare", seeded.rare), ("tenant=acme", seeded.cancelled), ("queue=rare&text=needle", 1)]
    {
        let (mut found, mut cursor, mut calls) = (0, String::new(), 0);
        let began = Instant::now();
        loop {
            let (status, page) = get(router, &format!("/jobs?{filter}{cursor}")).await;
            assert_eq!(status, 200, "{page}");
            calls += 1;
            found += page["items"].as_array().unwrap().len() as u64;
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        println!("{filter}: {found} found among {TASKS} by {calls} calls in {:?}", began.elapsed());
        assert_eq!(found, wanted, "{filter}");
    }
    let nodes = get(router, "/nodes").await.1;
    let held: u64 =
        nodes["items"].as_array().unwrap().iter().map(|node| node["leases"].as_u64().unwrap()).sum();
    assert_eq!((held, &nodes["complete"]), (seeded.running, &json!(true)));
}
