//! The overview of the service: current problems, series and nodes.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::Store as _;
use redrive_core::{Outcome, Timestamp};
use redrive_server::{Access, Config, Service};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_testkit::ManualClock;
use redrive_wire::Scope;
use redrive_worker::Context;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::stage::{Stage, parts};

/// A node whose store has a clock that only the test advances.
async fn stage() -> (Stage, ManualClock) {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_ms(1_800_000_000_000));
    let options = Options::default().with_clock(clock.clone());
    let store = SqliteStore::open_in_memory_with(options).unwrap();
    (Stage::on(Arc::new(store), Access::OpenWithoutKeys).await, clock)
}

/// The text and the page of each problem in the overview.
async fn problems(stage: &Stage) -> Vec<(String, String)> {
    let overview = stage.get("/v1/overview").await.body;
    let problems = overview["problems"].as_array().unwrap_or_else(|| panic!("{overview}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    problems.iter().map(|problem| (text(&problem["text"]), text(&problem["page"]))).collect()
}

#[tokio::test]
async fn the_series_has_a_point_with_the_counts_of_each_step() {
    let (stage, clock) = stage().await;
    assert_eq!(stage.get("/v1/series").await.body, json!({"stepMs": 10_000, "points": []}));
    stage.task().await;
    stage.api.sample().await.unwrap();
    clock.advance(Duration::from_secs(10));
    stage.task().await;
    stage.api.sample().await.unwrap();
    let hour = stage.get("/v1/series?span=hour").await.body;
    let points = hour["points"].as_array().unwrap();
    assert_eq!(points.len(), 2, "{hour}");
    assert_eq!(points[1]["at"].as_i64().unwrap() - points[0]["at"].as_i64().unwrap(), 10_000);
    let pending: Vec<&Value> = points.iter().map(|point| &point["jobs"]["pending"]).collect();
    assert_eq!(pending, [1, 2]);
    assert_eq!(points[1]["oldestDueMs"], 10_000);
    assert!(points[1].get("startLagP50Ms").is_none(), "nothing was started: {hour}");
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(
        stage.get("/v1/series").await.body["points"],
        json!([]),
        "after an hour, only the series of the day has the points"
    );
    let day = stage.get("/v1/series?span=day").await.body;
    assert_eq!((&day["stepMs"], day["points"].as_array().unwrap().len()), (&json!(300_000), 2), "{day}");
    assert_eq!(stage.get("/v1/series?span=week").await.problem(), (422, "invalid", Some("span")));
}

#[tokio::test]
async fn the_series_of_a_node_survives_its_end_and_is_added_to_those_of_others() {
    let (first, clock) = stage().await;
    first.block_gate("http://example.com:80");
    first.task().await;
    first.api.save_node_state().await.unwrap();
    let second = first.another("node-2").await;
    let series = second.get("/v1/series").await.body;
    assert_eq!(series["points"][0]["jobs"]["pending"], 1, "{series}");
    second.block_gate("http://example.com:80");
    second.api.sample().await.unwrap();
    let path = "/v1/origins/series?origin=http://example.com:80";
    let origin = second.get(path).await.body;
    let point = &origin["points"][0];
    assert_eq!(
        (&point["state"], &point["limit"]),
        (&json!("blocked"), &json!(2)),
        "each node allows one call: {origin}"
    );
    assert!(point["failed"].as_u64() > Some(8), "the failures of both nodes are added: {origin}");
    assert_eq!(second.get("/v1/origins/series?origin=http://other:80").await.body["points"], json!([]));
    assert_eq!(second.get("/v1/origins/series").await.problem(), (422, "invalid", Some("origin")));
    let problems = problems(&second).await;
    assert!(
        problems
            .iter()
            .any(|(text, page)| text.contains("gate of http://example.com:80 blocked") && page == "origins")
    );
    drop(clock);
}

#[tokio::test]
async fn the_list_has_nodes_with_a_heartbeat_and_workers_with_leases() {
    let (stage, clock) = stage().await;
    stage.api.save_node_state().await.unwrap();
    stage.task().await;
    stage.task().await;
    stage.claim().await;
    let nodes = stage.get("/v1/nodes").await.body;
    assert_eq!((&nodes["examined"], &nodes["complete"]), (&json!(2), &json!(true)), "{nodes}");
    let [service, library] = &nodes["items"].as_array().unwrap()[..] else { panic!("{nodes}") };
    assert_eq!(
        (&service["name"], &service["service"], &service["leases"]),
        (&json!("node-1"), &json!(true), &json!(0))
    );
    assert_eq!(service["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(service["seenAt"], clock.now().as_ms());
    assert_eq!(
        (&library["name"], &library["service"], &library["leases"]),
        (&json!("w1"), &json!(false), &json!(2))
    );
    assert_eq!(
        (&library["kinds"], &library["oldestLeaseAt"]),
        (&json!(["delivery"]), &json!(clock.now().as_ms()))
    );
    assert!(
        library.get("seenAt").is_none(),
        "a library worker sends no heartbeats to the service: {library}"
    );
}

#[tokio::test]
async fn the_overview_lists_current_problems() {
    let (stage, clock) = stage().await;
    assert_eq!(problems(&stage).await, []);
    for _ in 0..3 {
        stage.task().await;
    }
    stage.kill().await;
    stage.task().await;
    clock.advance(Duration::from_secs(240));
    let dead = "3 tasks died in the last hour for http://example.com (not_retryable: status 503)";
    let late = "oldest due job has waited 4 min: are workers running?";
    let problem = |text: &str, page: &str| (text.to_owned(), page.to_owned());
    assert_eq!(
        problems(&stage).await,
        [problem(dead, "dead"), problem(late, "jobs")],
        "the most severe problem comes first"
    );
    let overview = stage.get("/v1/overview").await.body;
    let query = json!({"reason": "not_retryable", "kind": "delivery", "target": "http://example.com"});
    assert_eq!(overview["problems"][0]["query"], query);
    assert_eq!((&overview["jobs"]["dead"], &overview["jobs"]["pending"]), (&json!(3), &json!(1)));
    assert_eq!(overview["oldestDueMs"], 240_000);
    assert_eq!(overview["attemptsPerSecond"]["succeeded"], 0.0);
    stage.post("/v1/queues/default/pause", json!({})).await;
    let paused = "queue default is paused with 1 job waiting";
    assert_eq!(problems(&stage).await, [problem(dead, "dead"), problem(paused, "queues")]);
    assert_eq!(stage.get("/v1/overview").await.body["pausedQueues"], json!(["default"]));
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(
        problems(&stage).await,
        [problem(paused, "queues")],
        "jobs that died more than an hour ago are left out"
    );
}

#[tokio::test]
async fn a_tenant_sees_only_its_own_jobs_and_problems() {
    let (stage, _clock) = stage().await;
    stage.task().await;
    stage.kill().await;
    stage.api.sample().await.unwrap();
    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Write).await);
    let send = async |method: &str, path: &str, body: Option<Value>| {
        stage.send(method, path, body, &[("authorization", &key)]).await.body
    };
    send("POST", "/v1/tasks", Some(json!({"target": "http://example.com/"}))).await;
    let overview = send("GET", "/v1/overview", None).await;
    assert_eq!(
        (&overview["jobs"]["pending"], &overview["jobs"]["dead"]),
        (&json!(1), &json!(0)),
        "{overview}"
    );
    assert_eq!(overview["problems"], json!([]));
    assert!(
        overview.get("attemptsPerSecond").is_none() && overview.get("oldestDueMs").is_none(),
        "{overview}"
    );
    assert_eq!(send("GET", "/v1/series", None).await["points"], json!([]));
}

async fn done(_: Context) -> Outcome {
    Outcome::Done(None)
}

/// The service runs with its worker. After a clean shutdown, its series remains and its heartbeat is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_are_counted_in_the_series_and_a_shutdown_removes_the_heartbeat() {
    let store = Arc::new(SqliteStore::open_in_memory().unwrap());
    let before = Stage::on(store.clone(), Access::OpenWithoutKeys).await;
    before.task().await;
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
    let service = Service::start_with(config, store.clone(), parts(), done).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(service.run_until(async { stopped.await.unwrap() }));
    let worked = async {
        while store.stats().await.unwrap().in_state(redrive_core::State::Succeeded) == 0
            || before.get("/v1/nodes").await.body["items"].as_array().unwrap().is_empty()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), worked)
        .await
        .expect("the task succeeds and the node is listed");
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(before.get("/v1/nodes").await.body["items"], json!([]), "the node has removed its heartbeat");
    let series = before.get("/v1/series").await.body;
    let points = series["points"].as_array().unwrap();
    let succeeded: u64 = points.iter().map(|point| point["succeeded"].as_u64().unwrap()).sum();
    assert_eq!(succeeded, 1, "{series}");
    assert!(points.iter().any(|point| point["startLagP99Ms"].is_u64()), "{series}");
    let overview = before.get("/v1/overview").await.body;
    assert_eq!(overview["successRate"], 1.0, "{overview}");
    assert!(overview["attemptsPerSecond"]["succeeded"].as_f64() > Some(0.0), "{overview}");
}
