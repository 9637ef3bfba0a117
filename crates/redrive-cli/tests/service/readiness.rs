//! `/readyz` notices on every store that writes fail.

use redrive_testkit::servers::{Postgres, Redis};
use serde_json::json;

use crate::stage::{Launch, Service, eventually};

/// A service is ready, is not while `break_writes` holds, and is again after `mend_writes`.
async fn check(service: &Service, break_writes: impl FnOnce(), mend_writes: impl FnOnce()) {
    let client = service.client();
    let ready = async || client.get("/readyz").await;
    let becomes = async |status: u16| {
        eventually(&format!("/readyz is {status}"), async || {
            let got = ready().await;
            (got.status == status).then(|| String::from_utf8_lossy(&got.body).into_owned())
        })
        .await
    };
    becomes(200).await;
    break_writes();
    let said = becomes(503).await;
    assert!(said.contains("does not take writes") || said.contains("longer than 2 s"), "{said}");
    let task = json!({"targetUrl": "http://127.0.0.1:1/", "delayMs": 60_000});
    let created = client.post("/retry-tasks", &task).await;
    assert!(created.status >= 500, "writes do not fail here: {}", created.status);
    client.get("/retry-tasks").await.json(200);
    mend_writes();
    becomes(200).await;
}

#[tokio::test]
async fn a_full_disk_under_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).bearing_file_limit().start();
    check(&service, || service.limit_files("0"), || service.limit_files("unlimited")).await;
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
async fn a_redis_that_refuses_writes() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Redis::start());
    let service = Launch::new(folder.path()).flags(&["--store", &server.address()]).start();
    // Without a replica it refuses every write.
    let replicas = |count: &str| drop(server.run(&["CONFIG", "SET", "min-replicas-to-write", count]));
    check(&service, || replicas("1"), || replicas("0")).await;
}
