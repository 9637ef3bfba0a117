//! `/readyz` reports whether this node can work, and calls to it have a bounded cost.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use futures_util::future::join_all;
use redrive_core::WorkerId;
use redrive_core::records::RecordStore as _;
use redrive_server::{Access, Api};
use redrive_testkit::faulty_store::{FaultRates, FaultSwitch};
use redrive_testkit::{FaultyStore, ManualClock, ModelStore};
use tokio::time::advance;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::stage::parts;

/// Longer than any result of a check is cached.
const CACHE_EXPIRY: Duration = Duration::from_secs(6);

/// A node on an in-memory store with faults.
struct Node {
    router: Router,
    store: ModelStore,
    fault_switch: Arc<FaultSwitch>,
    closing: CancellationToken,
}

impl Node {
    async fn open(faults: FaultRates) -> Self {
        let (store, fault_switch) = (ModelStore::new(ManualClock::new()), Arc::new(FaultSwitch::default()));
        let rng = fastrand::Rng::with_seed(7);
        let faulty = Arc::new(FaultyStore::new(Arc::new(store.clone()), faults, fault_switch.clone(), rng));
        let (name, closing) = (WorkerId::new("node-1").unwrap(), CancellationToken::new());
        let opened = Api::open(faulty, parts(), Access::OpenWithoutKeys, name, closing.clone()).await;
        Self { router: opened.unwrap().router(), store, fault_switch, closing }
    }

    /// The status and the body of `/readyz`.
    async fn ready(&self) -> (u16, String) {
        let request = Request::get("/readyz").body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn check(&self, status: u16, text: &str) {
        let (actual, body) = self.ready().await;
        assert!(actual == status && body.contains(text), "{actual}: {body}");
    }

    /// The number of heartbeats that this node has written.
    async fn writes(&self) -> u64 {
        self.store.read("node", "node-1").await.unwrap().map_or(0, |record| record.version)
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_store_does_not_accept_writes_is_not_ready() {
    let node = Node::open(FaultRates::NONE).await;
    node.check(200, "ready").await;
    node.fault_switch.set_read_only(true);
    advance(CACHE_EXPIRY).await;
    node.check(503, "does not accept writes").await;
    node.fault_switch.set_down(true);
    advance(CACHE_EXPIRY).await;
    node.check(503, "does not answer reads").await;
    node.fault_switch.set_down(false);
    node.fault_switch.set_read_only(false);
    advance(CACHE_EXPIRY).await;
    node.check(200, "ready").await;
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_store_is_too_slow_is_not_ready() {
    let faults = FaultRates { delayed: 1.0, delay_max: Duration::from_secs(3_600), ..FaultRates::NONE };
    let node = Node::open(faults).await;
    node.check(503, "longer than 2 s").await;
    node.fault_switch.stop_faults();
    advance(CACHE_EXPIRY).await;
    node.check(200, "ready").await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_shuts_down_is_not_ready() {
    let node = Node::open(FaultRates::NONE).await;
    node.closing.cancel();
    node.check(503, "shutting down").await;
    assert_eq!(node.writes().await, 0, "a node that shuts down writes no heartbeat");
}

/// `/readyz` needs no key, so anyone can call it often.
#[tokio::test(start_paused = true)]
async fn many_callers_cause_one_write() {
    let node = Node::open(FaultRates::NONE).await;
    let answers = join_all((0..500).map(|_| node.ready())).await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
    assert_eq!(node.writes().await, 1);
    advance(CACHE_EXPIRY).await;
    for _ in 0..100 {
        // The caller hangs up at once.
        let _ = tokio::time::timeout(Duration::ZERO, node.ready()).await;
    }
    node.check(200, "ready").await;
    assert_eq!(node.writes().await, 2);
}
