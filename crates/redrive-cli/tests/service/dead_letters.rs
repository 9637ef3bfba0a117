//! Long operations on dead letters: counted, paced, tried on a few first, stopped, and taken up again after a crash.

use std::time::Duration;

use serde_json::{Value, json};

use crate::crash::all_ended;
use crate::stage::{Client, Launch, Reply, Target, eventually};

/// Makes dead letters of a target that refuses everything.
async fn kill(client: &Client, target: &Target, tasks: usize) {
    let items = vec![json!({"targetUrl": target.url("/")}); tasks];
    client.post("/retry-tasks/batch", &json!({ "items": items })).await.json(200);
    all_ended(client).await;
    assert_eq!(client.list("/dead-letters?reason=NOT_RETRYABLE").await.len(), tasks);
}

async fn redrive(client: &Client, request: &Value) -> String {
    let begun = client.post("/dead-letters/redrive", request).await;
    let operation = begun.json(202);
    let id = operation["operationId"].as_str().unwrap().to_owned();
    assert_eq!(begun.headers["location"], format!("/operations/{id}"));
    id
}

async fn operation(client: &Client, id: &str) -> Value {
    client.get(&format!("/operations/{id}")).await.json(200)
}

/// The operation, once it no longer runs.
async fn over(client: &Client, id: &str) -> Value {
    eventually("the operation ends", async || {
        let operation = operation(client, id).await;
        (operation["state"] != "RUNNING").then_some(operation)
    })
    .await
}

/// How often each task was driven: once when it was created, and once more for each redrive.
async fn runs(client: &Client, tasks: &[Value]) -> Vec<u64> {
    let mut runs = Vec::new();
    for task in tasks {
        let attempts = client.attempts(task["taskId"].as_str().unwrap()).await;
        runs.push(attempts.iter().map(|attempt| attempt["run"].as_u64().unwrap()).max().unwrap());
    }
    runs
}

#[tokio::test]
async fn a_canary_that_fails_spares_the_rest_and_a_stopped_operation_goes_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(400)).await;
    kill(&client, &target, 40).await;

    let counted = client.post("/dead-letters/redrive", &json!({"dryRun": true})).await.json(200);
    assert_eq!(counted["matched"], 40);
    let other = json!({"dryRun": true, "reason": "BODY_LOST"});
    assert_eq!(client.post("/dead-letters/redrive", &other).await.json(200)["matched"], 0);
    assert_eq!(target.count(), 40, "a dry run drives nothing");

    let id = redrive(&client, &json!({"canary": 3})).await;
    let ended = over(&client, &id).await;
    assert_eq!((&ended["state"], &ended["done"]), (&json!("CANARY_FAILED"), &json!(3)), "{ended}");
    all_ended(&client).await;
    assert_eq!(target.count(), 43, "only the canaries were driven");

    let id = redrive(&client, &json!({"ratePerSecond": 2})).await;
    target.expect(44).await;
    let stopped = client.delete(&format!("/operations/{id}")).await.json(200);
    assert_eq!(stopped["state"], "STOPPED");
    all_ended(&client).await;
    // One step may have been under way.
    let driven = target.count();
    assert!(driven <= 46, "{driven} calls");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(target.count(), driven, "it goes on although it was stopped");
    assert_eq!(client.delete(&format!("/operations/{id}")).await.status, 409);
}

#[tokio::test]
async fn a_paced_redrive_goes_on_after_a_kill_and_drives_each_task_once() {
    const TASKS: usize = 60;
    const RATE: u64 = 10;
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch::new(folder.path()).flags(&["--lease-ms", "500"]);
    let service = launch.start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(400)).await;
    kill(&client, &target, TASKS).await;
    target.now(|_| Reply::status(200));
    let id = redrive(&client, &json!({"ratePerSecond": RATE, "canary": 5})).await;
    target.expect(TASKS + 35).await;
    service.kill();
    let driven = &target.calls()[TASKS..];
    let (thirty, took) = (30.0 / RATE as f64, (driven[34].at - driven[5].at).as_secs_f64());
    println!("30 took {took:.1} s");
    assert!(took < 3.0 * thirty, "30 took {took:.1} s at a rate of {RATE}");

    let service = launch.start();
    let client = service.client();
    let ended = over(&client, &id).await;
    assert_eq!((&ended["state"], &ended["matched"]), (&json!("DONE"), &json!(TASKS)), "{ended}");
    all_ended(&client).await;
    let tasks = client.list("/retry-tasks?status=SUCCEEDED").await;
    assert_eq!(tasks.len(), TASKS);
    assert!(runs(&client, &tasks).await.iter().all(|runs| *runs == 2), "a task was driven twice");
    check_pace(&target, TASKS, RATE);
}

/// In any second no more than the rate allows, a step and a catch-up after the crash aside.
fn check_pace(target: &Target, before: usize, rate: u64) {
    let driven = &target.calls()[before..];
    let most = driven
        .iter()
        .map(|first| driven.iter().filter(|call| call.at >= first.at && call.at - first.at < SECOND).count())
        .max();
    let most = most.unwrap_or(0) as u64;
    println!("at most {most} in a second");
    assert!(most <= 2 * rate, "{most} in one second at a rate of {rate}");
}

const SECOND: Duration = Duration::from_secs(1);
