//! The service on Redis: it keeps what it has accepted, and refuses a server that would not.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redrive_testkit::servers::{Redis, RedisCluster};
use serde_json::{Value, json};

use crate::crash::all_ended;
use crate::stage::{Client, Launch, Reply, Service, Target, eventually, redrive};

/// A server that has every write on disk before its answer, and a folder for its nodes.
struct Scene {
    folder: tempfile::TempDir,
    server: Redis,
}

impl Scene {
    fn new() -> Self {
        let server = Redis::start_with(&[("appendfsync", "always")]);
        Self { folder: tempfile::tempdir().unwrap(), server }
    }

    /// Another node, with few attempts at once so that one node cannot take all there is.
    fn node(&self) -> Service {
        let store = self.server.address();
        Launch::new(self.folder.path())
            .flags(&["--store", &store, "--lease-ms", "1000", "--concurrency", "4"])
            .start()
    }
}

/// A task that is tried again at once.
fn task(target: &Target, path: &str, attempts: u32) -> Value {
    json!({
        "targetUrl": target.url(path), "bodyJson": { "path": path },
        "policy": {
            "maxAttempts": attempts, "backoffType": "FIXED", "initialDelayMs": 1, "jitterType": "NONE",
            "totalBudgetMs": null,
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_tried_again_end_as_dead_letters_and_are_driven_again() {
    let scene = Scene::new();
    let node = scene.node();
    let client = node.client();
    let target = Target::start(|call| match (call.path.as_str(), call.attempt()) {
        ("/flaky", 1..=2) => Reply::status(503),
        ("/doomed", _) => Reply::status(400),
        _ => Reply::status(200),
    })
    .await;

    let flaky = client.create(&task(&target, "/flaky", 5)).await;
    let ended = client.ended(&flaky).await;
    assert_eq!((&ended["status"], &ended["attemptNumber"]), (&json!("SUCCEEDED"), &json!(3)), "{ended}");
    let answers: Vec<Value> =
        client.attempts(&flaky).await.iter().map(|attempt| attempt["responseStatus"].clone()).collect();
    assert_eq!(answers, [503, 503, 200]);

    let mut keyed = task(&target, "/keyed", 1);
    keyed["idempotencyKey"] = json!("order-7");
    let first = client.create(&keyed).await;
    assert_eq!(client.post("/retry-tasks", &keyed).await.json(200)["taskId"], json!(first));
    keyed["bodyJson"] = json!("another request under the same key");
    client.post("/retry-tasks", &keyed).await.json(422);
    assert_eq!(client.ended(&first).await["status"], "SUCCEEDED");

    let doomed = client.create(&task(&target, "/doomed", 1)).await;
    assert_eq!(client.ended(&doomed).await["status"], "EXHAUSTED");
    let dead = client.list("/dead-letters?reason=NOT_RETRYABLE").await;
    assert_eq!(dead.iter().map(|letter| &letter["taskId"]).collect::<Vec<_>>(), [&json!(doomed)]);
    target.now(|_| Reply::status(200));
    client.post("/dead-letters/redrive", &json!({})).await.json(202);
    eventually("it is driven again", async || {
        (client.task(&doomed).await["status"] == "SUCCEEDED").then_some(())
    })
    .await;
    assert_eq!(client.list("/dead-letters?reason=NOT_RETRYABLE").await, [] as [Value; 0]);
    let calls = target.calls();
    let to = |path: &str| calls.iter().filter(|call| call.path == path).count();
    assert_eq!((to("/flaky"), to("/keyed"), to("/doomed")), (3, 1, 2));
}

/// Creates tasks until told to stop, each under a key, and asks again where no answer came.
async fn create_until(client: Client, target: Arc<Target>, stop: Arc<AtomicBool>) -> Vec<(String, String)> {
    let mut accepted = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let path = format!("/{number}");
        let mut task = task(&target, &path, 20);
        task["idempotencyKey"] = json!(path);
        let got = client.post("/retry-tasks", &task).await;
        let created = got.json(got.status);
        accepted.push((path, created["taskId"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()));
    }
    accepted
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_are_one_service_and_nothing_is_lost_when_one_and_then_the_server_is_killed() {
    let mut scene = Scene::new();
    let (one, two) = tokio::join!(async { scene.node() }, async { scene.node() });
    let target = Arc::new(Target::start(|_| Reply::after_ms(20, Reply::status(200))).await);
    let stop = Arc::new(AtomicBool::new(false));
    let caller = tokio::spawn(create_until(two.client(), target.clone(), stop.clone()));
    target.expect(60).await;
    one.kill();
    let killed_at = target.count();
    target.expect(killed_at + 60).await;
    stop.store(true, Ordering::SeqCst);
    let accepted = caller.await.unwrap();
    assert!(accepted.len() > 100, "hardly a load");
    // Whatever was acknowledged is on disk.
    scene.server.restart();
    eventually("the server is found again", async || {
        (two.client().get("/readyz").await.status == 200).then_some(())
    })
    .await;
    all_ended(&two.client()).await;

    let calls = target.calls();
    let mut workers = std::collections::BTreeSet::new();
    for (path, id) in &accepted {
        assert_eq!(two.client().task(id).await["status"], "SUCCEEDED", "{path}");
        let ids: Vec<&str> =
            calls.iter().filter(|call| call.path == *path).map(|call| call.task_id()).collect();
        assert!(!ids.is_empty() && ids.iter().all(|called| called == id), "{path}: {id} {ids:?}");
        let attempts = two.client().attempts(id).await;
        workers.extend(attempts.iter().map(|attempt| attempt["worker"].as_str().unwrap().to_owned()));
    }
    assert_eq!(workers.len(), 2, "both have worked");
    assert_eq!(two.client().list("/retry-tasks?status=SUCCEEDED").await.len(), accepted.len());
}

fn doctor(folder: &Path, store: &str) -> Output {
    redrive(folder).args(["doctor", "--store", store]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_server_that_would_lose_jobs_is_refused_by_the_name_of_its_setting_unless_told_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    for (name, value, remedy) in [
        ("appendonly", "no", "set `appendonly yes`"),
        ("maxmemory-policy", "allkeys-lru", "set `maxmemory-policy noeviction`"),
    ] {
        let server = Redis::start_with(&[("appendfsync", "always"), (name, value)]);
        let store = server.address();
        let launch = |store: &str| Launch::new(folder.path()).flags(&["--store", store]);
        let setting = format!("`{name} {value}`");
        let refused = launch(&store).refused();
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        for word in [setting.as_str(), remedy, "durability=unchecked"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert_eq!(server.run(&["DBSIZE"]), "0", "a refused server is left as it was");

        let found = doctor(folder.path(), &store);
        let said = text(&found.stdout);
        assert_eq!(found.status.code(), Some(1), "{said}");
        assert!(said.starts_with("grave    durability: ") && said.contains(&setting), "{said}");
        assert!(said.contains(&format!("      -> {remedy}")), "{said}");

        let service = launch(&format!("{store}?durability=unchecked")).start();
        service.client().get("/readyz").await.json(200);
        assert!(service.log().contains(&setting), "it says so all the same: {}", service.log());
    }
}

#[tokio::test]
async fn it_says_how_much_an_outage_can_lose() {
    let folder = tempfile::tempdir().unwrap();
    for (fsync, said, gravity) in [
        ("everysec", "can lose the last 2 s of what was acknowledged", "warning"),
        ("no", "can lose the last 30 s of what was acknowledged", "warning"),
        ("always", "loses nothing that was acknowledged", "fine"),
    ] {
        let server = Redis::start_with(&[("appendfsync", fsync)]);
        let log_before = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default().len();
        let service = Launch::new(folder.path()).flags(&["--store", &server.address()]).start();
        let log = service.log().split_off(log_before);
        assert!(log.contains(said), "{log}");
        let found = doctor(folder.path(), &server.address());
        let text = text(&found.stdout);
        assert_eq!(found.status.code(), Some(0), "{text}");
        let line =
            text.lines().find(|line| line.contains("durability: ")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.starts_with(gravity) && line.contains(said), "{text}");
        assert!(text.contains(&format!("appendfsync {fsync}")), "{text}");
    }
}

#[test]
fn the_doctor_looks_at_every_server_of_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = RedisCluster::start(3, 0, &[("appendfsync", "always")]);
    let healthy = text(&doctor(folder.path(), &cluster.address()).stdout);
    assert_eq!(healthy.matches("fine     durability: ").count(), 3, "{healthy}");
    cluster.node(1).run(&["CONFIG", "SET", "maxmemory", "1mb"]);
    cluster.node(2).run(&["CONFIG", "SET", "appendonly", "no"]);
    let ports = [cluster.node(1).port(), cluster.node(2).port()];
    let found = doctor(folder.path(), &cluster.address());
    let said = text(&found.stdout);
    assert_eq!(found.status.code(), Some(1), "{said}");
    let line_after = |check: &str| {
        let mut lines = said.lines().skip_while(|line| !line.starts_with(check));
        lines.nth(1).unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    assert!(line_after("grave    durability: ").contains(&ports[1].to_string()), "{said}");
    assert!(line_after("warning  memory: ").contains(&ports[0].to_string()), "{said}");
}
