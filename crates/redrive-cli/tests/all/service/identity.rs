//! Nodes on one store have one secret key and one place for bodies; a node with others does not start, and a task waits.

use std::path::Path;
use std::process::Output;

use redrive_testkit::servers::{Postgres, Redis};
use serde_json::{Value, json};

use crate::bodies::noise;
use crate::stage::{Client, Launch, Reply, Target, eventually, redrive};

/// A body that does not fit into a row.
const LARGE_BYTES: usize = 100_000;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// A node on a store with its files in a folder of its own, and few attempts at once so that one cannot take all.
fn node(folder: &Path, store: &str) -> Launch {
    Launch::new(folder).flags(&["--store", store, "--concurrency", "4"])
}

fn doctor(folder: &Path, store: &str) -> Output {
    redrive(folder).args(["doctor", "--store", store]).output().unwrap()
}

async fn two_nodes_share_key_and_bodies(store: &str) {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = node(first.path(), store).start();

    // With default settings the second one would have a key and a folder of its own.
    for roles in [&[][..], &["--roles", "worker"], &["--roles", "api"]] {
        let refused = node(second.path(), store).flags(roles).refused();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let why = text(&refused);
        for part in
            ["secret key", "redrive.key", "--accept-new-key", "--bodies", "s3://", "--accept-new-bodies"]
        {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert!(!second.path().join("redrive.key").exists(), "it makes nothing that is of no use");
    }

    // It does what it was told.
    std::fs::copy(first.path().join("redrive.key"), second.path().join("redrive.key")).unwrap();
    let shared = format!("file:{}", first.path().join("bodies").display());
    let two = node(second.path(), store).flags(&["--bodies", &shared]).start();
    let found = doctor(second.path(), store);
    assert!(!text(&found).contains("place of large bodies"), "there is no folder to compare: {found:?}");
    std::fs::create_dir(second.path().join("bodies")).unwrap();
    std::fs::write(second.path().join("bodies/.redrive-bodies-id"), format!("{}\n", "7".repeat(32))).unwrap();
    let found = text(&doctor(second.path(), store));
    assert!(found.contains("grave") && found.contains("place of large bodies is another one"), "{found}");

    let target = Target::start(|_| Reply::after_ms(10, Reply::status(200))).await;
    let (a, b) = (one.client(), two.client());
    a.put("/signing-secrets/hook", &json!({})).await.json(201);
    let large = String::from_utf8(noise(LARGE_BYTES).iter().map(|byte| b'a' + byte % 26).collect()).unwrap();
    let mut ids = Vec::new();
    for number in 0..40 {
        let (client, other) = if number % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let signed = json!({"targetUrl": target.url("/signed"), "signingSecret": "hook", "body": "x"});
        ids.push(client.create(&signed).await);
        ids.push(other.create(&json!({"targetUrl": target.url("/large"), "body": large})).await);
    }
    for id in &ids {
        let task = b.ended(id).await;
        let ended = (&task["status"], &task["attemptNumber"]);
        assert_eq!(ended, (&json!("SUCCEEDED"), &json!(1)), "{task}");
    }
    let calls = target.calls();
    assert_eq!(
        calls.iter().filter(|call| call.path == "/large" && call.body == large.as_bytes()).count(),
        40
    );
    assert_eq!(calls.iter().filter(|call| !call.header("webhook-signature").is_empty()).count(), 40);

    // The key is changed on purpose: each node must have the new one then.
    drop((one, two));
    std::fs::remove_file(first.path().join("redrive.key")).unwrap();
    assert!(text(&node(first.path(), store).refused()).contains("--accept-new-key"));
    let one = node(first.path(), store).flags(&["--accept-new-key"]).start();
    assert!(one.log().contains("restart every other node"), "{}", one.log());
    drop(one);
    let two = node(second.path(), store).flags(&["--bodies", &shared]).refused();
    assert!(text(&two).contains("secret key is another one"), "{two:?}");
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

/// The task once it waits for this reason, uncharged.
async fn waits(client: &Client, id: &str, reason: &str) -> Value {
    let task = eventually(&format!("task {id} waits: {reason}"), async || {
        let task = client.task(id).await;
        let waits = task["lastError"].as_str().is_some_and(|error| error.contains(reason));
        (waits && task["status"] == "PENDING").then_some(task)
    })
    .await;
    assert_eq!(task["attemptNumber"], 0, "{task}");
    assert_eq!(client.attempts(id).await, [] as [Value; 0], "nothing was sent");
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_waits_for_the_right_key_and_for_its_body_and_is_delivered_then() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start(|_| Reply::status(200)).await;
    let right = Launch::new(folder.path());
    let service = right.start();
    let client = service.client();
    client.put("/signing-secrets/hook", &json!({})).await.json(201);
    client.post("/queues/default/pause", &json!({})).await.json(204);
    let large = "x".repeat(LARGE_BYTES);
    let signed = client.create(&json!({"targetUrl": target.url("/"), "signingSecret": "hook"})).await;
    let large = client.create(&json!({"targetUrl": target.url("/"), "body": large})).await;
    drop(service);

    // One node alone is not refused, whatever it has.
    let wrong =
        Launch::new(folder.path()).flags(&["--secret-key-file", "other.key", "--bodies", "file:other"]);
    let service = wrong.start();
    let client = service.client();
    client.post("/queues/default/resume", &json!({})).await.json(204);
    waits(&client, &signed, "cannot be decrypted with the key of this node").await;
    let task = waits(&client, &large, "the body was stored in").await;
    let error = task["lastError"].as_str().unwrap();
    assert!(error.contains("/bodies") && error.contains("/other"), "it names both places: {error}");
    let why = eventually("why says so", async || {
        let why = client.get(&format!("/retry-tasks/{large}/why")).await.json(200);
        (why["because"] == "WAITING").then_some(why)
    })
    .await;
    assert!(why["detail"].as_str().unwrap().contains("the body was stored in"), "{why}");
    drop(service);
    assert_eq!(target.count(), 0);

    let service = right.start();
    for id in [&signed, &large] {
        // It need not wait for its time.
        service.client().post(&format!("/retry-tasks/{id}/run-now"), &json!({})).await;
        let task = service.client().ended(id).await;
        let ended = (&task["status"], &task["attemptNumber"]);
        assert_eq!(ended, (&json!("SUCCEEDED"), &json!(1)), "{task}");
    }
    assert_eq!(target.count(), 2);
}
