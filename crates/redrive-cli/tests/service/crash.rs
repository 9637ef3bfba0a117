//! `kill -9` under load: what was accepted is delivered, under the key it was given, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::stage::{Call, Client, Launch, Reply, Target, alone, eventually};

/// Processes that are killed.
const ROUNDS: usize = 6;
/// Callers that create tasks as fast as they get answers.
const CALLERS: usize = 8;
/// Attempts of a task that is to arrive: more than processes are killed, since each may take one along.
const ATTEMPTS: u32 = 20;
/// Attempts of a task that never succeeds.
const DOOMED_ATTEMPTS: u32 = 3;

/// A creation as its caller remembers it, by the path that its task calls.
#[derive(Debug)]
struct Sent {
    key: Option<String>,
    /// None when no answer came and the caller did not ask again.
    accepted: Option<String>,
}

type Book = BTreeMap<String, Sent>;

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_task_is_delivered_under_its_key_though_the_process_is_killed() {
    let _alone = alone().await;
    let folder = tempfile::tempdir().unwrap();
    let good = Target::start(|_| Reply::status(200)).await;
    // 404 and not 500: a gate that closes would be another test.
    let bad = Target::start(|_| Reply::status(404)).await;
    let launch = Launch::new(folder.path()).flags(&["--lease-ms", "1000"]);

    let mut service = launch.start();
    let (tell, clients) = watch::channel(service.client());
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| Caller { caller, good: good.origin(), bad: bad.origin(), clients: clients.clone() })
        .map(|caller| tokio::spawn(caller.create_until(stop.clone())))
        .collect();
    for _ in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(200..1_000))).await;
        service.kill();
        service = launch.start();
        tell.send(service.client()).unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let mut book = Book::new();
    for caller in callers {
        book.append(&mut caller.await.unwrap());
    }

    let client = service.client();
    all_ended(&client).await;
    let (good, bad) = (good.calls(), bad.calls());
    println!("{} sent, {} calls, {} doomed calls", book.len(), good.len(), bad.len());
    assert!(book.len() > 100 && !bad.is_empty(), "hardly a load");
    check_calls(&book, &good, ATTEMPTS);
    check_calls(&book, &bad, DOOMED_ATTEMPTS);
    check_tasks(&book, &client.list("/retry-tasks?status=SUCCEEDED").await, &good);
    let dead = client.list("/retry-tasks?status=EXHAUSTED").await;
    assert!(dead.iter().all(|task| path(task).starts_with("/doomed")), "{dead:?}");
    check_tasks(&book, &dead, &bad);
}

struct Caller {
    caller: usize,
    good: String,
    bad: String,
    clients: watch::Receiver<Client>,
}

impl Caller {
    /// Half of the tasks have a key, and a caller that has one asks until it gets an answer.
    async fn create_until(self, stop: Arc<AtomicBool>) -> Book {
        let mut book = Book::new();
        for number in 0.. {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            let doomed = number % 10 == 9;
            let kind = if doomed { "doomed" } else { "good" };
            let path = format!("/{kind}-{}-{number}", self.caller);
            let key = (number % 4 < 2).then(|| format!("key-{}-{number}", self.caller));
            let accepted = self.create(&request(&self, &path, key.as_deref(), doomed)).await;
            book.insert(path, Sent { key, accepted });
        }
        book
    }

    async fn create(&self, task: &Value) -> Option<String> {
        loop {
            let client = self.clients.borrow().clone();
            if let Ok(got) = client.try_post("/retry-tasks", task).await {
                assert!([200, 201].contains(&got.status), "{got:?}");
                let replayed = got.headers.contains_key("idempotency-replayed");
                assert_eq!(got.status == 200, replayed, "{got:?}");
                return Some(got.json(got.status)["taskId"].as_str().unwrap().to_owned());
            }
            task["idempotencyKey"].as_str()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn request(caller: &Caller, path: &str, key: Option<&str>, doomed: bool) -> Value {
    let (origin, attempts) = if doomed { (&caller.bad, DOOMED_ATTEMPTS) } else { (&caller.good, ATTEMPTS) };
    let mut task = json!({
        "targetUrl": format!("{origin}{path}"), "body": path,
        "policy": {
            "maxAttempts": attempts, "backoffType": "FIXED", "initialDelayMs": 1, "jitterType": "NONE",
            "retryableStatusCodes": [404], "totalBudgetMs": null,
        },
    });
    if let Some(key) = key {
        task["idempotencyKey"] = key.into();
    }
    task
}

/// Waits until no task is left to deliver. The counts are one read: looking for one status after the other would miss a
/// task that changes between the looks.
pub(crate) async fn all_ended(client: &Client) {
    eventually("every task ends", async || {
        let queues = client.get("/queues").await.json(200);
        let open = |queue: &Value| {
            ["pending", "retrying", "running", "waiting"].iter().any(|state| queue["jobs"][state].is_u64())
        };
        (!queues["items"].as_array().unwrap().iter().any(open)).then_some(())
    })
    .await;
}

/// Every call was asked for, carries the key of its task, and is one of the attempts that its policy allows.
fn check_calls(book: &Book, calls: &[Call], attempts: u32) {
    let mut tasks: BTreeMap<&str, (&str, BTreeSet<u32>)> = BTreeMap::new();
    for call in calls {
        let sent = book.get(&call.path).unwrap_or_else(|| panic!("nobody asked for {call:?}"));
        assert_eq!(call.body, call.path.as_bytes());
        assert_eq!(call.key(), sent.key.as_deref().unwrap_or(call.task_id()), "{call:?}");
        if let Some(accepted) = &sent.accepted {
            assert_eq!(call.task_id(), accepted, "another task than was accepted: {call:?}");
        }
        let (task, seen) = tasks.entry(&call.path).or_insert((call.task_id(), BTreeSet::new()));
        assert_eq!(*task, call.task_id(), "one creation, two tasks");
        assert!(seen.insert(call.attempt()), "an attempt that was made twice: {call:?}");
        assert!((1..=attempts).contains(&call.attempt()), "{call:?}");
    }
}

/// The service knows of nothing else, and everything accepted has arrived.
fn check_tasks(book: &Book, tasks: &[Value], calls: &[Call]) {
    let arrived: BTreeSet<&str> = calls.iter().map(|call| call.path.as_str()).collect();
    let known: BTreeMap<String, &str> =
        tasks.iter().map(|task| (path(task), task["taskId"].as_str().unwrap())).collect();
    assert_eq!(known.len(), tasks.len(), "one creation, two tasks");
    assert!(known.keys().all(|path| book.contains_key(path)), "an invented task");
    let kind = arrived.first().map_or("", |path| &path[..5]);
    for (path, sent) in book.iter().filter(|(path, _)| path.starts_with(kind)) {
        let Some(accepted) = &sent.accepted else { continue };
        assert!(arrived.contains(path.as_str()), "{path} was accepted and never arrived");
        assert_eq!(known.get(path), Some(&accepted.as_str()), "{path} was accepted and is not known");
    }
}

fn path(task: &Value) -> String {
    let url = task["targetUrl"].as_str().unwrap();
    url[url.rfind('/').unwrap()..].to_owned()
}
