//! An origin that fails while thousands of tasks wait for it: the gate holds the calls back, lets them through gradually
//! when the origin is back, loses no task, and does not slow down other origins.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixtures::{Call, Client, Launch, Reply, Service, Target, eventually, lock_machine};
use crate::service::crash::wait_until_all_ended;

const TASKS: usize = 5_000;
/// The length of the outage.
const DOWN: Duration = Duration::from_secs(30);
/// How long the test observes an origin that is slow.
const SLOW: Duration = Duration::from_secs(12);
/// The calls that may fail while the origin is down: those before the gate blocks, and the probes.
const CALLS_WHILE_DOWN_MAX: u64 = 300;
/// The p99 of the time from the creation of a task to its arrival at the other origin.
const NEIGHBOUR_P99_MAX: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_down_for_30_s_gets_few_calls_and_no_task_is_lost() {
    let _exclusive = lock_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start_on("127.0.0.2", |_| Reply::after_ms(20, Reply::status(200))).await;
    let neighbour = Neighbour::start(client.clone()).await;
    let control = Control::start().await;

    create(&client, &target, TASKS).await;
    target.wait_for_calls(500).await;
    let (went_down, before) = (Instant::now(), target.count());
    target.down().await;
    assert!(
        before < TASKS - 1_000,
        "the target was too fast for this test: {before} calls before it went down"
    );
    check_gate_holds(&client, &target).await;
    let blocked_at = Instant::now();
    tokio::time::sleep(DOWN.saturating_sub(went_down.elapsed())).await;
    let failed_while_down = failed_attempts(&client).await;
    target.up().await;
    let came_back = Instant::now();

    wait_until_all_ended(&client).await;
    println!("every task was delivered {:?} after the target came back", came_back.elapsed());
    let delays = neighbour.end().await;
    let tasks = client.list(&format!("/v1/tasks?target={}", target.origin())).await;
    assert_eq!(tasks.len(), TASKS);
    assert!(tasks.iter().all(|task| task["state"] == "succeeded"));
    let failed = failures(&tasks);
    println!("{failed_while_down} calls failed while the target was down, {failed} in total");
    // Held tasks are not charged: every charged attempt except the last, which succeeded, was a failed call.
    assert!(failed <= CALLS_WHILE_DOWN_MAX, "{failed} failed calls");
    assert!(failed_while_down > 0);
    check_ramp(&target.calls(), came_back);
    // Before that time, the tasks of the neighbour queued behind thousands of tasks that were created at once.
    control.compare(&delays, blocked_at).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_answers_503_gets_few_calls() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::after_ms(5, Reply::status(503))).await;

    create(&client, &target, 1_000).await;
    check_gate_holds(&client, &target).await;
    let until_blocked = target.count();
    eventually("the gate is blocked for longer than 4 s", async || {
        let gate = gate(&client, &target).await;
        (gate["blockedForMs"].as_u64().unwrap_or(0) > 4_000).then_some(())
    })
    .await;
    let probes = target.count() - until_blocked;
    println!("{until_blocked} calls until the gate was blocked, then {probes} probes");
    assert!(until_blocked <= 300 && probes <= 6, "{until_blocked} calls, then {probes} probes");
    target.set_script(|_| Reply::status(200));
    wait_until_all_ended(&client).await;
    let tasks = client.list(&format!("/v1/tasks?target={}", target.origin())).await;
    assert!(tasks.len() == 1_000 && tasks.iter().all(|task| task["state"] == "succeeded"));
    let failed = target.calls().len() as u64 - 1_000;
    assert_eq!(failures(&tasks), failed, "the charged attempts differ from the failed calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_slow_does_not_slow_its_neighbour() {
    let _exclusive = lock_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::after_ms(2_000, Reply::status(200))).await;
    let neighbour = Neighbour::start(client.clone()).await;
    let control = Control::start().await;
    create(&client, &target, 3_000).await;
    target.wait_for_calls(100).await;
    let loaded_at = Instant::now();
    tokio::time::sleep(SLOW).await;
    let waiting = gate(&client, &target).await["waiting"].as_u64().unwrap();
    assert!(waiting > 1_000, "only {waiting} tasks wait for the slow origin");
    control.compare(&neighbour.end().await, loaded_at).await;
}

/// The same neighbour at a second service, which has no other load. A busy machine delays both neighbours, but only the
/// first one can be delayed by the failing origin.
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

    /// Checks that the p99 of the delays is at most twice the p99 at the second service.
    async fn compare(self, delays: &[(Instant, Duration)], since: Instant) {
        let max = NEIGHBOUR_P99_MAX.max(2 * p99("the second service", &self.neighbour.end().await, since));
        let p99 = p99("the neighbour", delays, since);
        assert!(p99 < max, "the tasks of the neighbour were delayed: p99 {p99:?}, allowed {max:?}");
    }
}

/// Creates tasks in batches, with a policy under which they survive the outage.
async fn create(client: &Client, target: &Target, tasks: usize) {
    let policy = json!({
        "policyId": "patient", "maxAttempts": 100, "backoffType": "fixed", "initialDelayMs": 500,
        "totalBudgetMs": null,
    });
    client.post("/v1/policies", &policy).await.json(201);
    for batch in 0..tasks / 500 {
        let task = |n: usize| json!({"target": target.url("/hook"), "policyId": "patient", "bodyJson": batch * 500 + n});
        let items: Vec<Value> = (0..500).map(task).collect();
        let answer = client.post("/v1/tasks/batch", &json!({ "items": items })).await.json(200);
        assert!(answer["items"].as_array().unwrap().iter().all(|item| item["status"] == 201));
    }
}

async fn gate(client: &Client, target: &Target) -> Value {
    let origins = client.get("/v1/origins").await.json(200);
    let mut gates = origins["items"].as_array().unwrap().iter();
    gates.find(|gate| gate["origin"] == target.origin()).cloned().unwrap_or(Value::Null)
}

/// Waits until the gate is blocked. Checks that a task which it holds is not charged an attempt and says why it waits.
async fn check_gate_holds(client: &Client, target: &Target) {
    eventually("the gate is blocked", async || {
        ["blocked", "probing"].contains(&gate(client, target).await["state"].as_str()?).then_some(())
    })
    .await;
    let url = format!("/v1/tasks?state=pending&limit=1000&target={}", target.origin());
    let page = client.get(&url).await.json(200);
    let held = page["items"].as_array().unwrap().iter().find(|task| task["attemptNumber"] == 0);
    let held = held.unwrap_or_else(|| panic!("every task was charged")).clone();
    let id = held["taskId"].as_str().unwrap();
    let why = eventually("the gate holds the task", async || {
        let why = client.get(&format!("/v1/tasks/{id}/why")).await.json(200);
        (why["because"] == "gate_holds").then_some(why)
    })
    .await;
    assert!(why["origin"] == target.origin() && why["until"].is_i64(), "{why}");
    assert!(client.attempts(id).await.is_empty(), "a held task has an attempt");
}

async fn failed_attempts(client: &Client) -> u64 {
    failures(&client.list("/v1/tasks?policyId=patient").await)
}

/// The number of charged attempts that did not succeed.
fn failures(tasks: &[Value]) -> u64 {
    let failed =
        |task: &Value| task["attemptNumber"].as_u64().unwrap() - u64::from(task["state"] == "succeeded");
    tasks.iter().map(failed).sum()
}

/// Checks that the number of calls at most about doubles from one second to the next.
fn check_ramp(calls: &[Call], came_back: Instant) {
    let mut seconds: Vec<usize> = Vec::new();
    let after: Vec<_> = calls.iter().filter(|call| call.at > came_back).collect();
    let first = after.first().unwrap_or_else(|| panic!("no call arrived after the outage")).at;
    for call in &after {
        let second = usize::try_from((call.at - first).as_secs()).unwrap();
        seconds.resize(seconds.len().max(second + 1), 0);
        seconds[second] += 1;
    }
    println!("calls in each second after the target came back: {seconds:?}");
    assert!(seconds[0] <= 150, "too many calls in the first second: {seconds:?}");
    for pair in seconds.windows(2) {
        assert!(pair[1] as f64 <= 2.5 * pair[0] as f64 + 50.0, "the calls more than doubled: {seconds:?}");
    }
}

/// Tasks at a constant low rate to an origin that works.
struct Neighbour {
    target: Target,
    creator: tokio::task::JoinHandle<Vec<(String, Instant)>>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Neighbour {
    async fn start(client: Client) -> Self {
        let target = Target::start(|_| Reply::status(200)).await;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let creator = tokio::spawn(create_steadily(client, target.url("/neighbour"), stopped));
        Self { target, creator, stop }
    }

    /// Stops creating tasks. Returns for each task when it was created and how long it took to arrive.
    async fn end(self) -> Vec<(Instant, Duration)> {
        self.stop.send(()).unwrap();
        let created = self.creator.await.unwrap();
        let calls = self.target.wait_for_calls(created.len()).await;
        let arrived: std::collections::HashMap<&str, Instant> =
            calls.iter().map(|call| (call.key(), call.at)).collect();
        created.iter().map(|(key, at)| (*at, arrived[key.as_str()].saturating_duration_since(*at))).collect()
    }
}

async fn create_steadily(
    client: Client,
    url: String,
    mut stopped: tokio::sync::oneshot::Receiver<()>,
) -> Vec<(String, Instant)> {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let mut created = Vec::new();
    while stopped.try_recv().is_err() {
        ticks.tick().await;
        let key = format!("neighbour-{}", created.len());
        let task = json!({"target": url, "idempotencyKey": key});
        created.push((key, Instant::now()));
        client.create(&task).await;
    }
    created
}

/// The p99 of the delays of the tasks that were created after `from`.
fn p99(what: &str, delays: &[(Instant, Duration)], from: Instant) -> Duration {
    let mut delays: Vec<_> = delays.iter().filter(|(created, _)| *created > from).collect();
    delays.sort_by_key(|(_, delay)| *delay);
    assert!(delays.len() > 400, "too few tasks: {}", delays.len());
    let (_, p99) = delays[delays.len() * 99 / 100];
    let slowest: Vec<_> =
        delays.iter().rev().take(10).map(|(created, delay)| (*created - from, *delay)).collect();
    println!("{what}: {} tasks, p99 {p99:?}; creation and delay of the slowest: {slowest:.1?}", delays.len());
    *p99
}
