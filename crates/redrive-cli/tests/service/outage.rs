//! An origin that goes down under thousands of tasks: it is left alone, it is not flooded when it is back, nothing is
//! lost, and the others do not notice.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::crash::all_ended;
use crate::stage::{Call, Client, Launch, Reply, Service, Target, alone, eventually};

const TASKS: usize = 5_000;
const DOWN: Duration = Duration::from_secs(30);
/// How long an origin that is only slow is watched.
const SLOW: Duration = Duration::from_secs(12);
/// Calls that may fail while the origin is down: what it takes to notice, and a probe now and then.
const CALLS_WHILE_DOWN_MAX: u64 = 300;
/// From creation to arrival at the other origin, in the slowest of a hundred cases.
const NEIGHBOUR_P99_MAX: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_down_for_30_s_is_left_alone_and_loses_nothing() {
    let _alone = alone().await;
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start_on("127.0.0.2", |_| Reply::after_ms(20, Reply::status(200))).await;
    let neighbour = Neighbour::start(client.clone()).await;
    let control = Control::start().await;

    create(&client, &target, TASKS).await;
    target.expect(500).await;
    let (went_down, before) = (Instant::now(), target.count());
    target.down().await;
    assert!(before < TASKS - 1_000, "it was too quick to be caught: {before} calls before it went down");
    check_held_back(&client, &target).await;
    let noticed = Instant::now();
    tokio::time::sleep(DOWN.saturating_sub(went_down.elapsed())).await;
    let failed_while_down = failed_attempts(&client).await;
    target.up().await;
    let came_back = Instant::now();

    all_ended(&client).await;
    println!("all delivered {:?} after it came back", came_back.elapsed());
    let delays = neighbour.end().await;
    let tasks = client.list(&format!("/retry-tasks?target={}", target.origin())).await;
    assert_eq!(tasks.len(), TASKS);
    assert!(tasks.iter().all(|task| task["status"] == "SUCCEEDED"));
    let failed = failures(&tasks);
    println!("{failed_while_down} calls failed while it was down, {failed} in all");
    // Parked tasks are charged nothing: every attempt beyond the one that succeeded was a call.
    assert!(failed <= CALLS_WHILE_DOWN_MAX, "{failed} failed calls");
    assert!(failed_while_down > 0);
    check_ramp(&target.calls(), came_back);
    // Until then it queued behind thousands of tasks that were created at once.
    control.bounds(&delays, noticed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_answers_503_is_left_alone_too() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::after_ms(5, Reply::status(503))).await;

    create(&client, &target, 1_000).await;
    check_held_back(&client, &target).await;
    let noticed = target.count();
    eventually("a few probes", async || {
        let gate = gate(&client, &target).await;
        (gate["closedForMs"].as_u64().unwrap_or(0) > 4_000).then_some(())
    })
    .await;
    let probes = target.count() - noticed;
    println!("{noticed} calls until it was noticed, {probes} probes");
    assert!(noticed <= 300 && probes <= 6, "{noticed} calls, then {probes} probes");
    target.now(|_| Reply::status(200));
    all_ended(&client).await;
    let tasks = client.list(&format!("/retry-tasks?target={}", target.origin())).await;
    assert!(tasks.len() == 1_000 && tasks.iter().all(|task| task["status"] == "SUCCEEDED"));
    let failed = target.calls().len() as u64 - 1_000;
    assert_eq!(failures(&tasks), failed, "an attempt that was charged was a call, and the other way round");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_slow_does_not_slow_its_neighbour() {
    let _alone = alone().await;
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::after_ms(2_000, Reply::status(200))).await;
    let neighbour = Neighbour::start(client.clone()).await;
    let control = Control::start().await;
    create(&client, &target, 3_000).await;
    target.expect(100).await;
    let busy = Instant::now();
    tokio::time::sleep(SLOW).await;
    let waiting = gate(&client, &target).await["waiting"].as_u64().unwrap();
    assert!(waiting > 1_000, "only {waiting} tasks wait for the slow one");
    control.bounds(&neighbour.end().await, busy).await;
}

/// The same neighbour at a service that has nothing else to do. A busy machine slows both down; only the real one could
/// wait for the origin that fails.
struct Control {
    neighbour: Neighbour,
    _service: Service,
    _folder: tempfile::TempDir,
}

impl Control {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let service = Launch::new(folder.path()).start();
        Self { neighbour: Neighbour::start(service.client()).await, _service: service, _folder: folder }
    }

    /// Refuses delays that are far above those elsewhere.
    async fn bounds(self, delays: &[(Instant, Duration)], since: Instant) {
        let bound = NEIGHBOUR_P99_MAX.max(2 * p99("elsewhere", &self.neighbour.end().await, since));
        let p99 = p99("the neighbour", delays, since);
        assert!(p99 < bound, "the neighbour waited: {p99:?}, at most {bound:?} are allowed");
    }
}

/// Creates tasks that survive an outage, in batches.
async fn create(client: &Client, target: &Target, tasks: usize) {
    let policy = json!({
        "policyId": "patient", "maxAttempts": 100, "backoffType": "FIXED", "initialDelayMs": 500,
        "totalBudgetMs": null,
    });
    client.post("/retry-policies", &policy).await.json(201);
    for batch in 0..tasks / 500 {
        let task = |n: usize| json!({"targetUrl": target.url("/hook"), "policyId": "patient", "bodyJson": batch * 500 + n});
        let items: Vec<Value> = (0..500).map(task).collect();
        let answer = client.post("/retry-tasks/batch", &json!({ "items": items })).await.json(200);
        assert!(answer["items"].as_array().unwrap().iter().all(|item| item["status"] == 201));
    }
}

async fn gate(client: &Client, target: &Target) -> Value {
    let origins = client.get("/origins").await.json(200);
    let mut gates = origins["items"].as_array().unwrap().iter();
    gates.find(|gate| gate["origin"] == target.origin()).cloned().unwrap_or(Value::Null)
}

/// The gate closes, and a task that it holds back says so and was not charged an attempt.
async fn check_held_back(client: &Client, target: &Target) {
    eventually("the gate closes", async || {
        ["CLOSED", "PROBING"].contains(&gate(client, target).await["state"].as_str()?).then_some(())
    })
    .await;
    let url = format!("/retry-tasks?status=PENDING&limit=1000&target={}", target.origin());
    let page = client.get(&url).await.json(200);
    let parked = page["items"].as_array().unwrap().iter().find(|task| task["attemptNumber"] == 0);
    let parked = parked.unwrap_or_else(|| panic!("every task was charged")).clone();
    let id = parked["taskId"].as_str().unwrap();
    let why = eventually("the gate is what holds it", async || {
        let why = client.get(&format!("/retry-tasks/{id}/why")).await.json(200);
        (why["because"] == "GATE_HOLDS").then_some(why)
    })
    .await;
    assert!(why["origin"] == target.origin() && why["until"].is_i64(), "{why}");
    assert!(client.attempts(id).await.is_empty(), "parked, and yet there is an attempt");
}

async fn failed_attempts(client: &Client) -> u64 {
    failures(&client.list("/retry-tasks?policyId=patient").await)
}

/// Attempts that were charged and did not succeed.
fn failures(tasks: &[Value]) -> u64 {
    let failed =
        |task: &Value| task["attemptNumber"].as_u64().unwrap() - u64::from(task["status"] == "SUCCEEDED");
    tasks.iter().map(failed).sum()
}

/// From one second to the next the calls about double at most.
fn check_ramp(calls: &[Call], came_back: Instant) {
    let mut seconds: Vec<usize> = Vec::new();
    let after: Vec<_> = calls.iter().filter(|call| call.at > came_back).collect();
    let first = after.first().unwrap_or_else(|| panic!("no call came back")).at;
    for call in &after {
        let second = usize::try_from((call.at - first).as_secs()).unwrap();
        seconds.resize(seconds.len().max(second + 1), 0);
        seconds[second] += 1;
    }
    println!("calls in each second after it came back: {seconds:?}");
    assert!(seconds[0] <= 150, "flooded at once: {seconds:?}");
    for pair in seconds.windows(2) {
        assert!(pair[1] as f64 <= 2.5 * pair[0] as f64 + 50.0, "more than doubled: {seconds:?}");
    }
}

/// A steady trickle to an origin that works.
struct Neighbour {
    target: Target,
    trickle: tokio::task::JoinHandle<Vec<(String, Instant)>>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Neighbour {
    async fn start(client: Client) -> Self {
        let target = Target::start(|_| Reply::status(200)).await;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let trickle = tokio::spawn(trickle(client, target.url("/neighbour"), stopped));
        Self { target, trickle, stop }
    }

    /// When each task was created, and how long it took to arrive.
    async fn end(self) -> Vec<(Instant, Duration)> {
        self.stop.send(()).unwrap();
        let created = self.trickle.await.unwrap();
        let calls = self.target.expect(created.len()).await;
        let arrived: std::collections::HashMap<&str, Instant> =
            calls.iter().map(|call| (call.key(), call.at)).collect();
        created.iter().map(|(key, at)| (*at, arrived[key.as_str()].saturating_duration_since(*at))).collect()
    }
}

async fn trickle(
    client: Client,
    url: String,
    mut stopped: tokio::sync::oneshot::Receiver<()>,
) -> Vec<(String, Instant)> {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let mut created = Vec::new();
    while stopped.try_recv().is_err() {
        ticks.tick().await;
        let key = format!("neighbour-{}", created.len());
        let task = json!({"targetUrl": url, "idempotencyKey": key});
        created.push((key, Instant::now()));
        client.create(&task).await;
    }
    created
}

/// The slowest of a hundred tasks that were created after `from`.
fn p99(what: &str, delays: &[(Instant, Duration)], from: Instant) -> Duration {
    let mut delays: Vec<_> = delays.iter().filter(|(created, _)| *created > from).collect();
    delays.sort_by_key(|(_, delay)| *delay);
    assert!(delays.len() > 400, "hardly a trickle: {}", delays.len());
    let (_, p99) = delays[delays.len() * 99 / 100];
    let slowest: Vec<_> =
        delays.iter().rev().take(10).map(|(created, delay)| (*created - from, *delay)).collect();
    println!("{what}: {} tasks, p99 {p99:?}; when, and how long the slowest: {slowest:.1?}", delays.len());
    *p99
}
