//! Operations on dead letters: dry runs, rate limits, canaries, cancellation, and continuing after a crash.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixtures::{Client, Launch, Reply, Target, eventually};
use crate::service::crash::wait_until_all_ended;

/// Creates this many dead letters. The target must reject every call.
async fn create_dead_letters(client: &Client, target: &Target, tasks: usize) {
    let items = vec![json!({"target": target.url("/")}); tasks];
    client.post("/v1/tasks/batch", &json!({ "items": items })).await.json(200);
    wait_until_all_ended(client).await;
    assert_eq!(client.list("/v1/dead-letters?reason=not_retryable").await.len(), tasks);
}

/// Starts a redrive and returns the id of the operation.
async fn start_redrive(client: &Client, options: &Value) -> String {
    let mut request = options.clone();
    request["kind"] = json!("redrive");
    let answer = client.post("/v1/operations", &request).await;
    let operation = answer.json(202);
    let id = operation["operationId"].as_str().unwrap().to_owned();
    assert_eq!(answer.headers["location"], format!("/v1/operations/{id}"));
    id
}

async fn operation(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/operations/{id}")).await.json(200)
}

/// Waits until an operation has ended, and returns it.
async fn wait_for_operation(client: &Client, id: &str) -> Value {
    eventually("the operation ends", async || {
        let operation = operation(client, id).await;
        (operation["state"] != "running").then_some(operation)
    })
    .await
}

/// The number of runs of each task: one from its creation, and one for each redrive.
async fn runs(client: &Client, tasks: &[Value]) -> Vec<u64> {
    let mut runs = Vec::new();
    for task in tasks {
        let attempts = client.attempts(task["taskId"].as_str().unwrap()).await;
        runs.push(attempts.iter().map(|attempt| attempt["run"].as_u64().unwrap()).max().unwrap());
    }
    runs
}

#[tokio::test]
async fn a_failed_canary_or_a_cancel_ends_an_operation() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(400)).await;
    create_dead_letters(&client, &target, 40).await;

    let counted = client.post("/v1/operations", &json!({"kind": "redrive", "dryRun": true})).await.json(200);
    assert_eq!(counted["matched"], 40);
    let other = json!({"kind": "redrive", "dryRun": true, "filter": {"reason": "body_lost"}});
    assert_eq!(client.post("/v1/operations", &other).await.json(200)["matched"], 0);
    assert_eq!(target.count(), 40, "a dry run redrives nothing");

    let id = start_redrive(&client, &json!({"canary": 3})).await;
    let ended = wait_for_operation(&client, &id).await;
    assert_eq!((&ended["state"], &ended["done"]), (&json!("canary_failed"), &json!(3)), "{ended}");
    wait_until_all_ended(&client).await;
    assert_eq!(target.count(), 43, "only the canary was redriven");

    let id = start_redrive(&client, &json!({"ratePerSecond": 2})).await;
    target.wait_for_calls(44).await;
    let cancelled = client.post(&format!("/v1/operations/{id}/cancel"), &json!({})).await.json(200);
    assert_eq!(cancelled["state"], "cancelled");
    wait_until_all_ended(&client).await;
    // The cancel does not stop a batch that is being redriven.
    let calls = target.count();
    assert!(calls <= 46, "{calls} calls");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(target.count(), calls, "the operation continues after its cancel");
    assert_eq!(client.post(&format!("/v1/operations/{id}/cancel"), &json!({})).await.status, 409);
}

#[tokio::test]
async fn a_redrive_with_a_rate_limit_continues_after_a_kill_and_redrives_each_task_once() {
    const TASKS: usize = 60;
    const RATE: u64 = 10;
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new(folder.path()).flags(&["--lease", "500ms"]);
    let service = launch.start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(400)).await;
    create_dead_letters(&client, &target, TASKS).await;
    target.set_script(|_| Reply::status(200));
    let id = start_redrive(&client, &json!({"ratePerSecond": RATE, "canary": 5})).await;
    target.wait_for_calls(TASKS + 35).await;
    service.kill();
    let calls = &target.calls()[TASKS..];
    let (planned, took) = (30.0 / RATE as f64, (calls[34].at - calls[5].at).as_secs_f64());
    println!("30 calls took {took:.1} s");
    assert!(took < 3.0 * planned, "30 calls took {took:.1} s at a rate of {RATE} per second");

    let service = launch.start();
    let client = service.client();
    let ended = wait_for_operation(&client, &id).await;
    assert_eq!((&ended["state"], &ended["matched"]), (&json!("done"), &json!(TASKS)), "{ended}");
    wait_until_all_ended(&client).await;
    let tasks = client.list("/v1/tasks?state=succeeded").await;
    assert_eq!(tasks.len(), TASKS);
    assert!(runs(&client, &tasks).await.iter().all(|runs| *runs == 2), "a task was redriven twice");
    check_rate(&target, TASKS, RATE);
}

/// Checks that no second has more than twice the calls that the rate allows. The factor leaves room for a
/// batch, and for the calls that the service makes up for after the crash.
fn check_rate(target: &Target, before: usize, rate: u64) {
    let calls = &target.calls()[before..];
    let most = calls
        .iter()
        .map(|first| calls.iter().filter(|call| call.at >= first.at && call.at - first.at < SECOND).count())
        .max();
    let most = most.unwrap_or(0) as u64;
    println!("at most {most} calls in one second");
    assert!(most <= 2 * rate, "{most} calls in one second at a rate of {rate} per second");
}

const SECOND: Duration = Duration::from_secs(1);
