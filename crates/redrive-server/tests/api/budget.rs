//! A task that its target's gate holds back ends when its budget ends, and the report is sent.

use std::sync::Arc;
use std::time::Duration;

use redrive_delivery::gate::{Admission, Signal, Turn};
use redrive_delivery::{Guard, Transport, TransportSettings};
use redrive_server::{Access, Config, Service};
use redrive_store_sqlite::SqliteStore;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::stage::{Stage, parts};

/// How long anything may take. The gate is closed for longer.
const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const BUDGET_MS: i64 = 1_500;

/// Takes one request and returns its body.
async fn take_report(listener: TcpListener) -> Value {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    loop {
        assert!(stream.read_buf(&mut request).await.unwrap() > 0, "{}", String::from_utf8_lossy(&request));
        let text = String::from_utf8_lossy(&request);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        if let Ok(report) = serde_json::from_str(body) {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            return report;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_behind_a_closed_gate_ends_with_its_budget_and_its_report_is_sent() {
    let parts = parts();
    let Admission::Go(permit) =
        parts.gates.enter("http://127.0.0.1:9", "/hook", Turn::First, Instant::now(), &mut || 0.5)
    else {
        panic!("a new gate is open");
    };
    permit.leave(Signal::Struggle(Some(HOUR)), Duration::from_millis(1), Instant::now());
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let transport =
        Transport::new(TransportSettings::default().with_guard(Guard::open_to_loopback())).unwrap();
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
    let service = Service::start(config, store.clone(), parts, transport).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(service.run_until(async { stopped.await.unwrap() }));
    let stage = Stage::on(store, Access::OpenWithoutKeys).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let report_to = format!("http://{}/report", listener.local_addr().unwrap());
    let task = json!({
        "targetUrl": "http://127.0.0.1:9/hook",
        "policy": {"totalBudgetMs": BUDGET_MS},
        "onExhaustedUrl": report_to,
    });
    let created = stage.post("/retry-tasks", task).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let report = timeout(PATIENCE, take_report(listener)).await.expect("the report comes");
    assert_eq!(
        (&report["task"]["status"], &report["task"]["reason"]),
        (&json!("EXHAUSTED"), &json!("BUDGET_EXCEEDED"))
    );

    let ended = stage.get(&format!("/retry-tasks/{}", created.id())).await.body;
    assert_eq!(
        (&ended["status"], &ended["reason"]),
        (&json!("EXHAUSTED"), &json!("BUDGET_EXCEEDED")),
        "{ended}"
    );
    let lived = ended["finishedAt"].as_i64().unwrap() - ended["createdAt"].as_i64().unwrap();
    assert!(lived > BUDGET_MS, "{ended}");
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
