//! A connection that breaks comes back by itself and without haste; who has nothing to do leaves the server alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::store::{Cancelled, ClaimRequest, Wake};
use redrive_core::{JobId, Kind, NewJob, Outcome, Store, WorkerId, catalog};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::{Proxy, Redis};
use redrive_worker::{Context, Settings, Worker};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(30);
/// Tries to connect in three seconds: those of six connections that wait longer each time.
const TRIES_MAX: u64 = 120;
/// Commands a second of an idle worker: a look a second at each of 16 partitions, and three rarer ones.
const COMMANDS_PER_SECOND_MAX: f64 = 40.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_comes_back_without_a_hot_loop_and_the_worker_goes_on() {
    let server = Redis::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let patience = Options::default().with_patience(Duration::from_millis(500));
    let store = RedisStore::open(&format!("redis://{}", proxy.address()), patience).await.expect("it opens");
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = move |cx: Context| {
        let _ = started.send(cx.job.id);
        std::future::ready(Outcome::Done(None))
    };
    let worker =
        Worker::new(Arc::new(store.clone()), Settings::default()).expect("legal").on(kind(), handler);
    let working = tokio::spawn(worker.run_until(std::future::pending()));
    let before = enqueue(&store).await;
    assert_eq!(timeout(PATIENCE, starts.recv()).await.expect("it starts"), Some(before));

    proxy.refuse(true);
    proxy.cut();
    let before = proxy.accepted();
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let claimed = timeout(Duration::from_secs(1), store.claim(request())).await;
        assert!(!matches!(claimed, Ok(Ok(_))), "there is nobody to answer");
        sleep(Duration::from_millis(5)).await;
    }
    let tries = proxy.accepted() - before;
    assert!((1..=TRIES_MAX).contains(&tries), "{tries} tries to connect in three seconds");

    proxy.refuse(false);
    let direct = RedisStore::open(&server.address(), Options::default()).await.expect("it opens");
    let after = enqueue(&direct).await;
    assert_eq!(timeout(PATIENCE, starts.recv()).await.expect("the worker goes on"), Some(after));
    working.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_leaves_the_server_alone() {
    let server = Redis::start();
    let store = RedisStore::open(&server.address(), Options::default()).await.expect("it opens");
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

/// Another node hears of an enqueue at once, not at its next look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_wakes_another() {
    let server = Redis::start();
    let teller = RedisStore::open(&server.address(), Options::default()).await.expect("it opens");
    let hearer = RedisStore::open(&server.address(), Options::default()).await.expect("it opens");
    catalog::put_inline(&teller, &presets::once()).await.expect("stored");
    let seen = loop {
        let seen = hearer.claim(request()).await.expect("claimed").wake;
        if timeout(Duration::from_millis(500), hearer.wait(seen)).await.is_err() {
            break seen;
        }
    };
    enqueue(&teller).await;
    timeout(PATIENCE, hearer.wait(seen)).await.expect("the wake-up never comes");
}

/// A handler on another node hears of a cancel at once, not at its next heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_on_one_node_stops_a_handler_on_another_within_a_second() {
    let server = Redis::start();
    let teller = RedisStore::open(&server.address(), Options::default()).await.expect("it opens");
    let hearer = RedisStore::open(&server.address(), Options::default()).await.expect("it opens");
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
    let worker = Worker::new(Arc::new(hearer), Settings::default()).expect("legal").on(kind(), handler);
    let working = tokio::spawn(worker.run_until(std::future::pending()));
    let id = enqueue(&teller).await;
    assert_eq!(timeout(PATIENCE, starts.recv()).await.expect("it starts"), Some(id));
    assert_eq!(teller.cancel(vec![id]).await.expect("cancelled"), [Cancelled::Requested]);
    timeout(Duration::from_secs(1), stops.recv()).await.expect("the handler hears of it within a second");
    working.abort();
}

/// Tells of the end of a handler, whose future is dropped when its attempt is aborted.
struct OnDrop(mpsc::UnboundedSender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A request may have been missed while the subscription was broken, so everyone looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_subscription_wakes_whoever_waits_for_a_cancel() {
    let server = Redis::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let store = RedisStore::open(&format!("redis://{}", proxy.address()), Options::default())
        .await
        .expect("it opens");
    let seen = store.wait_for_cancel(Wake(u64::MAX)).await;
    proxy.cut();
    assert_ne!(timeout(PATIENCE, store.wait_for_cancel(seen)).await.expect("it wakes"), seen);
}

fn commands(server: &Redis) -> f64 {
    let stats = server.run(&["INFO", "commandstats"]);
    // Those inside scripts are counted as well.
    let sent =
        stats.lines().filter(|line| line.starts_with("cmdstat_eval") || line.starts_with("cmdstat_hgetall"));
    sent.filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<f64>().ok()).sum()
}

fn kind() -> Kind {
    Kind::new("work").expect("legal")
}

async fn enqueue(store: &RedisStore) -> JobId {
    let policy = catalog::put_inline(store, &presets::once()).await.expect("stored");
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
