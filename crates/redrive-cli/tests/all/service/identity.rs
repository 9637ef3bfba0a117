//! All nodes of a store need the same secret key and the same location of bodies. A node with another key or
//! place does not start. Tasks that a node cannot deliver wait.

use std::path::Path;
use std::process::Output;

use redrive_testkit::servers::{Postgres, Redis};
use serde_json::{Value, json};

use crate::fixtures::{Client, Launch, Reply, Target, eventually, redrive};
use crate::service::bodies::random_bytes;

/// The size of a body that does not fit into a row.
const LARGE_BYTES: usize = 100_000;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// A node with its files in `folder`. Its low concurrency leaves tasks for the other node.
fn node(folder: &Path, store: &str) -> Launch {
    Launch::new(folder).flags(&["--store", store, "--concurrency", "4"])
}

fn doctor(folder: &Path, store: &str) -> Output {
    redrive(folder).args(["doctor", "--store", store]).output().unwrap()
}

async fn two_nodes_share_key_and_bodies(store: &str) {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = node(first.path(), store).start();

    // With default settings, the second node has its own key and its own folder for bodies.
    for roles in [&[][..], &["--roles", "worker"], &["--roles", "api"]] {
        let refused = node(second.path(), store).flags(roles).fail_to_start();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let why = text(&refused);
        for part in
            ["secret key", "redrive.key", "--accept-new-key", "--bodies", "s3://", "--accept-new-bodies"]
        {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert!(!second.path().join("redrive.key").exists(), "the rejected node created a key");
    }

    // With the key and the bodies of the first node, the second node starts.
    std::fs::copy(first.path().join("redrive.key"), second.path().join("redrive.key")).unwrap();
    let shared = format!("file:{}", first.path().join("bodies").display());
    let two = node(second.path(), store).flags(&["--bodies", &shared]).start();
    let found = doctor(second.path(), store);
    assert!(
        !text(&found).contains("location of large bodies"),
        "doctor compares a folder that does not exist: {found:?}"
    );
    std::fs::create_dir(second.path().join("bodies")).unwrap();
    std::fs::write(second.path().join("bodies/.redrive-bodies-id"), format!("{}\n", "7".repeat(32))).unwrap();
    let found = text(&doctor(second.path(), store));
    assert!(found.contains("critical") && found.contains("location of large bodies differs"), "{found}");

    let target = Target::start(|_| Reply::after_ms(10, Reply::status(200))).await;
    let (a, b) = (one.client(), two.client());
    a.put("/v1/signing-secrets/hook", &json!({})).await.json(201);
    let large =
        String::from_utf8(random_bytes(LARGE_BYTES).iter().map(|byte| b'a' + byte % 26).collect()).unwrap();
    let mut ids = Vec::new();
    for number in 0..40 {
        let (client, other) = if number % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let signed = json!({"target": target.url("/signed"), "signingSecret": "hook", "body": "x"});
        ids.push(client.create(&signed).await);
        ids.push(other.create(&json!({"target": target.url("/large"), "body": large})).await);
    }
    for id in &ids {
        let task = b.wait_for_end(id).await;
        let ended = (&task["state"], &task["attemptNumber"]);
        assert_eq!(ended, (&json!("succeeded"), &json!(1)), "{task}");
    }
    let calls = target.calls();
    assert_eq!(
        calls.iter().filter(|call| call.path == "/large" && call.body == large.as_bytes()).count(),
        40
    );
    assert_eq!(calls.iter().filter(|call| !call.header("webhook-signature").is_empty()).count(), 40);

    // After a change of the key, each node needs the new one.
    drop((one, two));
    std::fs::remove_file(first.path().join("redrive.key")).unwrap();
    assert!(text(&node(first.path(), store).fail_to_start()).contains("--accept-new-key"));
    let one = node(first.path(), store).flags(&["--accept-new-key"]).start();
    assert!(one.log().contains("restart every other node"), "{}", one.log());
    drop(one);
    let two = node(second.path(), store).flags(&["--bodies", &shared]).fail_to_start();
    assert!(text(&two).contains("secret key differs"), "{two:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_on_postgres_starts_only_with_the_key_and_the_bodies_of_the_first() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    two_nodes_share_key_and_bodies(&server.address()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_on_redis_starts_only_with_the_key_and_the_bodies_of_the_first() {
    let server = Redis::start_with(&[("appendfsync", "always")]);
    two_nodes_share_key_and_bodies(&server.address()).await;
}

/// Waits until the last error of a pending task contains `reason`. The task must not be charged an attempt.
async fn wait_for_deferral(client: &Client, id: &str, reason: &str) -> Value {
    let task = eventually(&format!("task {id} waits: {reason}"), async || {
        let task = client.task(id).await;
        let matches = task["lastError"].as_str().is_some_and(|error| error.contains(reason));
        (matches && task["state"] == "pending").then_some(task)
    })
    .await;
    assert_eq!(task["attemptNumber"], 0, "{task}");
    assert_eq!(client.attempts(id).await, [] as [Value; 0], "an attempt was made");
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_waits_for_the_right_key_and_for_its_body() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start(|_| Reply::status(200)).await;
    let right = Launch::new(folder.path());
    let service = right.start();
    let client = service.client();
    client.put("/v1/signing-secrets/hook", &json!({})).await.json(201);
    client.post("/v1/queues/default/pause", &json!({})).await.json(204);
    let large = "x".repeat(LARGE_BYTES);
    let signed = client.create(&json!({"target": target.url("/"), "signingSecret": "hook"})).await;
    let large = client.create(&json!({"target": target.url("/"), "body": large})).await;
    drop(service);

    // On SQLite there is only one node, so it may start with another key and other bodies.
    let wrong =
        Launch::new(folder.path()).flags(&["--secret-key-file", "other.key", "--bodies", "file:other"]);
    let service = wrong.start();
    let client = service.client();
    client.post("/v1/queues/default/resume", &json!({})).await.json(204);
    wait_for_deferral(&client, &signed, "cannot be decrypted with the key of this node").await;
    let task = wait_for_deferral(&client, &large, "the body was stored in").await;
    let error = task["lastError"].as_str().unwrap();
    assert!(
        error.contains("/bodies") && error.contains("/other"),
        "the error must name both places: {error}"
    );
    let why = eventually("the task waits", async || {
        let why = client.get(&format!("/v1/tasks/{large}/why")).await.json(200);
        (why["because"] == "waiting").then_some(why)
    })
    .await;
    assert!(why["detail"].as_str().unwrap().contains("the body was stored in"), "{why}");
    drop(service);
    assert_eq!(target.count(), 0);

    let service = right.start();
    for id in [&signed, &large] {
        // Skips the wait until the next attempt.
        service.client().post(&format!("/v1/tasks/{id}/run-now"), &json!({})).await;
        let task = service.client().wait_for_end(id).await;
        let ended = (&task["state"], &task["attemptNumber"]);
        assert_eq!(ended, (&json!("succeeded"), &json!(1)), "{task}");
    }
    assert_eq!(target.count(), 2);
}
