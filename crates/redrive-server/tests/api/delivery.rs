//! A delivery from end to end: a request creates a task, the worker calls a real socket, and the attempt log shows the outcome.

use std::sync::Arc;
use std::time::Duration;

use redrive_delivery::secrets::{SecretKey, Vault};
use redrive_delivery::{DeliveryParts, Guard, Transport, TransportSettings};
use redrive_server::{Config, Service};
use redrive_store_sqlite::SqliteStore;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::stage::{Stage, parts};

/// A target that answers each request with the next of these statuses. The task returns the requests that it received.
async fn target(statuses: &'static [u16]) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let mut requests = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = String::new();
            while !request.ends_with("hello") {
                let mut buffer = [0; 4096];
                let count = stream.read(&mut buffer).await.unwrap();
                assert!(count > 0, "{request}");
                request.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy");
            stream.write_all(answer.as_bytes()).await.unwrap();
            requests.push(request.to_ascii_lowercase());
        }
        requests
    });
    (url, serving)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_retried_until_it_succeeds_and_every_attempt_sends_the_same_key() {
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let transport =
        Transport::new(TransportSettings::default().with_guard(Guard::open_to_loopback())).unwrap();
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
    let service = Service::start(config, store.clone(), parts(), transport).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(service.run_until(async { stopped.await.unwrap() }));
    let stage = Stage::on(store, redrive_server::Access::OpenWithoutKeys).await;
    let (url, serving) = target(&[503, 200]).await;
    let policy = json!({"backoffType": "fixed", "initialDelayMs": 10, "jitterType": "none"});
    let task = json!({"target": url, "body": "hello", "policy": policy});
    let request_id = [("x-request-id", "req-1")];
    let created = stage.send("POST", "/v1/tasks", Some(task), &request_id).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let path = format!("/v1/tasks/{}", created.id());
    let ended = wait_until_ended(&stage, &path).await;
    assert_eq!((&ended["state"], &ended["attemptNumber"]), (&json!("succeeded"), &json!(2)), "{ended}");
    assert_eq!(ended["lastResponseStatus"], 200);
    for request in serving.await.unwrap() {
        assert!(request.contains(&format!("idempotency-key: {}\r\n", created.id())), "{request}");
        assert!(request.contains(&format!("redrive-task-id: {}", created.id())), "{request}");
    }
    let log = stage.get(&format!("{path}/attempts")).await.body;
    let shown = |number: usize| {
        let attempt = &log["items"][number];
        (attempt["responseStatus"].clone(), attempt["phase"].clone(), attempt["ledTo"].clone())
    };
    assert_eq!(shown(1), (json!(503), json!("answered"), json!("retrying")), "{log}");
    assert_eq!(shown(0), (json!(200), json!("answered"), json!("succeeded")), "{log}");
    assert_eq!(log["items"][0]["responseExcerpt"], "busy");
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().unwrap().unwrap().succeeded, 1);
}

async fn wait_until_ended(stage: &Stage, path: &str) -> Value {
    let waiting = async {
        loop {
            let task = stage.get(path).await.body;
            if task["finishedAt"].is_i64() {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the task ends")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_another_key_defers_a_task_with_credentials() {
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let transport =
        Transport::new(TransportSettings::default().with_guard(Guard::open_to_loopback())).unwrap();
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
    let key = SecretKey::from_base64(&format!("{}=", "B".repeat(43)).replace("B=", "A=")).unwrap();
    let other = DeliveryParts { vault: Arc::new(Vault::new(&key)), ..parts() };
    let service = Service::start(config, store.clone(), other, transport).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(service.run_until(async { stopped.await.unwrap() }));
    let stage = Stage::on(store, redrive_server::Access::OpenWithoutKeys).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let task = json!({"target": url, "headers": {"Authorization": "Bearer secret"}});
    let created = stage.post("/v1/tasks", task).await;
    let path = format!("/v1/tasks/{}", created.id());
    let waiting = async {
        loop {
            let task = stage.get(&path).await.body;
            if task["lastError"].is_string() {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let task = tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .expect("the task shows why it was deferred");
    assert_eq!((&task["state"], &task["attemptNumber"]), (&json!("pending"), &json!(0)), "{task}");
    assert!(task["lastError"].as_str().unwrap().contains("encrypted with another key"), "{task}");
    let called = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(called.is_err(), "the task was sent without its credentials");
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
