//! A console on a store in memory, and a simulated browser that keeps cookies and submits forms.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use redrive_core::catalog;
use redrive_core::store::{ClaimRequest, SettleResult, Settlement, Store};
use redrive_core::{AttemptReport, Job, JobId, Kind, NewJob, Reason, Tenant, Timestamp, Verdict, WorkerId};
use redrive_delivery::DeliveryParts;
use redrive_delivery::bodies::Bodies;
use redrive_delivery::gate::{GateRules, Gates};
use redrive_delivery::secrets::{SecretKey, Vault};
use redrive_server::keys::{self, NewKey};
use redrive_server::{Access, Api};
use redrive_store_sqlite::SqliteStore;
use redrive_testkit::faulty_store::{FaultRates, FaultSwitch, FaultyStore};
use redrive_wire::{Peer, Scope};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// The host of the console in these tests.
pub(crate) const HOST: &str = "127.0.0.1:7373";
/// Every page whose address needs no id.
pub(crate) const PAGES: [&str; 13] = [
    "/",
    "/console/tasks",
    "/console/jobs",
    "/console/dead",
    "/console/operations",
    "/console/policies",
    "/console/policies/design",
    "/console/origins",
    "/console/queues",
    "/console/schedules",
    "/console/nodes",
    "/console/keys",
    "/console/help",
];

/// A console and its store.
pub(crate) struct Fixture {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) router: Router,
    /// Switches failures of the store on and off.
    pub(crate) faults: Arc<FaultSwitch>,
    api: Router,
}

impl Fixture {
    /// Starts a console that is open, or one that needs an API key.
    pub(crate) async fn new(access: Access) -> Self {
        let store = Arc::new(SqliteStore::open_in_memory().unwrap());
        let parts = DeliveryParts {
            bodies: Bodies::open("memory:").unwrap(),
            gates: Arc::new(Gates::new(GateRules::default())),
            vault: Arc::new(Vault::new(&SecretKey::from_base64(&format!("{}=", "A".repeat(43))).unwrap())),
        };
        let node = WorkerId::new("node-1").unwrap();
        let faults = Arc::new(FaultSwitch::default());
        let rng = fastrand::Rng::with_seed(7);
        let faulty_store = Arc::new(FaultyStore::new(store.clone(), FaultRates::NONE, faults.clone(), rng));
        let api = Api::open(faulty_store, parts, access, node, CancellationToken::new()).await.unwrap();
        Self { store, router: redrive_console::router(api.router()), faults, api: api.router() }
    }

    /// Creates an API key, of one tenant or of all. Creates the first admin key before it.
    pub(crate) async fn create_key(&self, tenant: Option<&str>, scope: Scope) -> String {
        let tenant = tenant.map(|name| Tenant::new(name).unwrap());
        let at = Timestamp::from_ms(1);
        if keys::list(&*self.store, None, 1).await.unwrap().is_empty() {
            keys::create(&*self.store, NewKey::new("first", Scope::Admin), at).await.unwrap();
        }
        let new = NewKey { tenant, ..NewKey::new("test", scope) };
        keys::create(&*self.store, new, at).await.unwrap().1
    }

    /// A browser without cookies.
    pub(crate) fn browser(&self) -> Browser {
        Browser { router: self.router.clone(), cookies: BTreeMap::new(), peer: None }
    }

    /// A browser that has signed in with a key of this scope.
    pub(crate) async fn signed_in(&self, tenant: Option<&str>, scope: Scope) -> Browser {
        let key = self.create_key(tenant, scope).await;
        let mut browser = self.browser();
        let page = browser.get("/console/sign-in").await;
        let answer =
            browser.submit("/console/sign-in", &page, &[("key", &key), ("next", "/console/help")]).await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        browser
    }

    /// Creates a task through the API, and returns its id.
    pub(crate) async fn create_task(&self, task: Value, key: Option<&str>) -> String {
        let mut request = Request::builder().method("POST").uri("/v1/tasks");
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.header("content-type", "application/json").header("host", HOST);
        let answer =
            self.api.clone().oneshot(request.body(Body::from(task.to_string())).unwrap()).await.unwrap();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        body["taskId"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
    }

    /// Enqueues a job of the library.
    pub(crate) async fn enqueue_job(&self, kind: &str, payload: &Value) -> JobId {
        let policies = catalog::list_current(&*self.store, None, 10).await.unwrap();
        let policy = policies.into_iter().find(|policy| policy.name.as_str() == catalog::DEFAULT).unwrap();
        let id = JobId(uuid::Uuid::now_v7());
        let job = NewJob::new(id, Kind::new(kind).unwrap(), policy, payload.to_string().into());
        self.store.enqueue(vec![job]).await.unwrap();
        id
    }

    /// Makes all due jobs dead, with this error and this excerpt of the answer.
    pub(crate) async fn fail_due_jobs(&self, error: &str, excerpt: &str) {
        let request = ClaimRequest {
            worker: WorkerId::new("w1").unwrap(),
            queues: vec![],
            kinds: vec![],
            limit: 100,
            lease: Duration::from_secs(30),
        };
        for job in self.store.claim(request).await.unwrap().jobs {
            self.settle(&job, error, excerpt).await;
        }
    }

    async fn settle(&self, job: &Job, error: &str, excerpt: &str) {
        let entry = AttemptReport {
            run: job.run,
            attempt: job.attempt,
            started_at: job.started_at.unwrap(),
            duration: Duration::from_millis(12),
            outcome: "failed".into(),
            error: Some(error.into()),
            detail: Some(json!({"phase": "ANSWERED", "status": 503, "excerpt": excerpt}).to_string()),
        };
        let settlement = Settlement {
            error: Some(error.into()),
            status: Some(503),
            entry: Some(entry),
            ..Settlement::new(job.lease(), Verdict::DeadLetter(Reason::NotRetryable))
        };
        let answers = self.store.settle(vec![settlement]).await.unwrap();
        assert!(matches!(answers[..], [SettleResult::Applied(_)]), "{answers:?}");
    }
}

/// An answer of the console.
#[derive(Debug)]
pub(crate) struct PageAnswer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl PageAnswer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The token of the forms on this page.
    pub(crate) fn token(&self) -> &str {
        let after = self.body.split("name=\"token\" value=\"").nth(1);
        after
            .and_then(|rest| rest.split('"').next())
            .unwrap_or_else(|| panic!("the page has no form: {}", self.body))
    }

    pub(crate) fn has(&self, text: &str) -> bool {
        self.body.contains(text)
    }
}

/// A simulated browser. It keeps cookies and sends its origin with forms.
#[derive(Clone)]
pub(crate) struct Browser {
    router: Router,
    pub(crate) cookies: BTreeMap<String, String>,
    /// The address of the browser, as the listener sees it.
    pub(crate) peer: Option<Peer>,
}

impl Browser {
    pub(crate) async fn get(&mut self, path: &str) -> PageAnswer {
        self.send("GET", path, &[], "").await
    }

    /// Submits a form of `page` with these fields.
    pub(crate) async fn submit(
        &mut self,
        path: &str,
        page: &PageAnswer,
        fields: &[(&str, &str)],
    ) -> PageAnswer {
        self.post(path, &[("origin", &format!("http://{HOST}"))], Some(page.token()), fields).await
    }

    /// Sends a form with any headers and any token, like a page of another site.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        token: Option<&str>,
        fields: &[(&str, &str)],
    ) -> PageAnswer {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(token.map(|token| ("token", token))).extend_pairs(fields);
        let mut all = vec![("content-type", "application/x-www-form-urlencoded")];
        all.extend(headers);
        self.send("POST", path, &all, &form.finish()).await
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> PageAnswer {
        let mut request = Request::builder().method(method).uri(path).header("host", HOST);
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !cookies.is_empty() {
            request = request.header("cookie", cookies.join("; "));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from(body.to_owned())).unwrap();
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        for set in parts.headers.get_all("set-cookie") {
            let (name, rest) = set.to_str().unwrap().split_once('=').unwrap();
            let value = rest.split(';').next().unwrap();
            if rest.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        let body = to_bytes(body, usize::MAX).await.unwrap();
        PageAnswer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }
}
