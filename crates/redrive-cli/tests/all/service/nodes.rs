//! Several services on one Postgres database are one service.

use std::collections::BTreeSet;

use redrive_testkit::servers::Postgres;
use serde_json::{Value, json};

use crate::stage::{Client, Launch, Reply, Service, Target, eventually};

/// A database, and a folder for the bodies that its nodes share.
struct Scene {
    folder: tempfile::TempDir,
    server: Postgres,
}

impl Scene {
    fn new() -> Self {
        let server = Postgres::start_with(&[("fsync", "off")]);
        Self { folder: tempfile::tempdir().unwrap(), server }
    }

    /// Another node, with few attempts at once so that one node cannot take all there is.
    fn node(&self) -> Service {
        let store = self.server.address();
        Launch::new(self.folder.path())
            .flags(&["--store", &store, "--lease-ms", "1000", "--concurrency", "4"])
            .start()
    }
}

fn task(target: &Target, path: &str) -> Value {
    json!({ "targetUrl": format!("{}{path}", target.origin()), "bodyJson": { "path": path } })
}

/// The workers that made the attempts of these tasks.
async fn workers(client: &Client, ids: &[String]) -> BTreeSet<String> {
    let mut workers = BTreeSet::new();
    for id in ids {
        let attempts = client.attempts(id).await;
        workers.extend(attempts.iter().map(|attempt| attempt["worker"].as_str().unwrap().to_owned()));
    }
    workers
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_takes_any_node_delivers_shows_and_ends() {
    let scene = Scene::new();
    let target = Target::start(|_| Reply::after_ms(20, Reply::status(200))).await;
    // Both start on an empty database at the same time.
    let (one, two) = tokio::join!(async { scene.node() }, async { scene.node() });
    let (a, b) = (one.client(), two.client());

    let mut ids = Vec::new();
    for number in 0..80 {
        let client = if number % 2 == 0 { &a } else { &b };
        ids.push(client.create(&task(&target, &format!("/{number}"))).await);
    }
    for (number, id) in ids.iter().enumerate() {
        let client = if number % 2 == 0 { &b } else { &a };
        assert_eq!(client.ended(id).await["status"], "SUCCEEDED");
    }
    assert_eq!(target.calls().len(), ids.len(), "each is delivered once");
    assert_eq!(workers(&a, &ids).await.len(), 2, "both have worked");

    let mut keyed = task(&target, "/keyed");
    keyed["idempotencyKey"] = json!("order-7");
    let first = a.create(&keyed).await;
    let again = b.post("/retry-tasks", &keyed).await.json(200);
    assert_eq!(again["taskId"], json!(first));

    // What is paused at one node rests at both, and goes on when it is resumed at the other.
    a.post("/queues/default/pause", &json!({})).await.json(204);
    let held = b.create(&task(&target, "/held")).await;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(a.task(&held).await["status"], "PENDING");
    b.post("/queues/default/resume", &json!({})).await.json(204);
    assert_eq!(a.ended(&held).await["status"], "SUCCEEDED");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_node_had_begun_another_finishes() {
    let scene = Scene::new();
    // The first attempt at each hangs for longer than its node lives.
    let target = Target::start(|call| match call.attempt() {
        1 => Reply::after_ms(20_000, Reply::status(200)),
        _ => Reply::status(200),
    })
    .await;
    let one = scene.node();
    let mut ids = Vec::new();
    for number in 0..4 {
        let task = task(&target, &format!("/{number}"));
        ids.push(one.client().create(&task).await);
    }
    eventually("all are under way", async || (target.calls().len() == ids.len()).then_some(())).await;
    let two = scene.node();
    one.kill();
    for id in &ids {
        let task = two.client().ended(id).await;
        assert_eq!((&task["status"], &task["attemptNumber"]), (&json!("SUCCEEDED"), &json!(2)), "{task}");
        let attempts = two.client().attempts(id).await;
        assert_eq!(attempts[0]["errorMessage"], "worker lease expired", "{attempts:?}");
    }
}
