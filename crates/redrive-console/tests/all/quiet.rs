//! With a million tasks in the store, every page is rendered within 200 ms, including all its requests to the API.
//! The module is named `quiet` so that `cargo xtask test` runs it without other tests.

#[path = "../../../redrive-server/tests/api/quiet/seed.rs"]
#[expect(dead_code, reason = "the test of the API uses more of it")]
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
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// The longest time that a page may take on the server.
const PAGE_TIME_MAX: Duration = Duration::from_millis(200);
/// The number of requests of each page. Their median is compared.
const REQUESTS: usize = 5;

/// Pages with the filters that people use.
const PAGES: [&str; 31] = [
    "/",
    "/console/tasks",
    "/console/tasks?state=pending",
    "/console/tasks?state=retrying",
    "/console/tasks?state=dead",
    "/console/tasks?state=dead&reason=body_lost",
    "/console/tasks?target=https://target-1.example/",
    "/console/tasks?text=needle",
    "/console/tasks?policyId=nobody",
    "/console/tasks?since=1h",
    "/console/tasks?to=2001-01-01T00:00",
    "/console/jobs",
    "/console/jobs?kind=receipt",
    "/console/jobs?queue=rare",
    "/console/jobs?state=waiting",
    "/console/jobs?tenant=acme",
    "/console/jobs?text=nothing%20like%20this",
    "/console/dead",
    "/console/bulk?action=redrive&state=dead&kind=delivery",
    "/console/bulk?action=discard&text=needle",
    "/console/bulk?action=cancel&kind=delivery",
    "/console/bulk?action=run_now&target=https://target-1.example/",
    "/console/operations",
    "/console/policies",
    "/console/policies/design?policy=default",
    "/console/origins",
    "/console/queues",
    "/console/schedules",
    "/console/nodes",
    "/console/keys",
    "/console/help",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_fast_with_a_million_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(folder.path().join("million.db"), Options::default()).unwrap());
    let parts = DeliveryParts {
        bodies: Bodies::open("memory:").unwrap(),
        gates: Arc::new(Gates::new(GateRules::default())),
        vault: Arc::new(Vault::new(&SecretKey::from_base64(&format!("{}=", "A".repeat(43))).unwrap())),
    };
    let node = WorkerId::new("node-1").unwrap();
    let closing = CancellationToken::new();
    let api = Api::open(store.clone(), parts, Access::OpenWithoutKeys, node, closing).await.unwrap();
    let router = redrive_console::router(api.router());
    let seeded = seed::seed(&*store).await;

    let one = format!("/console/jobs/{}", seeded.middle);
    let deep = format!("/console/jobs?cursor=j{}", seeded.middle.0.simple());
    let mut slow = Vec::new();
    for path in PAGES.into_iter().chain([one.as_str(), deep.as_str()]) {
        let took = median(&router, path).await;
        println!("{:>6.1} ms  {path}", took.as_secs_f64() * 1000.0);
        if took > PAGE_TIME_MAX {
            slow.push((path, took));
        }
    }
    assert!(slow.is_empty(), "slower than {PAGE_TIME_MAX:?}: {slow:#?}");
}

async fn median(router: &Router, path: &str) -> Duration {
    let mut took = Vec::new();
    for _ in 0..REQUESTS {
        let request = Request::builder().uri(path).header("host", "127.0.0.1").body(Body::empty()).unwrap();
        let started = Instant::now();
        let answer = router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let page = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        took.push(started.elapsed());
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&page));
    }
    took.sort_unstable();
    took[REQUESTS / 2]
}
