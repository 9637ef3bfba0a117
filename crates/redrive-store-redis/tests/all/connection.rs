//! Lost connections are restored without a busy loop, idle workers cost little, and nodes notify each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::store::{CancelResult, ClaimRequest, WakeToken};
use redrive_core::{JobId, Kind, NewJob, Outcome, Store, WorkerId, catalog};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::{Proxy, Redis};
use redrive_worker::{Context, Settings, Worker};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// The longest wait of a test.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts to connect in three seconds: six connections, each with growing pauses.
const TRIES_MAX: u64 = 120;
/// Commands per second of an idle worker: one poll of each of 16 shards, and three less frequent ones.
const COMMANDS_PER_SECOND_MAX: f64 = 40.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_restored_without_a_busy_loop_and_the_worker_continues() {
    let server = Redis::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let options = Options::default().with_call_timeout(Duration::from_millis(500));
    let store =
        RedisStore::open(&format!("redis://{}", proxy.address()), options).await.expect("the store opens");
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = move |cx: Context| {
        let _ = started.send(cx.job.id);
        std::future::ready(Outcome::Done(None))
    };
    let worker =
        Worker::new(Arc::new(store.clone()), Settings::default()).expect("legal").on(kind(), handler);
    let working = tokio::spawn(worker.run_until(std::future::pending()));
    let before = enqueue(&store).await;
    assert_eq!(timeout(TIMEOUT, starts.recv()).await.expect("the handler starts"), Some(before));

    proxy.set_refusing(true);
    proxy.cut();
    let before = proxy.accepted_connections();
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let claimed = timeout(Duration::from_secs(1), store.claim(request())).await;
        assert!(!matches!(claimed, Ok(Ok(_))), "the server cannot be reached");
        sleep(Duration::from_millis(5)).await;
    }
    let tries = proxy.accepted_connections() - before;
    assert!((1..=TRIES_MAX).contains(&tries), "{tries} tries to connect in three seconds");

    proxy.set_refusing(false);
    let direct = RedisStore::open(&server.address(), Options::default()).await.expect("the store opens");
    let after = enqueue(&direct).await;
    assert_eq!(timeout(TIMEOUT, starts.recv()).await.expect("the worker continues"), Some(after));
    working.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_sends_few_commands() {
    let server = Redis::start();
    let store = RedisStore::open(&server.address(), Options::default()).await.expect("the store opens");
    let worker = Worker::new(Arc::new(store.clone()), Settings::default()).expect("legal");
    let worker = worker.on(kind(), |_: Context| std::future::ready(Outcome::Done(None)));
    let working = tokio::spawn(worker.run_until(std::future::pending()));
    sleep(Duration::from_secs(1)).await;
    let (before, began) = (commands(&server), Instant::now());
    sleep(Duration::from_secs(4)).await;
    let rate = (commands(&server) - before) / began.elapsed().as_secs_f64();
    assert!(rate > 0.0 && rate <= COMMANDS_PER_SECOND_MAX, "{rate:.1} commands a second");
    working.abort();
}

/// An enqueue wakes the other nodes at once, before their next poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_wakes_another() {
    let server = Redis::start();
    let sender = RedisStore::open(&server.address(), Options::default()).await.expect("the store opens");
    let receiver = RedisStore::open(&server.address(), Options::default()).await.expect("the store opens");
    catalog::put_inline(&sender, &presets::once(), redrive_core::Timestamp::default()).await.expect("stored");
    let mut seen = receiver.claim(request()).await.expect("claimed").wake;
    let mut wakes = 0;
    while timeout(Duration::from_millis(500), receiver.wait(seen)).await.is_ok() {
        seen = receiver.claim(request()).await.expect("claimed").wake;
        wakes += 1;
        assert!(wakes < 20, "the receiver wakes up although nothing happens");
    }
    enqueue(&sender).await;
    timeout(TIMEOUT, receiver.wait(seen)).await.expect("the wake-up arrives");
}

/// Reports the end of a handler, whose future is dropped when its attempt is aborted.
struct OnDrop(mpsc::UnboundedSender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A cancel request may have been missed while the subscription was broken, so every worker checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_subscription_wakes_workers_that_wait_for_a_cancel() {
    let server = Redis::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let store = RedisStore::open(&format!("redis://{}", proxy.address()), Options::default())
        .await
        .expect("the store opens");
    let seen = store.wait_for_cancel(WakeToken(u64::MAX)).await;
    proxy.cut();
    assert_ne!(timeout(TIMEOUT, store.wait_for_cancel(seen)).await.expect("the wait ends"), seen);
}

fn commands(server: &Redis) -> f64 {
    let stats = server.run(&["INFO", "commandstats"]);
    // Commands inside scripts are counted as well, so only these two count here.
    let sent =
        stats.lines().filter(|line| line.starts_with("cmdstat_eval") || line.starts_with("cmdstat_hgetall"));
    sent.filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<f64>().ok()).sum()
}

fn kind() -> Kind {
    Kind::new("work").expect("legal")
}

async fn enqueue(store: &RedisStore) -> JobId {
    let policy = catalog::put_inline(store, &presets::once(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    let id = JobId(uuid::Uuid::now_v7());
    store.enqueue(vec![NewJob::new(id, kind(), policy, vec![])]).await.expect("enqueued");
    id
}

fn request() -> ClaimRequest {
    ClaimRequest {
        worker: WorkerId::new("w").expect("legal"),
        queues: vec![],
        kinds: vec![],
        limit: 0,
        lease: Duration::from_secs(1),
    }
}

/// These need a machine that is not busy with other tests.
mod quiet {
    use super::*;

    /// A cancel stops a handler on another node at once, before its next heartbeat.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cancel_on_one_node_stops_a_handler_on_another_within_a_second() {
        let server = Redis::start();
        let sender = RedisStore::open(&server.address(), Options::default()).await.expect("the store opens");
        let receiver =
            RedisStore::open(&server.address(), Options::default()).await.expect("the store opens");
        let (started, mut starts) = mpsc::unbounded_channel();
        let (stopped, mut stops) = mpsc::unbounded_channel();
        let handler = move |cx: Context| {
            let (started, stopped) = (started.clone(), OnDrop(stopped.clone()));
            async move {
                let _stopped = stopped;
                let _ = started.send(cx.job.id);
                std::future::pending().await
            }
        };
        let worker = Worker::new(Arc::new(receiver), Settings::default()).expect("legal").on(kind(), handler);
        let working = tokio::spawn(worker.run_until(std::future::pending()));
        let id = enqueue(&sender).await;
        assert_eq!(timeout(TIMEOUT, starts.recv()).await.expect("the handler starts"), Some(id));
        assert_eq!(sender.cancel(vec![id]).await.expect("cancelled"), [CancelResult::Requested]);
        timeout(Duration::from_secs(1), stops.recv()).await.expect("the handler stops within a second");
        working.abort();
    }
}
