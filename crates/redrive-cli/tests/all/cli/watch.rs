//! Tasks and operations that are followed: over another node, over a restart, and until someone interrupts.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use redrive_testkit::servers::Postgres;
use serde_json::json;

use crate::session::{Session, ended, text};
use crate::stage::{Launch, PATIENCE, Reply, Target, eventually, redrive};

fn interrupt(child: &Child) {
    let kill = Command::new("sh").arg("-c").arg(format!("kill -INT {}", child.id())).status();
    assert!(kill.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_another_node_works_on_is_followed_too() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    let folder = tempfile::tempdir().unwrap();
    let store = server.address();
    let node = |roles: &str| Launch::new(folder.path()).flags(&["--store", &store, "--roles", roles]).start();
    let front = node("api");
    // It works for the other one, whose listeners hear nothing of it.
    let back = Launch::new(folder.path()).flags(&["--store", &store]).start();
    let target = Target::start(|call| Reply::status(if call.attempt() == 1 { 503 } else { 200 })).await;
    let url = target.url("/");
    let child = redrive(folder.path())
        .env("REDRIVE_URL", format!("http://{}", front.address))
        .args(["task", "create", &url, "--wait"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = ended(child);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(
        said.contains("attempt 1 failed with 503") && said.contains("SUCCEEDED after 2 attempts"),
        "{said}"
    );
    drop(back);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_heard_at_once() {
    let session = Session::start().await;
    let ok = session.target.url("/ok");
    let id = session.quietly(&["task", "create", &ok, "--delay", "1h"], 0);
    let mut child = session.command(&["task", "watch", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let client = session.service.client();
    client.post(&format!("/retry-tasks/{id}/run-now"), &json!({})).await.json(200);
    let began = Instant::now();
    eventually("the watch ends", async || child.try_wait().unwrap()).await;
    assert!(began.elapsed() < PATIENCE);
    let said = text(&child.wait_with_output().unwrap().stdout);
    assert!(said.contains("attempt 1 succeeded with 200"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_survives_a_restart_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let address = service.address.to_string();
    let target = Target::start(|_| Reply::status(200)).await;
    let id = service.client().create(&json!({"targetUrl": target.url("/"), "delayMs": 3_600_000})).await;
    let mut child = redrive(folder.path())
        .env("REDRIVE_URL", format!("http://{address}"))
        .args(["task", "watch", &id])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Only what was there once is waited for.
    let looked = "/retry-tasks/{taskId}/attempts";
    eventually("it has looked", async || {
        let metrics = service.client().get("/metrics").await;
        String::from_utf8_lossy(&metrics.body).contains(looked).then_some(())
    })
    .await;
    service.kill();
    let service = Launch::bare(folder.path()).flags(&["--listen", &address]).start();
    service.client().post(&format!("/retry-tasks/{id}/run-now"), &json!({})).await.json(200);
    eventually("the watch ends", async || child.try_wait().unwrap()).await;
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_leaves_an_operation_running_and_says_how_to_stop_it() {
    let session = Session::start().await;
    let missing = session.target.url("/missing");
    for _ in 0..3 {
        session.quietly(&["task", "create", &missing, "--wait"], 6);
    }
    let child = session
        .command(&["dead", "redrive", "--rate", "0.01"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let client = session.service.client();
    let id = eventually("it has begun", async || {
        let page = client.get("/operations").await.json(200);
        // The first one is done at once: from then on it is followed.
        let begun = &page["items"][0];
        (begun["done"] == 1).then(|| begun["operationId"].as_str().unwrap().to_owned())
    })
    .await;
    interrupt(&child);
    let output = ended(child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains(&format!("`redrive operation stop {id}` stops it")), "{said}");
    assert_eq!(client.get(&format!("/operations/{id}")).await.json(200)["state"], "RUNNING");
    session.quietly(&["operation", "stop", &id], 0);
}
