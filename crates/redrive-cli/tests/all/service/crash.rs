//! SIGKILL under load: every accepted task is delivered with its idempotency key, and nothing else is delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fixtures::{Call, Client, Launch, Reply, Target, eventually, lock_machine};

/// The number of processes that are killed.
const ROUNDS: usize = 6;
/// The number of callers. Each creates its next task as soon as it has the answer for the last one.
const CALLERS: usize = 8;
/// The attempts of a task that must arrive. There are more attempts than kills, because each kill may cost
/// one.
const ATTEMPTS: u32 = 20;
/// The attempts of a task that never succeeds.
const DOOMED_ATTEMPTS: u32 = 3;

/// A create request of a caller.
#[derive(Debug)]
struct CreateRequest {
    key: Option<String>,
    /// The id of the task. `None` if no answer arrived and the caller did not repeat the request.
    task_id: Option<String>,
}

/// All create requests, by the path of their target.
type CreateRequests = BTreeMap<String, CreateRequest>;

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_task_is_delivered_with_its_key_although_the_process_is_killed() {
    let _exclusive = lock_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let good = Target::start(|_| Reply::status(200)).await;
    // 404 instead of 500, because failures with 500 would block the gate.
    let bad = Target::start(|_| Reply::status(404)).await;
    let launch = Launch::new(folder.path()).flags(&["--lease", "1s"]);

    let mut service = launch.start();
    let (sender, clients) = watch::channel(service.client());
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| Caller { caller, good: good.origin(), bad: bad.origin(), clients: clients.clone() })
        .map(|caller| tokio::spawn(caller.create_until(stop.clone())))
        .collect();
    for _ in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(200..1_000))).await;
        service.kill();
        service = launch.start();
        sender.send(service.client()).unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let mut requests = CreateRequests::new();
    for caller in callers {
        requests.append(&mut caller.await.unwrap());
    }

    let client = service.client();
    wait_until_all_ended(&client).await;
    let (good, bad) = (good.calls(), bad.calls());
    println!("{} requests, {} calls, {} failing calls", requests.len(), good.len(), bad.len());
    assert!(requests.len() > 100 && !bad.is_empty(), "the load is too small");
    check_calls(&requests, &good, ATTEMPTS);
    check_calls(&requests, &bad, DOOMED_ATTEMPTS);
    check_tasks(&requests, &client.list("/v1/tasks?state=succeeded").await, &good);
    let dead = client.list("/v1/tasks?state=dead").await;
    assert!(dead.iter().all(|task| path(task).starts_with("/doomed")), "{dead:?}");
    check_tasks(&requests, &dead, &bad);
}

struct Caller {
    caller: usize,
    good: String,
    bad: String,
    clients: watch::Receiver<Client>,
}

impl Caller {
    /// Creates tasks until `stop` is set. Half of them have a key; their requests are repeated until an answer arrives.
    async fn create_until(self, stop: Arc<AtomicBool>) -> CreateRequests {
        let mut requests = CreateRequests::new();
        for number in 0.. {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            let doomed = number % 10 == 9;
            let kind = if doomed { "doomed" } else { "good" };
            let path = format!("/{kind}-{}-{number}", self.caller);
            let key = (number % 4 < 2).then(|| format!("key-{}-{number}", self.caller));
            let task_id = self.create(&request(&self, &path, key.as_deref(), doomed)).await;
            requests.insert(path, CreateRequest { key, task_id });
        }
        requests
    }

    async fn create(&self, task: &Value) -> Option<String> {
        loop {
            let client = self.clients.borrow().clone();
            if let Ok(answer) = client.try_post("/v1/tasks", task).await {
                assert!([200, 201].contains(&answer.status), "{answer:?}");
                let replayed = answer.headers.contains_key("idempotency-replayed");
                assert_eq!(answer.status == 200, replayed, "{answer:?}");
                return Some(answer.json(answer.status)["taskId"].as_str().unwrap().to_owned());
            }
            task["idempotencyKey"].as_str()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn request(caller: &Caller, path: &str, key: Option<&str>, doomed: bool) -> Value {
    let (origin, attempts) = if doomed { (&caller.bad, DOOMED_ATTEMPTS) } else { (&caller.good, ATTEMPTS) };
    let mut task = json!({
        "target": format!("{origin}{path}"), "body": path,
        "policy": {
            "maxAttempts": attempts, "backoffType": "fixed", "initialDelayMs": 1, "jitterType": "none",
            "retryableStatusCodes": [404], "totalBudgetMs": null,
        },
    });
    if let Some(key) = key {
        task["idempotencyKey"] = key.into();
    }
    task
}

/// Waits until every task has ended. Reads the counts of all states at once: with one read per state, a task that
/// changes its state between two reads would be missed.
pub(crate) async fn wait_until_all_ended(client: &Client) {
    eventually("every task ends", async || {
        let queues = client.get("/v1/queues").await.json(200);
        let open = |queue: &Value| {
            ["pending", "retrying", "running", "waiting"].iter().any(|state| queue["jobs"][state].is_u64())
        };
        (!queues["items"].as_array().unwrap().iter().any(open)).then_some(())
    })
    .await;
}

/// Checks that every call belongs to a create request, carries the key of its task, and is an attempt that the policy
/// allows.
fn check_calls(requests: &CreateRequests, calls: &[Call], attempts: u32) {
    let mut tasks: BTreeMap<&str, (&str, BTreeSet<u32>)> = BTreeMap::new();
    for call in calls {
        let request = requests.get(&call.path).unwrap_or_else(|| panic!("no request created {call:?}"));
        assert_eq!(call.body, call.path.as_bytes());
        assert_eq!(call.key(), request.key.as_deref().unwrap_or(call.task_id()), "{call:?}");
        if let Some(task_id) = &request.task_id {
            assert_eq!(call.task_id(), task_id, "the call belongs to another task: {call:?}");
        }
        let (task, seen) = tasks.entry(&call.path).or_insert((call.task_id(), BTreeSet::new()));
        assert_eq!(*task, call.task_id(), "one request created two tasks");
        assert!(seen.insert(call.attempt()), "the attempt was made twice: {call:?}");
        assert!((1..=attempts).contains(&call.attempt()), "{call:?}");
    }
}

/// Checks that the service has no other tasks, and that every accepted task has arrived.
fn check_tasks(requests: &CreateRequests, tasks: &[Value], calls: &[Call]) {
    let arrived: BTreeSet<&str> = calls.iter().map(|call| call.path.as_str()).collect();
    let known: BTreeMap<String, &str> =
        tasks.iter().map(|task| (path(task), task["taskId"].as_str().unwrap())).collect();
    assert_eq!(known.len(), tasks.len(), "one request created two tasks");
    assert!(known.keys().all(|path| requests.contains_key(path)), "no request created the task");
    let kind = arrived.first().map_or("", |path| &path[..5]);
    for (path, request) in requests.iter().filter(|(path, _)| path.starts_with(kind)) {
        let Some(task_id) = &request.task_id else { continue };
        assert!(arrived.contains(path.as_str()), "{path} was accepted, but never arrived");
        assert_eq!(
            known.get(path),
            Some(&task_id.as_str()),
            "{path} was accepted, but the service has no such task"
        );
    }
}

fn path(task: &Value) -> String {
    let url = task["target"].as_str().unwrap();
    url[url.rfind('/').unwrap()..].to_owned()
}
