//! A router on a store in memory, and short ways to call it and to play the worker.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use redrive_core::store::{ClaimRequest, Settled, Settlement, Store};
use redrive_core::{Entry, Job, JobId, Reason, Tenant, Timestamp, Verdict, WorkerId};
use redrive_delivery::Parts;
use redrive_delivery::bodies::Bodies;
use redrive_delivery::gate::{Admission, GateRules, Gates, Signal, Turn};
use redrive_delivery::secrets::{SecretKey, Vault};
use redrive_server::keys::{self, NewKey, Scope};
use redrive_server::{Access, Api};
use redrive_store_sqlite::SqliteStore;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

pub(crate) struct Stage {
    pub(crate) api: Arc<Api>,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) closing: CancellationToken,
    pub(crate) gates: Arc<Gates>,
    router: Router,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Status, code and field of a problem.
    pub(crate) fn problem(&self) -> (u16, &str, Option<&str>) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.body);
        assert_eq!(self.body["status"], self.status);
        (self.status, self.body["code"].as_str().unwrap(), self.body["field"].as_str())
    }

    pub(crate) fn id(&self) -> JobId {
        self.body["taskId"].as_str().expect("a task").parse().unwrap()
    }
}

pub(crate) fn parts() -> Parts {
    Parts {
        bodies: Bodies::open("memory:").unwrap(),
        gates: Arc::new(Gates::new(GateRules::default())),
        vault: Arc::new(Vault::new(&SecretKey::from_base64(&format!("{}=", "A".repeat(43))).unwrap())),
    }
}

impl Stage {
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

    /// Lets calls to an origin fail until its gate closes.
    pub(crate) fn close_gate(&self, origin: &str) {
        let now = Instant::now();
        while let Admission::Go(permit) = self.gates.enter(origin, "/", Turn::First, now, &mut || 0.5) {
            permit.leave(Signal::Struggle(None), Duration::from_millis(1), now);
        }
    }

    /// A task that is due at once.
    pub(crate) async fn task(&self) -> JobId {
        let created = self.post("/retry-tasks", json!({"targetUrl": "http://example.com/hook"})).await;
        assert_eq!(created.status, 201, "{}", created.body);
        created.id()
    }

    /// A key; a tenant's, if one is named. It does not see bodies, unless its scope is admin.
    pub(crate) async fn key(&self, tenant: Option<&str>, scope: Scope) -> String {
        let tenant = tenant.map(|name| Tenant::new(name).unwrap());
        self.new_key(NewKey { tenant, ..NewKey::new("test", scope) }).await
    }

    /// A key, after the admin key that every store with keys has.
    pub(crate) async fn new_key(&self, new: NewKey) -> String {
        let at = Timestamp::from_ms(1);
        if keys::list(&*self.store, None, 1).await.unwrap().is_empty() {
            keys::create(&*self.store, NewKey::new("first", Scope::Admin), at).await.unwrap();
        }
        keys::create(&*self.store, new, at).await.unwrap().1
    }

    /// Claims what is due.
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

    /// Settles a claimed job as a worker would.
    pub(crate) async fn settle(&self, job: &Job, verdict: Verdict) {
        let detail = json!({"phase": "ANSWERED", "status": 503, "excerpt": "busy"});
        self.settle_with(job, verdict, "failed", &detail).await;
    }

    /// The same with this outcome and this evidence.
    pub(crate) async fn settle_with(&self, job: &Job, verdict: Verdict, outcome: &str, detail: &Value) {
        let entry = Entry {
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
        let answers = self.store.settle(vec![settlement]).await.unwrap();
        assert!(matches!(answers[..], [Settled::Applied(_)]), "{answers:?}");
    }

    /// Ends what is due as dead.
    pub(crate) async fn kill(&self) {
        for job in self.claim().await {
            self.settle(&job, Verdict::DeadLetter(Reason::NotRetryable)).await;
        }
    }

    /// Ends what is due well.
    pub(crate) async fn complete(&self) {
        for job in self.claim().await {
            self.settle(&job, Verdict::Complete(None)).await;
        }
    }
}
