//! Wake-ups between nodes, and work that starts without them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::store::{ClaimRequest, Enqueued, Extended, Settled, Settlement, Wake};
use redrive_core::{Job, JobId, Kind, NewJob, Outcome, State, Store, Verdict, WorkerId, catalog};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::{PgBouncer, Postgres};
use redrive_worker::{Context, Settings, Worker};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How soon a wake-up is there, on a busy machine too.
const SOON: Duration = Duration::from_secs(3);
/// How long an idle worker trusts wake-ups before it looks for itself.
const POLL: Duration = Duration::from_secs(1);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_up_reaches_the_other_node_soon_and_again_after_a_restart() {
    let mut server = Postgres::start();
    let (here, there) = (node(&server.address()).await, node(&server.address()).await);
    assert_wakes(&here, &there).await;
    assert_wakes(&there, &here).await;
    let seen = settled_down(&there).await;
    server.kill();
    server.restart();
    let heard = timeout(PATIENCE, there.wait(seen)).await;
    heard.expect("anything may have been missed during a break, so its end wakes too");
    timeout(PATIENCE, here.wait(Wake(0))).await.expect("it has been woken");
    assert_wakes(&here, &there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_notification_lost_work_still_starts() {
    let server = Postgres::start();
    let client = node(&server.address()).await;
    let deaf = node(&format!("{}?listen=off", server.address())).await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = move |cx: Context| {
        let _ = started.send(cx.job.id);
        std::future::ready(Outcome::Done(None))
    };
    let worker = Worker::new(Arc::new(deaf.clone()), Settings::default()).expect("legal").on(kind(), handler);
    let working = tokio::spawn(worker.run_until(std::future::pending()));
    for _ in 0..3 {
        let seen = settled_down(&deaf).await;
        let (id, enqueued) = (enqueue(&client).await, Instant::now());
        let first = timeout(PATIENCE, starts.recv()).await.expect("the job never starts");
        let took = enqueued.elapsed();
        assert_eq!(first, Some(id));
        assert!(took < POLL + SOON, "it took {took:?} with a poll every {POLL:?}");
        let heard = timeout(Duration::ZERO, deaf.wait(seen)).await;
        assert!(heard.is_err(), "a node that does not listen has heard something");
    }
    working.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_by_transaction_is_no_obstacle() {
    let server = Postgres::start();
    let direct = node(&server.address()).await;
    // Fewer connections than the store has: each statement may meet another session.
    let bouncer = PgBouncer::start_with(&server, &[("default_pool_size", "2")]);
    for listen in ["off".to_owned(), format!("127.0.0.1:{}", server.port())] {
        let pooled = node(&format!("{}?listen={listen}", bouncer.address())).await;
        for _ in 0..20 {
            live_and_die(&pooled).await;
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

/// A job from its enqueue to its end.
async fn live_and_die(store: &PostgresStore) {
    let id = enqueue(store).await;
    let job = claim(store).await.pop().expect("it is due");
    assert_eq!(job.id, id);
    let extended = store.extend(vec![job.lease()], PATIENCE).await.expect("extended");
    assert_eq!(extended, [Extended::Renewed]);
    let settled = store.settle(vec![Settlement::new(job.lease(), Verdict::Complete(None))]).await;
    assert_eq!(settled.expect("settled"), [Settled::Applied(State::Succeeded)]);
}

/// What one node enqueues, the other hears of soon.
async fn assert_wakes(teller: &PostgresStore, hearer: &PostgresStore) {
    let seen = settled_down(hearer).await;
    enqueue(teller).await;
    let began = Instant::now();
    timeout(PATIENCE, hearer.wait(seen)).await.expect("the wake-up never comes");
    assert!(began.elapsed() < SOON, "the wake-up took {:?}", began.elapsed());
    claim(hearer).await;
}

/// Waits until no more wake-ups come, and says how far they have come.
async fn settled_down(store: &PostgresStore) -> Wake {
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
    let policy = catalog::put_inline(store, &presets::once()).await.expect("stored");
    let id = JobId(uuid::Uuid::now_v7());
    let added = store.enqueue(vec![NewJob::new(id, kind(), policy, vec![])]).await.expect("enqueued");
    assert_eq!(added, [Enqueued::Created(id)]);
    id
}

async fn claim(store: &PostgresStore) -> Vec<Job> {
    store.claim(request(100)).await.expect("claimed").jobs
}

fn request(limit: usize) -> ClaimRequest {
    let worker = WorkerId::new("test").expect("legal");
    ClaimRequest { worker, queues: vec![], kinds: vec![], limit, lease: PATIENCE }
}

fn kind() -> Kind {
    Kind::new("wakes").expect("legal")
}
