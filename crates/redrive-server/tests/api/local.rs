//! What concerns the machine that a node runs on: targets on it, and problems of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use redrive_core::{Deferral, Outcome};
use redrive_delivery::{Guard, Transport, TransportSettings};
use redrive_server::keys::{self, NewKey, Scope};
use redrive_server::{Config, Service};
use redrive_store_sqlite::SqliteStore;
use redrive_worker::{Context, Summary};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use crate::stage::parts;

/// A service that works, and a way to its routes.
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

    /// Creates a task and waits for its end.
    async fn deliver(&self, url: &str, key: Option<&str>) -> Value {
        let task = json!({"targetUrl": url, "policy": {"maxAttempts": 1}});
        let (status, created) = self.ask("POST", "/retry-tasks", key, Some(task)).await;
        assert_eq!(status, 201, "{created}");
        let path = format!("/retry-tasks/{}", created["taskId"].as_str().unwrap());
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

async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let looking = async {
        loop {
            match look().await {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looking).await.unwrap_or_else(|_| panic!("{what}: never"))
}

/// Something on this machine that takes every call and keeps connections open.
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

/// A service on loopback, as `assemble` makes it.
async fn guarded(store: &Arc<SqliteStore>) -> Node {
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
    let transport = Transport::new(TransportSettings::default().with_guard(Guard::public_only())).unwrap();
    let service = Service::start(config, store.clone(), parts(), transport.clone()).await.unwrap();
    Node::run(service.guarding(transport).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_key_closes_loopback_to_tasks_at_once() {
    let node = guarded(&Arc::new(SqliteStore::open_in_memory().unwrap())).await;
    let url = local_service().await;
    let before = node.deliver(&url, None).await;
    assert_eq!(before["status"], "SUCCEEDED", "without keys, whoever calls is on this machine: {before}");
    let me = node.get("/me", None).await;
    assert_eq!(me["loopbackTargets"]["allowed"], true, "{me}");

    let request = json!({"name": "ops", "scope": "admin"});
    let (status, made) = node.ask("POST", "/keys", None, Some(request)).await;
    assert_eq!(status, 201, "{made}");
    let admin = made["key"].as_str().unwrap().to_owned();
    // The connection from before is idle in the pool, and must not be used either.
    let after = node.deliver(&url, Some(&admin)).await;
    assert_eq!(
        (&after["status"], &after["reason"]),
        (&json!("EXHAUSTED"), &json!("TARGET_REFUSED")),
        "{after}"
    );
    let me = node.get("/me", Some(&admin)).await;
    assert_eq!(me["loopbackTargets"]["allowed"], false, "{me}");

    let request = json!({"name": "shop", "scope": "admin", "tenant": "shop"});
    let (_, made) = node.ask("POST", "/keys", Some(&admin), Some(request)).await;
    let me = node.get("/me", made["key"].as_str()).await;
    assert!(me.get("loopbackTargets").is_none(), "no business of a tenant: {me}");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_another_process_creates_closes_loopback_within_moments() {
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let node = guarded(&store).await;
    let url = local_service().await;
    assert_eq!(node.deliver(&url, None).await["status"], "SUCCEEDED");
    let new = NewKey::new("ops", Scope::Admin);
    let (_, key) = keys::create(&*store, new, Default::default()).await.unwrap();
    eventually("the guard closes", async || {
        let me = node.get("/me", Some(&key)).await;
        (me["loopbackTargets"]["allowed"] == false).then_some(())
    })
    .await;
    assert_eq!(node.deliver(&url, Some(&key)).await["reason"], "TARGET_REFUSED");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_problem_of_the_node_is_shown_as_one_and_charged_to_nobody() {
    let broken = Arc::new(AtomicBool::new(true));
    let seen = broken.clone();
    let handler = move |_: Context| {
        let outcome = match seen.load(Ordering::SeqCst) {
            true => Outcome::Defer(Deferral::of_node(Duration::from_secs(1), "no file descriptors left")),
            false => Outcome::Done(None),
        };
        std::future::ready(outcome)
    };
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
    let node = Node::run(Service::start_with(config, store, parts(), handler).await.unwrap());
    let (_, created) =
        node.ask("POST", "/retry-tasks", None, Some(json!({"targetUrl": "http://example.com/"}))).await;
    let path = format!("/retry-tasks/{}", created["taskId"].as_str().unwrap());

    let problem = eventually("the overview names the problem", async || {
        let overview = node.get("/overview", None).await;
        let problems = overview["problems"].as_array().unwrap().clone();
        problems.into_iter().find(|problem| problem["page"] == "nodes")
    })
    .await;
    assert!(problem["text"].as_str().unwrap().contains("no file descriptors left"), "{problem}");
    assert_eq!(problem["severity"], "bad");
    eventually("the other nodes are told", async || {
        let nodes = node.get("/nodes", None).await;
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
    assert_eq!((&task["status"], &task["attemptNumber"]), (&json!("PENDING"), &json!(0)), "{task}");
    assert_eq!(task["lastError"], "no file descriptors left");
    assert_eq!(node.get(&format!("{path}/attempts"), None).await["items"], json!([]));

    broken.store(false, Ordering::SeqCst);
    eventually("the task succeeds", async || {
        (node.get(&path, None).await["status"] == "SUCCEEDED").then_some(())
    })
    .await;
    eventually("the problem is gone", async || paused(0).await.then_some(())).await;
    assert_eq!(node.get("/overview", None).await["problems"], json!([]));
    assert_eq!(node.get(&path, None).await["attemptNumber"], 1);
    node.end().await;
}
