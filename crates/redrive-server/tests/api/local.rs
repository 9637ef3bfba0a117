//! Loopback targets, which the first API key forbids, and problems of the node itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use redrive_core::{Deferral, Outcome};
use redrive_delivery::{Guard, Transport, TransportSettings};
use redrive_server::keys::{self, NewKey};
use redrive_server::{Config, Service};
use redrive_store_sqlite::SqliteStore;
use redrive_wire::Scope;
use redrive_worker::{Context, Summary};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use crate::stage::parts;

/// A running service. Its routes are called without a socket.
struct Node {
    routes: Router,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Option<Summary>>,
}

impl Node {
    fn run(service: Service) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let routes = service.router();
        let running =
            tokio::spawn(async move { service.run_until(async { stopped.await.unwrap() }).await.unwrap() });
        Self { routes, stop, running }
    }

    async fn ask(&self, method: &str, path: &str, key: Option<&str>, body: Option<Value>) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = body.map_or_else(Body::empty, |json| Body::from(json.to_string()));
        let request = request.header("content-type", "application/json").body(body).unwrap();
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    async fn get(&self, path: &str, key: Option<&str>) -> Value {
        self.ask("GET", path, key, None).await.1
    }

    /// Creates a task and waits until it has ended.
    async fn deliver(&self, url: &str, key: Option<&str>) -> Value {
        let task = json!({"target": url, "policy": {"maxAttempts": 1}});
        let (status, created) = self.ask("POST", "/v1/tasks", key, Some(task)).await;
        assert_eq!(status, 201, "{created}");
        let path = format!("/v1/tasks/{}", created["taskId"].as_str().unwrap());
        eventually("the task ends", async || {
            let task = self.get(&path, key).await;
            task["finishedAt"].is_i64().then_some(task)
        })
        .await
    }

    async fn end(self) -> Summary {
        self.stop.send(()).unwrap();
        self.running.await.unwrap().unwrap()
    }
}

/// Polls until `check` returns a value.
async fn eventually<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let polling = async {
        loop {
            match check().await {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let polled = tokio::time::timeout(Duration::from_secs(30), polling).await;
    polled.unwrap_or_else(|_| panic!("this did not happen within 30 s: {what}"))
}

/// A service on loopback that answers every call and keeps its connections open.
async fn local_service() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/secret", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret").await.unwrap();
                }
            });
        }
    });
    url
}

/// A node whose guard for loopback targets follows the API keys, like a node that `assemble` starts.
async fn start_guarded_node(store: &Arc<SqliteStore>) -> Node {
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
    let transport = Transport::new(TransportSettings::default().with_guard(Guard::public_only())).unwrap();
    let service = Service::start(config, store.clone(), parts(), transport.clone()).await.unwrap();
    Node::run(service.with_loopback_guard(transport).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_key_forbids_loopback_targets_at_once() {
    let node = start_guarded_node(&Arc::new(SqliteStore::open_in_memory().unwrap())).await;
    let url = local_service().await;
    let before = node.deliver(&url, None).await;
    assert_eq!(before["state"], "succeeded", "without keys, tasks may call loopback targets: {before}");
    let me = node.get("/v1/me", None).await;
    assert_eq!(me["loopbackTargets"]["allowed"], true, "{me}");

    let request = json!({"name": "ops", "scope": "admin"});
    let (status, made) = node.ask("POST", "/v1/keys", None, Some(request)).await;
    assert_eq!(status, 201, "{made}");
    let admin = made["key"].as_str().unwrap().to_owned();
    // The pool still has an idle connection to the target. It must not be used either.
    let after = node.deliver(&url, Some(&admin)).await;
    assert_eq!((&after["state"], &after["reason"]), (&json!("dead"), &json!("target_refused")), "{after}");
    let me = node.get("/v1/me", Some(&admin)).await;
    assert_eq!(me["loopbackTargets"]["allowed"], false, "{me}");

    let request = json!({"name": "shop", "scope": "admin", "tenant": "shop"});
    let (_, made) = node.ask("POST", "/v1/keys", Some(&admin), Some(request)).await;
    let me = node.get("/v1/me", made["key"].as_str()).await;
    assert!(me.get("loopbackTargets").is_none(), "a key that is bound to a tenant does not see it: {me}");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_another_process_creates_also_forbids_loopback_targets() {
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let node = start_guarded_node(&store).await;
    let url = local_service().await;
    assert_eq!(node.deliver(&url, None).await["state"], "succeeded");
    let new = NewKey::new("ops", Scope::Admin);
    let (_, key) = keys::create(&*store, new, Default::default()).await.unwrap();
    eventually("the guard refuses loopback targets", async || {
        let me = node.get("/v1/me", Some(&key)).await;
        (me["loopbackTargets"]["allowed"] == false).then_some(())
    })
    .await;
    assert_eq!(node.deliver(&url, Some(&key)).await["reason"], "target_refused");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_problem_of_the_node_is_reported_and_costs_a_task_no_attempt() {
    let has_problem = Arc::new(AtomicBool::new(true));
    let handler_has_problem = has_problem.clone();
    let handler = move |_: Context| {
        let outcome = match handler_has_problem.load(Ordering::SeqCst) {
            true => Outcome::Defer(Deferral::of_node(Duration::from_secs(1), "no file descriptors left")),
            false => Outcome::Done(None),
        };
        std::future::ready(outcome)
    };
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
    let node = Node::run(Service::start_with(config, store, parts(), handler).await.unwrap());
    let (_, created) =
        node.ask("POST", "/v1/tasks", None, Some(json!({"target": "http://example.com/"}))).await;
    let path = format!("/v1/tasks/{}", created["taskId"].as_str().unwrap());

    let problem = eventually("the overview names the problem", async || {
        let overview = node.get("/v1/overview", None).await;
        let problems = overview["problems"].as_array().unwrap().clone();
        problems.into_iter().find(|problem| problem["page"] == "nodes")
    })
    .await;
    assert!(problem["text"].as_str().unwrap().contains("no file descriptors left"), "{problem}");
    assert_eq!(problem["severity"], "bad");
    eventually("the list of nodes shows the problem", async || {
        let nodes = node.get("/v1/nodes", None).await;
        let this = &nodes["items"][0];
        (this["problem"] == "no file descriptors left" && this["problemSince"].is_i64()).then_some(())
    })
    .await;
    let paused = async |value: u8| {
        let metrics = node.get("/metrics", None).await;
        metrics.as_str().unwrap().lines().any(|line| line == format!("retry_node_paused {value}"))
    };
    assert!(paused(1).await);
    let task = node.get(&path, None).await;
    assert_eq!((&task["state"], &task["attemptNumber"]), (&json!("pending"), &json!(0)), "{task}");
    assert_eq!(task["lastError"], "no file descriptors left");
    assert_eq!(node.get(&format!("{path}/attempts"), None).await["items"], json!([]));

    has_problem.store(false, Ordering::SeqCst);
    eventually("the task succeeds", async || {
        (node.get(&path, None).await["state"] == "succeeded").then_some(())
    })
    .await;
    eventually("the problem is gone", async || paused(0).await.then_some(())).await;
    assert_eq!(node.get("/v1/overview", None).await["problems"], json!([]));
    assert_eq!(node.get(&path, None).await["attemptNumber"], 1);
    node.end().await;
}
