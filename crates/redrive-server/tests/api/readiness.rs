//! `/readyz` says whether this node can work, at a bounded cost.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use futures_util::future::join_all;
use redrive_core::WorkerId;
use redrive_core::records::Records as _;
use redrive_server::{Access, Api};
use redrive_testkit::faulty::{Faults, Weather};
use redrive_testkit::{FaultyStore, ManualClock, ModelStore};
use tokio::time::advance;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::stage::parts;

/// Longer than any result of a check is trusted.
const LATER: Duration = Duration::from_secs(6);

/// A node on a store in memory that fails as the test says.
struct Node {
    router: Router,
    store: ModelStore,
    weather: Arc<Weather>,
    closing: CancellationToken,
}

impl Node {
    async fn open(faults: Faults) -> Self {
        let (store, weather) = (ModelStore::new(ManualClock::new()), Arc::new(Weather::default()));
        let rng = fastrand::Rng::with_seed(7);
        let faulty = Arc::new(FaultyStore::new(Arc::new(store.clone()), faults, weather.clone(), rng));
        let (name, closing) = (WorkerId::new("node-1").unwrap(), CancellationToken::new());
        let opened = Api::open(faulty, parts(), Access::OpenWithoutKeys, name, closing.clone()).await;
        Self { router: opened.unwrap().router(), store, weather, closing }
    }

    /// The status of `/readyz`, and the answer's text.
    async fn ready(&self) -> (u16, String) {
        let request = Request::get("/readyz").body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn check(&self, status: u16, text: &str) {
        let (answered, said) = self.ready().await;
        assert!(answered == status && said.contains(text), "{answered}: {said}");
    }

    /// How often this node has written its sign of life.
    async fn writes(&self) -> u64 {
        self.store.read("node", "node-1").await.unwrap().map_or(0, |record| record.version)
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_store_takes_no_writes_is_not_ready() {
    let node = Node::open(Faults::NONE).await;
    node.check(200, "ready").await;
    node.weather.set_read_only(true);
    advance(LATER).await;
    node.check(503, "does not take writes").await;
    node.weather.set_down(true);
    advance(LATER).await;
    node.check(503, "does not answer reads").await;
    node.weather.set_down(false);
    node.weather.set_read_only(false);
    advance(LATER).await;
    node.check(200, "ready").await;
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_store_is_too_slow_is_not_ready() {
    let faults = Faults { late: 1.0, late_by: Duration::from_secs(3_600), ..Faults::NONE };
    let node = Node::open(faults).await;
    node.check(503, "longer than 2 s").await;
    node.weather.calm_down();
    advance(LATER).await;
    node.check(200, "ready").await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_shuts_down_is_not_ready() {
    let node = Node::open(Faults::NONE).await;
    node.closing.cancel();
    node.check(503, "shutting down").await;
    assert_eq!(node.writes().await, 0, "a node that has left gives no sign of life");
}

/// Nobody needs a key to ask.
#[tokio::test(start_paused = true)]
async fn many_callers_cost_one_write() {
    let node = Node::open(Faults::NONE).await;
    let answers = join_all((0..500).map(|_| node.ready())).await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
    assert_eq!(node.writes().await, 1);
    advance(LATER).await;
    for _ in 0..100 {
        // A caller that hangs up at once.
        let _ = tokio::time::timeout(Duration::ZERO, node.ready()).await;
    }
    node.check(200, "ready").await;
    assert_eq!(node.writes().await, 2);
}
