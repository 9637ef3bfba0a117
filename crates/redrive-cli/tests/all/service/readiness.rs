//! `/readyz` fails on every store while writes to it fail.

use redrive_testkit::servers::{Postgres, Redis};
use serde_json::json;

use crate::fixtures::{Launch, Service, eventually};

/// Checks that a service is ready, that it is not after `break_writes`, and that it is again after `repair_writes`.
async fn check(service: &Service, break_writes: impl FnOnce(), repair_writes: impl FnOnce()) {
    let client = service.client();
    let wait_for_status = async |status: u16| {
        eventually(&format!("/readyz is {status}"), async || {
            let answer = client.get("/readyz").await;
            (answer.status == status).then(|| String::from_utf8_lossy(&answer.body).into_owned())
        })
        .await
    };
    wait_for_status(200).await;
    break_writes();
    let body = wait_for_status(503).await;
    assert!(body.contains("does not accept writes") || body.contains("longer than 2 s"), "{body}");
    let task = json!({"target": "http://127.0.0.1:1/", "delayMs": 60_000});
    let created = client.post("/v1/tasks", &task).await;
    assert!(created.status >= 500, "writes do not fail: {}", created.status);
    client.get("/v1/tasks").await.json(200);
    repair_writes();
    wait_for_status(200).await;
}

#[tokio::test]
async fn sqlite_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).with_failing_large_writes().start();
    check(&service, || service.limit_file_size("0"), || service.limit_file_size("unlimited")).await;
}

#[tokio::test]
async fn a_read_only_postgres() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Postgres::start_with(&[("fsync", "off")]));
    let service = Launch::new(folder.path()).flags(&["--store", &server.address()]).start();
    let read_only = |value: &str| {
        server.run(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        server.run("SELECT pg_reload_conf()");
    };
    check(&service, || read_only("on"), || read_only("off")).await;
}

#[tokio::test]
async fn a_redis_that_rejects_writes() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Redis::start());
    let service = Launch::new(folder.path()).flags(&["--store", &server.address()]).start();
    // A server without a replica rejects every write with this setting.
    let replicas = |count: &str| drop(server.run(&["CONFIG", "SET", "min-replicas-to-write", count]));
    check(&service, || replicas("1"), || replicas("0")).await;
}
