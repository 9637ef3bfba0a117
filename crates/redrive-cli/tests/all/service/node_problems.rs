//! Problems of the machine itself: they cost no task an attempt, and the node reports them.

use serde_json::{Value, json};

use crate::fixtures::{Client, Launch, Reply, Target, eventually};

/// The problem in the overview that is about nodes.
async fn node_problem(client: &Client) -> Option<String> {
    let overview = client.get("/v1/overview").await.json(200);
    let problems = overview["problems"].as_array().unwrap();
    let found = problems.iter().find(|problem| problem["page"] == "nodes");
    found.map(|problem| problem["text"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_process_without_file_descriptors_charges_no_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    // Opens a connection, over which the test can call the service while it has no file descriptors.
    client.get("/readyz").await.json(200);
    let policy = json!({"maxAttempts": 2, "backoffType": "fixed", "initialDelayMs": 1, "jitterType": "none"});
    let mut tasks = Vec::new();
    for body in ["small".to_owned(), "large ".repeat(20_000)] {
        for number in 0..3 {
            let url = target.url(&format!("/{}/{number}", body.len()));
            let task = json!({"target": url, "body": body, "delayMs": 1_500, "policy": policy});
            tasks.push(client.create(&task).await);
        }
    }
    // The process cannot open further files. Files that are open stay open.
    service.limit_open_files(3);
    let text = eventually("the node reports its problem", async || node_problem(&client).await).await;
    assert!(text.contains("file descriptors") && text.contains("EMFILE"), "{text}");
    assert_eq!(target.connections(), 0);
    for id in &tasks {
        // The node tries an attempt now and then. It is refunded, so the task is soon pending again.
        eventually("the task waits and is not charged", async || {
            let task = client.task(id).await;
            (task["state"] == "pending" && task["attemptNumber"] == 0).then_some(())
        })
        .await;
        assert_eq!(client.attempts(id).await, Vec::<Value>::new());
    }

    service.limit_open_files(1_024);
    for id in &tasks {
        let task = client.wait_for_end(id).await;
        assert_eq!((&task["state"], &task["attemptNumber"]), (&json!("succeeded"), &json!(1)), "{task}");
        assert_eq!(client.attempts(id).await.len(), 1);
    }
    eventually("the problem is over", async || node_problem(&client).await.is_none().then_some(())).await;
    assert_eq!(target.count(), tasks.len());
    let log = service.log();
    assert_eq!(log.matches("this node cannot make attempts").count(), 1, "{log}");
    assert!(log.contains("this node makes attempts again"), "{log}");
}
