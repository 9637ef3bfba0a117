//! Problems of the machine itself: they cost no task an attempt, and the node says that it has them.

use serde_json::{Value, json};

use crate::stage::{Client, Launch, Reply, Target, eventually};

/// What the overview says about nodes.
async fn node_problem(client: &Client) -> Option<String> {
    let overview = client.get("/overview").await.json(200);
    let problems = overview["problems"].as_array().unwrap();
    let found = problems.iter().find(|problem| problem["page"] == "nodes");
    found.map(|problem| problem["text"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_process_without_file_descriptors_charges_no_attempt_and_delivers_once_it_has_some() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    // One connection is open from here on, over which the service can be asked about its problem.
    client.get("/readyz").await.json(200);
    let policy = json!({"maxAttempts": 2, "backoffType": "FIXED", "initialDelayMs": 1, "jitterType": "NONE"});
    let mut tasks = Vec::new();
    for body in ["small".to_owned(), "large ".repeat(20_000)] {
        for number in 0..3 {
            let url = target.url(&format!("/{}/{number}", body.len()));
            let task = json!({"targetUrl": url, "body": body, "delayMs": 1_500, "policy": policy});
            tasks.push(client.create(&task).await);
        }
    }
    // No number is left for a new descriptor; those that are open stay.
    service.limit_open_files(3);
    let text = eventually("the node names its problem", async || node_problem(&client).await).await;
    assert!(text.contains("file descriptors") && text.contains("EMFILE"), "{text}");
    assert_eq!(target.connections(), 0);
    for id in &tasks {
        // A probe may be under way at any moment; it is taken back without a charge.
        eventually("the task waits uncharged", async || {
            let task = client.task(id).await;
            (task["status"] == "PENDING" && task["attemptNumber"] == 0).then_some(())
        })
        .await;
        assert_eq!(client.attempts(id).await, Vec::<Value>::new());
    }

    service.limit_open_files(1_024);
    for id in &tasks {
        let task = client.ended(id).await;
        assert_eq!((&task["status"], &task["attemptNumber"]), (&json!("SUCCEEDED"), &json!(1)), "{task}");
        assert_eq!(client.attempts(id).await.len(), 1);
    }
    eventually("the problem is over", async || node_problem(&client).await.is_none().then_some(())).await;
    assert_eq!(target.count(), tasks.len());
    let log = service.log();
    assert_eq!(log.matches("this node cannot make attempts").count(), 1, "{log}");
    assert!(log.contains("this node makes attempts again"), "{log}");
}
