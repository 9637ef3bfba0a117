//! Wake-ups between nodes, and jobs that start without them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::store::{ClaimRequest, EnqueueResult, ExtendResult, SettleResult, Settlement, WakeToken};
use redrive_core::{Job, JobId, Kind, NewJob, Outcome, State, Store, Verdict, WorkerId, catalog};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::{PgBouncer, Postgres};
use redrive_worker::{Context, Settings, Worker};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The time in which a wake-up must arrive, even on a busy machine.
const SOON: Duration = Duration::from_secs(3);
/// The poll interval of an idle worker.
const POLL: Duration = Duration::from_secs(1);
/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_up_reaches_the_other_node_soon_and_again_after_a_restart() {
    let mut server = Postgres::start();
    let (here, there) = (node(&server.address()).await, node(&server.address()).await);
    assert_wakes(&here, &there).await;
    assert_wakes(&there, &here).await;
    let seen = wait_until_quiet(&there).await;
    server.kill();
    server.restart();
    let notified = timeout(TIMEOUT, there.wait(seen)).await;
    notified.expect("the end of a break wakes the node, because it may have missed notifications");
    timeout(TIMEOUT, here.wait(WakeToken(0))).await.expect("the node was woken");
    assert_wakes(&here, &there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_start_even_if_every_notification_is_lost() {
    let server = Postgres::start();
    let client = node(&server.address()).await;
    let polling_node = node(&format!("{}?listen=off", server.address())).await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = move |cx: Context| {
        let _ = started.send(cx.job.id);
        std::future::ready(Outcome::Done(None))
    };
    let worker =
        Worker::new(Arc::new(polling_node.clone()), Settings::default()).expect("legal").on(kind(), handler);
    let working = tokio::spawn(worker.run_until(std::future::pending()));
    for _ in 0..3 {
        let seen = wait_until_quiet(&polling_node).await;
        let (id, enqueued) = (enqueue(&client).await, Instant::now());
        let first = timeout(TIMEOUT, starts.recv()).await.expect("the job starts");
        let took = enqueued.elapsed();
        assert_eq!(first, Some(id));
        assert!(took < POLL + SOON, "the start took {took:?} with a poll every {POLL:?}");
        let notified = timeout(Duration::ZERO, polling_node.wait(seen)).await;
        assert!(notified.is_err(), "a node that does not listen was notified");
    }
    working.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_works_through_a_transaction_pooler() {
    let server = Postgres::start();
    let direct = node(&server.address()).await;
    // The pooler has fewer connections than the store, so that statements may run in different sessions.
    let bouncer = PgBouncer::start_with(&server, &[("default_pool_size", "2")]);
    for listen in ["off".to_owned(), format!("127.0.0.1:{}", server.port())] {
        let pooled = node(&format!("{}?listen={listen}", bouncer.address())).await;
        for _ in 0..20 {
            run_job(&pooled).await;
        }
        let all = (0..8).map(|_| {
            let pooled = pooled.clone();
            tokio::spawn(async move { pooled.stats().await.map(drop) })
        });
        for each in all.collect::<Vec<_>>() {
            each.await.expect("no panic").expect("stats");
        }
        assert_wakes(&pooled, &direct).await;
        if listen != "off" {
            assert_wakes(&direct, &pooled).await;
        }
    }
}

/// Runs a job from its enqueue to its end.
async fn run_job(store: &PostgresStore) {
    let id = enqueue(store).await;
    let job = claim(store).await.pop().expect("the job is due");
    assert_eq!(job.id, id);
    let extended = store.extend(vec![job.lease()], TIMEOUT).await.expect("extended");
    assert_eq!(extended, [ExtendResult::Renewed]);
    let settled = store.settle(vec![Settlement::new(job.lease(), Verdict::Complete(None))]).await;
    assert_eq!(settled.expect("settled"), [SettleResult::Applied(State::Succeeded)]);
}

/// An enqueue on one node must wake the other soon.
async fn assert_wakes(sender: &PostgresStore, receiver: &PostgresStore) {
    let seen = wait_until_quiet(receiver).await;
    enqueue(sender).await;
    let began = Instant::now();
    timeout(TIMEOUT, receiver.wait(seen)).await.expect("the wake-up arrives");
    assert!(began.elapsed() < SOON, "the wake-up took {:?}", began.elapsed());
    claim(receiver).await;
}

/// Waits until no more wake-ups arrive, and returns their number.
async fn wait_until_quiet(store: &PostgresStore) -> WakeToken {
    loop {
        let claimed = store.claim(request(0)).await.expect("claimed");
        if timeout(Duration::from_millis(100), store.wait(claimed.wake)).await.is_err() {
            return claimed.wake;
        }
    }
}

async fn node(address: &str) -> PostgresStore {
    PostgresStore::open(address, Options::default()).await.expect("the store opens")
}

async fn enqueue(store: &PostgresStore) -> JobId {
    let policy = catalog::put_inline(store, &presets::once(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    let id = JobId(uuid::Uuid::now_v7());
    let added = store.enqueue(vec![NewJob::new(id, kind(), policy, vec![])]).await.expect("enqueued");
    assert_eq!(added, [EnqueueResult::Created(id)]);
    id
}

async fn claim(store: &PostgresStore) -> Vec<Job> {
    store.claim(request(100)).await.expect("claimed").jobs
}

fn request(limit: usize) -> ClaimRequest {
    let worker = WorkerId::new("test").expect("legal");
    ClaimRequest { worker, queues: vec![], kinds: vec![], limit, lease: TIMEOUT }
}

fn kind() -> Kind {
    Kind::new("wakes").expect("legal")
}
