//! Several nodes on one Postgres database.

use std::collections::BTreeSet;

use redrive_testkit::servers::Postgres;
use serde_json::{Value, json};

use crate::fixtures::{Client, Launch, Reply, Service, Target, eventually};

/// A database, and the folder with the key and the bodies that its nodes share.
struct SharedStore {
    folder: tempfile::TempDir,
    server: Postgres,
}

impl SharedStore {
    fn new() -> Self {
        let server = Postgres::start_with(&[("fsync", "off")]);
        Self { folder: tempfile::tempdir().unwrap(), server }
    }

    /// Starts a node. Its low concurrency leaves tasks for the other nodes.
    fn start_node(&self) -> Service {
        let store = self.server.address();
        Launch::new(self.folder.path())
            .flags(&["--store", &store, "--lease", "1s", "--concurrency", "4"])
            .start()
    }
}

fn task(target: &Target, path: &str) -> Value {
    json!({ "target": format!("{}{path}", target.origin()), "bodyJson": { "path": path } })
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
async fn every_node_delivers_shows_and_controls_the_tasks_of_all() {
    let store = SharedStore::new();
    let target = Target::start(|_| Reply::after_ms(20, Reply::status(200))).await;
    // Both start on an empty database at the same time.
    let (one, two) = tokio::join!(async { store.start_node() }, async { store.start_node() });
    let (a, b) = (one.client(), two.client());

    let mut ids = Vec::new();
    for number in 0..80 {
        let client = if number % 2 == 0 { &a } else { &b };
        ids.push(client.create(&task(&target, &format!("/{number}"))).await);
    }
    for (number, id) in ids.iter().enumerate() {
        let client = if number % 2 == 0 { &b } else { &a };
        assert_eq!(client.wait_for_end(id).await["state"], "succeeded");
    }
    assert_eq!(target.calls().len(), ids.len(), "each task is delivered once");
    assert_eq!(workers(&a, &ids).await.len(), 2, "both nodes made attempts");

    let mut keyed = task(&target, "/keyed");
    keyed["idempotencyKey"] = json!("order-7");
    let first = a.create(&keyed).await;
    let again = b.post("/v1/tasks", &keyed).await.json(200);
    assert_eq!(again["taskId"], json!(first));

    // A pause through one node stops the queue on both. A resume through the other node ends the pause.
    a.post("/v1/queues/default/pause", &json!({})).await.json(204);
    let paused = b.create(&task(&target, "/paused")).await;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(a.task(&paused).await["state"], "pending");
    b.post("/v1/queues/default/resume", &json!({})).await.json(204);
    assert_eq!(a.wait_for_end(&paused).await["state"], "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_finishes_the_tasks_of_a_killed_node() {
    let store = SharedStore::new();
    // The first attempt of each task takes longer than its node lives.
    let target = Target::start(|call| match call.attempt() {
        1 => Reply::after_ms(20_000, Reply::status(200)),
        _ => Reply::status(200),
    })
    .await;
    let one = store.start_node();
    let mut ids = Vec::new();
    for number in 0..4 {
        let task = task(&target, &format!("/{number}"));
        ids.push(one.client().create(&task).await);
    }
    eventually("all tasks are running", async || (target.calls().len() == ids.len()).then_some(())).await;
    let two = store.start_node();
    one.kill();
    for id in &ids {
        let task = two.client().wait_for_end(id).await;
        assert_eq!((&task["state"], &task["attemptNumber"]), (&json!("succeeded"), &json!(2)), "{task}");
        let attempts = two.client().attempts(id).await;
        assert_eq!(attempts[0]["errorMessage"], "worker lease expired", "{attempts:?}");
    }
}
