//! The fixture of the API tests: one node on an in-memory store, with methods that call its routes and act as its worker.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use redrive_core::store::{ClaimRequest, SettleResult, Settlement, Store};
use redrive_core::{AttemptReport, Job, JobId, Reason, Tenant, Timestamp, Verdict, WorkerId};
use redrive_delivery::DeliveryParts;
use redrive_delivery::bodies::Bodies;
use redrive_delivery::gate::{AttemptKind, EnterResult, GateRules, Gates, OriginHealth};
use redrive_delivery::secrets::{SecretKey, Vault};
use redrive_server::keys::{self, NewKey};
use redrive_server::{Access, Api};
use redrive_store_sqlite::SqliteStore;
use redrive_wire::Scope;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// One node on an in-memory SQLite store. It has no worker: a test claims and settles the jobs itself.
pub(crate) struct Stage {
    pub(crate) api: Arc<Api>,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) closing: CancellationToken,
    pub(crate) gates: Arc<Gates>,
    router: Router,
}

/// The response of a route.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The status, the code and the field of a problem.
    pub(crate) fn problem(&self) -> (u16, &str, Option<&str>) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.body);
        assert_eq!(self.body["status"], self.status);
        (self.status, self.body["code"].as_str().unwrap(), self.body["field"].as_str())
    }

    pub(crate) fn id(&self) -> JobId {
        self.body["taskId"].as_str().expect("a task").parse().unwrap()
    }
}

pub(crate) fn parts() -> DeliveryParts {
    DeliveryParts {
        bodies: Bodies::open("memory:").unwrap(),
        gates: Arc::new(Gates::new(GateRules::default())),
        vault: Arc::new(Vault::new(&SecretKey::from_base64(&format!("{}=", "A".repeat(43))).unwrap())),
    }
}

impl Stage {
    /// A node without keys on a new store.
    pub(crate) async fn open() -> Self {
        Self::on(Arc::new(SqliteStore::open_in_memory().unwrap()), Access::OpenWithoutKeys).await
    }

    pub(crate) async fn on(store: Arc<SqliteStore>, access: Access) -> Self {
        Self::named("node-1", store, access).await
    }

    /// Another node on the same store.
    pub(crate) async fn another(&self, node: &str) -> Self {
        Self::named(node, self.store.clone(), Access::OpenWithoutKeys).await
    }

    async fn named(node: &str, store: Arc<SqliteStore>, access: Access) -> Self {
        let closing = CancellationToken::new();
        let parts = parts();
        let gates = parts.gates.clone();
        let node = WorkerId::new(node).unwrap();
        let api = Api::open(store.clone(), parts, access, node, closing.clone()).await.unwrap();
        Self { router: api.router(), api, store, closing, gates }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None, &[]).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, Some(body), &[]).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.send("PUT", path, Some(body), &[]).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, None, &[]).await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:7373");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = match body {
            Some(json) => {
                request = request.header("content-type", "application/json");
                Body::from(json.to_string())
            }
            None => Body::empty(),
        };
        self.raw(request.body(body).unwrap()).await
    }

    pub(crate) async fn raw(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Reports failed calls to an origin until its gate is blocked.
    pub(crate) fn block_gate(&self, origin: &str) {
        let now = Instant::now();
        while let EnterResult::Admitted(permit) =
            self.gates.enter(origin, "/", AttemptKind::First, now, &mut || 0.5)
        {
            permit.report(OriginHealth::Struggling(None), Duration::from_millis(1), now);
        }
    }

    /// Creates a task that is due at once.
    pub(crate) async fn task(&self) -> JobId {
        let created = self.post("/v1/tasks", json!({"target": "http://example.com/hook"})).await;
        assert_eq!(created.status, 201, "{}", created.body);
        created.id()
    }

    /// Creates a key, bound to `tenant` if there is one. Only a key with scope admin sees bodies.
    pub(crate) async fn key(&self, tenant: Option<&str>, scope: Scope) -> String {
        let tenant = tenant.map(|name| Tenant::new(name).unwrap());
        self.new_key(NewKey { tenant, ..NewKey::new("test", scope) }).await
    }

    /// Creates a key. On a store without keys, it first creates the admin key that must be the first one.
    pub(crate) async fn new_key(&self, new: NewKey) -> String {
        let at = Timestamp::from_ms(1);
        if keys::list(&*self.store, None, 1).await.unwrap().is_empty() {
            keys::create(&*self.store, NewKey::new("first", Scope::Admin), at).await.unwrap();
        }
        keys::create(&*self.store, new, at).await.unwrap().1
    }

    /// Claims all due jobs.
    pub(crate) async fn claim(&self) -> Vec<Job> {
        let request = ClaimRequest {
            worker: WorkerId::new("w1").unwrap(),
            queues: vec![],
            kinds: vec![],
            limit: 1000,
            lease: Duration::from_secs(30),
        };
        self.store.claim(request).await.unwrap().jobs
    }

    /// Settles a claimed job like a worker whose attempt got status 503.
    pub(crate) async fn settle(&self, job: &Job, verdict: Verdict) {
        let detail = json!({"phase": "ANSWERED", "status": 503, "excerpt": "busy"});
        self.settle_with(job, verdict, "failed", &detail).await;
    }

    /// Settles a claimed job with this outcome and this evidence.
    pub(crate) async fn settle_with(&self, job: &Job, verdict: Verdict, outcome: &str, detail: &Value) {
        let entry = AttemptReport {
            run: job.run,
            attempt: job.attempt,
            started_at: job.started_at.unwrap(),
            duration: Duration::from_millis(12),
            outcome: outcome.into(),
            error: (outcome != "done").then(|| "status 503".into()),
            detail: Some(detail.to_string()),
        };
        let settlement = Settlement {
            error: Some("status 503".into()),
            status: Some(503),
            entry: Some(entry),
            ..Settlement::new(job.lease(), verdict)
        };
        let results = self.store.settle(vec![settlement]).await.unwrap();
        assert!(matches!(results[..], [SettleResult::Applied(_)]), "{results:?}");
    }

    /// Claims all due jobs and settles them as dead.
    pub(crate) async fn kill(&self) {
        for job in self.claim().await {
            self.settle(&job, Verdict::DeadLetter(Reason::NotRetryable)).await;
        }
    }

    /// Claims all due jobs and settles them as succeeded.
    pub(crate) async fn complete(&self) {
        for job in self.claim().await {
            self.settle(&job, Verdict::Complete(None)).await;
        }
    }
}
