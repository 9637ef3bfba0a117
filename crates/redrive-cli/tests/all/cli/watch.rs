//! Commands that watch a task or an operation: while another node executes it, across a restart, and until Ctrl-C.

use std::process::{Child, Command, Stdio};

use redrive_testkit::servers::Postgres;
use serde_json::json;

use crate::cli::session::{Session, text, wait_for_output};
use crate::fixtures::{Launch, Reply, Target, eventually, redrive};

fn interrupt(child: &Child) {
    let kill = Command::new("sh").arg("-c").arg(format!("kill -INT {}", child.id())).status();
    assert!(kill.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_another_node_executes_can_be_watched() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    let folder = tempfile::tempdir().unwrap();
    let store = server.address();
    let node = |roles: &str| Launch::new(folder.path()).flags(&["--store", &store, "--roles", roles]).start();
    let front = node("api");
    // This node executes the task. Subscribers of the other node get no events about it.
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
    let output = wait_for_output(child);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    assert!(
        printed.contains("attempt 1 failed with 503") && printed.contains("succeeded after 2 attempts"),
        "{printed}"
    );
    drop(back);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_task_ends() {
    let session = Session::start().await;
    let ok = session.target.url("/ok");
    let id = session.run_unrecorded(&["task", "create", &ok, "--delay", "1h"], 0);
    let mut child = session.command(&["task", "watch", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let client = session.service.client();
    client.post(&format!("/v1/tasks/{id}/run-now"), &json!({})).await.json(200);
    eventually("the watch ends", async || child.try_wait().unwrap()).await;
    let printed = text(&child.wait_with_output().unwrap().stdout);
    assert!(printed.contains("attempt 1 succeeded with 200"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_survives_a_restart_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let address = service.address.to_string();
    let target = Target::start(|_| Reply::status(200)).await;
    let id = service.client().create(&json!({"target": target.url("/"), "delayMs": 3_600_000})).await;
    let mut child = redrive(folder.path())
        .env("REDRIVE_URL", format!("http://{address}"))
        .args(["task", "watch", &id])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The watch tolerates an outage only after the service has answered once.
    let attempts_route = "/v1/tasks/{taskId}/attempts";
    eventually("the watch has read the attempts", async || {
        let metrics = service.client().get("/metrics").await;
        String::from_utf8_lossy(&metrics.body).contains(attempts_route).then_some(())
    })
    .await;
    service.kill();
    let service = Launch::bare(folder.path()).flags(&["--listen", &address]).start();
    service.client().post(&format!("/v1/tasks/{id}/run-now"), &json!({})).await.json(200);
    eventually("the watch ends", async || child.try_wait().unwrap()).await;
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_leaves_an_operation_running_and_says_how_to_cancel_it() {
    let session = Session::start().await;
    let missing = session.target.url("/missing");
    for _ in 0..3 {
        session.run_unrecorded(&["task", "create", &missing, "--wait"], 6);
    }
    let child = session
        .command(&["dead", "redrive", "--rate", "0.01"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let client = session.service.client();
    let id = eventually("the operation has started", async || {
        let page = client.get("/v1/operations").await.json(200);
        // The first job is done at once. From then on the command watches the operation.
        let operation = &page["items"][0];
        (operation["done"] == 1).then(|| operation["operationId"].as_str().unwrap().to_owned())
    })
    .await;
    interrupt(&child);
    let output = wait_for_output(child);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains(&format!("`redrive operation cancel {id}` cancels it")), "{stderr}");
    assert_eq!(client.get(&format!("/v1/operations/{id}")).await.json(200)["state"], "running");
    session.run_unrecorded(&["operation", "cancel", &id], 0);
}
