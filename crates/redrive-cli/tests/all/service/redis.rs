//! The service on Redis: it loses no accepted task, and rejects a server whose settings could lose tasks.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redrive_testkit::servers::{Redis, RedisCluster};
use serde_json::{Value, json};

use crate::fixtures::{Client, Launch, Reply, Service, Target, eventually, redrive};
use crate::service::crash::wait_until_all_ended;

/// A Redis server that syncs every write to disk before it answers, and the folder that the nodes share.
struct SharedStore {
    folder: tempfile::TempDir,
    server: Redis,
}

impl SharedStore {
    fn new() -> Self {
        let server = Redis::start_with(&[("appendfsync", "always")]);
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

/// A task whose retries follow at once.
fn task(target: &Target, path: &str, attempts: u32) -> Value {
    json!({
        "target": target.url(path), "bodyJson": { "path": path },
        "policy": {
            "maxAttempts": attempts, "backoffType": "fixed", "initialDelayMs": 1, "jitterType": "none",
            "totalBudgetMs": null,
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_retried_become_dead_letters_and_are_redriven() {
    let store = SharedStore::new();
    let node = store.start_node();
    let client = node.client();
    let target = Target::start(|call| match (call.path.as_str(), call.attempt()) {
        ("/flaky", 1..=2) => Reply::status(503),
        ("/doomed", _) => Reply::status(400),
        _ => Reply::status(200),
    })
    .await;

    let flaky = client.create(&task(&target, "/flaky", 5)).await;
    let ended = client.wait_for_end(&flaky).await;
    assert_eq!((&ended["state"], &ended["attemptNumber"]), (&json!("succeeded"), &json!(3)), "{ended}");
    let answers: Vec<Value> =
        client.attempts(&flaky).await.iter().map(|attempt| attempt["responseStatus"].clone()).collect();
    assert_eq!(answers, [503, 503, 200]);

    let mut keyed = task(&target, "/keyed", 1);
    keyed["idempotencyKey"] = json!("order-7");
    let first = client.create(&keyed).await;
    assert_eq!(client.post("/v1/tasks", &keyed).await.json(200)["taskId"], json!(first));
    keyed["bodyJson"] = json!("another request under the same key");
    client.post("/v1/tasks", &keyed).await.json(422);
    assert_eq!(client.wait_for_end(&first).await["state"], "succeeded");

    let doomed = client.create(&task(&target, "/doomed", 1)).await;
    assert_eq!(client.wait_for_end(&doomed).await["state"], "dead");
    let dead = client.list("/v1/dead-letters?reason=not_retryable").await;
    assert_eq!(dead.iter().map(|letter| &letter["taskId"]).collect::<Vec<_>>(), [&json!(doomed)]);
    target.set_script(|_| Reply::status(200));
    client.post("/v1/operations", &json!({"kind": "redrive"})).await.json(202);
    eventually("the redriven task succeeds", async || {
        (client.task(&doomed).await["state"] == "succeeded").then_some(())
    })
    .await;
    assert_eq!(client.list("/v1/dead-letters?reason=not_retryable").await, [] as [Value; 0]);
    let calls = target.calls();
    let to = |path: &str| calls.iter().filter(|call| call.path == path).count();
    assert_eq!((to("/flaky"), to("/keyed"), to("/doomed")), (3, 1, 2));
}

/// Creates tasks with idempotency keys until `stop` is set. Returns the path and the id of each.
async fn create_until(client: Client, target: Arc<Target>, stop: Arc<AtomicBool>) -> Vec<(String, String)> {
    let mut accepted = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let path = format!("/{number}");
        let mut task = task(&target, &path, 20);
        task["idempotencyKey"] = json!(path);
        let answer = client.post("/v1/tasks", &task).await;
        let created = answer.json(answer.status);
        accepted.push((path, created["taskId"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()));
    }
    accepted
}

#[tokio::test(flavor = "multi_thread")]
async fn no_accepted_task_is_lost_when_a_node_and_then_the_server_are_killed() {
    let mut store = SharedStore::new();
    let (one, two) = tokio::join!(async { store.start_node() }, async { store.start_node() });
    let target = Arc::new(Target::start(|_| Reply::after_ms(20, Reply::status(200))).await);
    let stop = Arc::new(AtomicBool::new(false));
    let caller = tokio::spawn(create_until(two.client(), target.clone(), stop.clone()));
    target.wait_for_calls(60).await;
    one.kill();
    let killed_at = target.count();
    target.wait_for_calls(killed_at + 60).await;
    stop.store(true, Ordering::SeqCst);
    let accepted = caller.await.unwrap();
    assert!(accepted.len() > 100, "the load is too small");
    // Every acknowledged task is on disk.
    store.server.restart();
    eventually("the node is connected again", async || {
        (two.client().get("/readyz").await.status == 200).then_some(())
    })
    .await;
    wait_until_all_ended(&two.client()).await;

    let calls = target.calls();
    let mut workers = std::collections::BTreeSet::new();
    for (path, id) in &accepted {
        assert_eq!(two.client().task(id).await["state"], "succeeded", "{path}");
        let ids: Vec<&str> =
            calls.iter().filter(|call| call.path == *path).map(|call| call.task_id()).collect();
        assert!(!ids.is_empty() && ids.iter().all(|called| called == id), "{path}: {id} {ids:?}");
        let attempts = two.client().attempts(id).await;
        workers.extend(attempts.iter().map(|attempt| attempt["worker"].as_str().unwrap().to_owned()));
    }
    assert_eq!(workers.len(), 2, "both nodes made attempts");
    assert_eq!(two.client().list("/v1/tasks?state=succeeded").await.len(), accepted.len());
}

fn doctor(folder: &Path, store: &str) -> Output {
    redrive(folder).args(["doctor", "--store", store]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_server_whose_settings_could_lose_jobs_is_rejected_unless_the_check_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    for (name, value, remedy) in [
        ("appendonly", "no", "set `appendonly yes`"),
        ("maxmemory-policy", "allkeys-lru", "set `maxmemory-policy noeviction`"),
    ] {
        let server = Redis::start_with(&[("appendfsync", "always"), (name, value)]);
        let store = server.address();
        let launch = |store: &str| Launch::new(folder.path()).flags(&["--store", store]);
        let setting = format!("`{name} {value}`");
        let refused = launch(&store).fail_to_start();
        let stderr = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{stderr}");
        for word in [setting.as_str(), remedy, "durability=unchecked"] {
            assert!(stderr.contains(word), "{word}: {stderr}");
        }
        assert_eq!(server.run(&["DBSIZE"]), "0", "a rejected server is not changed");

        let found = doctor(folder.path(), &store);
        let findings = text(&found.stdout);
        assert_eq!(found.status.code(), Some(1), "{findings}");
        assert!(findings.starts_with("critical durability: ") && findings.contains(&setting), "{findings}");
        assert!(findings.contains(&format!("      -> {remedy}")), "{findings}");

        let service = launch(&format!("{store}?durability=unchecked")).start();
        service.client().get("/readyz").await.json(200);
        assert!(service.log().contains(&setting), "the log does not name the setting: {}", service.log());
    }
}

#[tokio::test]
async fn the_log_and_doctor_say_how_much_an_outage_can_lose() {
    let folder = tempfile::tempdir().unwrap();
    for (fsync, expected, severity) in [
        ("everysec", "can lose the jobs of the last 2 s", "warning"),
        ("no", "can lose the jobs of the last 30 s", "warning"),
        ("always", "loses no acknowledged job", "ok"),
    ] {
        let server = Redis::start_with(&[("appendfsync", fsync)]);
        let log_before = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default().len();
        let service = Launch::new(folder.path()).flags(&["--store", &server.address()]).start();
        let log = service.log().split_off(log_before);
        assert!(log.contains(expected), "{log}");
        let found = doctor(folder.path(), &server.address());
        let text = text(&found.stdout);
        assert_eq!(found.status.code(), Some(0), "{text}");
        let line =
            text.lines().find(|line| line.contains("durability: ")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.starts_with(severity) && line.contains(expected), "{text}");
        assert!(text.contains(&format!("appendfsync {fsync}")), "{text}");
    }
}

#[test]
fn doctor_checks_every_server_of_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = RedisCluster::start(3, 0, &[("appendfsync", "always")]);
    let healthy = text(&doctor(folder.path(), &cluster.address()).stdout);
    assert_eq!(healthy.matches("ok       durability: ").count(), 3, "{healthy}");
    cluster.node(1).run(&["CONFIG", "SET", "maxmemory", "1mb"]);
    cluster.node(2).run(&["CONFIG", "SET", "appendonly", "no"]);
    let ports = [cluster.node(1).port(), cluster.node(2).port()];
    let found = doctor(folder.path(), &cluster.address());
    let findings = text(&found.stdout);
    assert_eq!(found.status.code(), Some(1), "{findings}");
    let line_after = |check: &str| {
        let mut lines = findings.lines().skip_while(|line| !line.starts_with(check));
        lines.nth(1).unwrap_or_else(|| panic!("{findings}")).to_owned()
    };
    assert!(line_after("critical durability: ").contains(&ports[1].to_string()), "{findings}");
    assert!(line_after("warning  memory: ").contains(&ports[0].to_string()), "{findings}");
}
