//! A task that a gate holds back is dead at the end of its time budget, and its callback is sent.

use std::sync::Arc;
use std::time::Duration;

use redrive_delivery::gate::{AttemptKind, EnterResult, OriginHealth};
use redrive_delivery::{Guard, Transport, TransportSettings};
use redrive_server::{Access, Config, Service};
use redrive_store_sqlite::SqliteStore;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::stage::{Stage, parts};

/// The timeout of the callback. It is shorter than [`HOLD`].
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the gate holds calls back.
const HOLD: Duration = Duration::from_secs(3_600);
const BUDGET_MS: i64 = 1_500;

/// Accepts one request and returns its body.
async fn receive_callback(listener: TcpListener) -> Value {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    loop {
        assert!(stream.read_buf(&mut request).await.unwrap() > 0, "{}", String::from_utf8_lossy(&request));
        let text = String::from_utf8_lossy(&request);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        if let Ok(callback) = serde_json::from_str(body) {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            return callback;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_task_is_dead_at_the_end_of_its_time_budget_and_its_callback_is_sent() {
    let parts = parts();
    let EnterResult::Admitted(permit) =
        parts.gates.enter("http://127.0.0.1:9", "/hook", AttemptKind::First, Instant::now(), &mut || 0.5)
    else {
        panic!("a new gate passes calls");
    };
    permit.report(OriginHealth::Struggling(Some(HOLD)), Duration::from_millis(1), Instant::now());
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let transport =
        Transport::new(TransportSettings::default().with_guard(Guard::open_to_loopback())).unwrap();
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
    let service = Service::start(config, store.clone(), parts, transport).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(service.run_until(async { stopped.await.unwrap() }));
    let stage = Stage::on(store, Access::OpenWithoutKeys).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let callback_url = format!("http://{}/callback", listener.local_addr().unwrap());
    let task = json!({
        "target": "http://127.0.0.1:9/hook",
        "policy": {"totalBudgetMs": BUDGET_MS},
        "onFailureUrl": callback_url,
    });
    let created = stage.post("/v1/tasks", task).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let callback = timeout(TIMEOUT, receive_callback(listener)).await.expect("the callback is sent");
    assert_eq!(
        (&callback["task"]["state"], &callback["task"]["reason"]),
        (&json!("dead"), &json!("budget_exceeded"))
    );

    let ended = stage.get(&format!("/v1/tasks/{}", created.id())).await.body;
    assert_eq!((&ended["state"], &ended["reason"]), (&json!("dead"), &json!("budget_exceeded")), "{ended}");
    let lived = ended["finishedAt"].as_i64().unwrap() - ended["createdAt"].as_i64().unwrap();
    assert!(lived > BUDGET_MS, "{ended}");
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
