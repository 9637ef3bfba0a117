//! Limits across nodes: whoever claims, no queue and no key runs more than its quota, and no turn is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::quota::{Bounds, QUOTA, Rate};
use redrive_core::records::{Change, Expect, Records};
use redrive_core::steps::{Memory, Step, StepKind, Steps};
use redrive_core::store::{ClaimRequest, ReclaimRequest, Settled, Settlement, StoreError};
use redrive_core::{
    Await, Job, JobId, Kind, NewJob, Order, Parent, Partition, PartitionKey, PolicyRef, Queue, Quota, Reason,
    Start, State, StepName, Store, Timestamp, Verdict, WorkerId, catalog,
};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use sqlx_core::connection::Connection as _;
use sqlx_postgres::PgConnection;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::NoTls;
use uuid::Uuid;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What runs at this moment: of the queue and of any key, without and with a strict order.
const RUNNING: &str = "SELECT coalesce(sum(jobs) FILTER (WHERE NOT strict), 0)::bigint, \
    coalesce(max(jobs) FILTER (WHERE NOT strict), 0)::bigint, coalesce(sum(jobs) FILTER (WHERE strict), 0)::bigint, \
    coalesce(max(jobs) FILTER (WHERE strict), 0)::bigint FROM \
    (SELECT strict, count(*) AS jobs FROM redrive.jobs WHERE state = 2 GROUP BY partition, strict) AS keys";

/// How far the counts are from the rows, as of one moment.
const DIFFERENCE: &str = "SELECT count(*) FROM \
    (SELECT lane, state, sum(jobs) AS jobs FROM redrive.counts GROUP BY lane, state HAVING sum(jobs) <> 0) AS kept \
    FULL JOIN (SELECT lane, state, count(*) AS jobs FROM redrive.jobs GROUP BY lane, state) AS real USING (lane, state) \
    WHERE kept.jobs IS DISTINCT FROM real.jobs";

/// A server with nodes on it.
struct Scene {
    server: Postgres,
    here: PostgresStore,
    there: PostgresStore,
    policy: PolicyRef,
}

impl Scene {
    /// It need not survive a power cut.
    async fn open() -> Self {
        let server = Postgres::start_with(&[("fsync", "off"), ("max_connections", "200")]);
        let (here, there) = (node(&server).await, node(&server).await);
        let policy = catalog::put_inline(&here, &presets::once()).await.expect("stored");
        Self { server, here, there, policy }
    }

    fn job(&self, key: Option<&str>, order: Order) -> NewJob {
        let key = key.map(|key| PartitionKey::new(key).expect("legal"));
        let partition = key.map(|key| Partition { key, order });
        let kind = Kind::new("work").expect("legal");
        NewJob { partition, ..NewJob::new(JobId(Uuid::now_v7()), kind, self.policy.clone(), vec![]) }
    }

    async fn enqueue(&self, jobs: Vec<NewJob>) -> Vec<JobId> {
        let ids = jobs.iter().map(|job| job.id).collect();
        self.here.enqueue(jobs).await.expect("enqueued");
        ids
    }

    /// Bounds the default queue, by a node that claims nothing.
    async fn bound(&self, quota: Option<Quota>) {
        self.bound_queue("default", quota).await;
    }

    async fn bound_queue(&self, queue: &str, quota: Option<Quota>) {
        let value = quota.map(|quota| serde_json::to_vec(&quota).expect("JSON"));
        let change = Change { kind: QUOTA.to_owned(), id: queue.to_owned(), expect: Expect::Any, value };
        node(&self.server).await.write(change).await.expect("written");
    }

    async fn state(&self, id: JobId) -> State {
        self.here.get(vec![id]).await.expect("get").pop().flatten().expect("it is there").state
    }
}

async fn node(server: &Postgres) -> PostgresStore {
    PostgresStore::open(&server.address(), Options::default()).await.expect("the store opens")
}

fn slots(concurrency: u32) -> Bounds {
    Bounds { concurrency: Some(concurrency), rate: None }
}

fn quota(concurrency: u32, per_key: Bounds) -> Quota {
    Quota { concurrency: Some(concurrency), rate: None, per_key }
}

fn request(limit: usize, lease: Duration) -> ClaimRequest {
    ClaimRequest { worker: WorkerId::new("w").expect("legal"), queues: vec![], kinds: vec![], limit, lease }
}

async fn claim(store: &PostgresStore, limit: usize) -> Vec<Job> {
    store.claim(request(limit, PATIENCE)).await.expect("claimed").jobs
}

async fn claim_ids(store: &PostgresStore, limit: usize) -> Vec<JobId> {
    claim(store, limit).await.iter().map(|job| job.id).collect()
}

async fn settle(store: &PostgresStore, job: &Job, verdict: Verdict) {
    let settled = store.settle(vec![Settlement::new(job.lease(), verdict)]).await.expect("settled");
    assert!(matches!(settled[..], [Settled::Applied(_)]), "{settled:?}");
}

const KEYS: usize = 24;
const STRICT_KEYS: usize = 6;
const JOBS: usize = 720;

/// No sweep helps: whoever waits for a turn gets it from those before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_and_many_keys_under_load_never_run_more_than_the_quota() {
    let scene = Scene::open().await;
    scene.bound(Some(quota(10, slots(2)))).await;
    scene.bound_queue("ordered", Some(quota(4, Bounds::default()))).await;
    let job = |n: usize| match n % KEYS {
        key if key < STRICT_KEYS => {
            let queue = Queue::new("ordered").expect("legal");
            NewJob { queue, ..scene.job(Some(&format!("key-{key}")), Order::Strict) }
        }
        key => scene.job(Some(&format!("key-{key}")), Order::Any),
    };
    scene.enqueue((0..JOBS).map(job).collect()).await;
    let left = Arc::new(AtomicUsize::new(JOBS));
    let mut workers = JoinSet::new();
    for number in 0..12 {
        let (store, left) = ([&scene.here, &scene.there][number % 2].clone(), left.clone());
        workers.spawn(async move { work(&store, &left).await });
    }
    let (client, connection) =
        tokio_postgres::connect(&scene.server.address(), NoTls).await.expect("it answers");
    tokio::spawn(connection);
    let (began, mut samples, mut most) = (Instant::now(), 0, [0; 4]);
    while left.load(Ordering::Relaxed) > 0 {
        assert!(began.elapsed() < PATIENCE, "{} jobs are left", left.load(Ordering::Relaxed));
        let row = client.query_one(RUNNING, &[]).await.expect("counted");
        let running: [i64; 4] = std::array::from_fn(|column| row.get(column));
        let bounds = running.iter().zip([10, 2, 4, 1]);
        assert!(bounds.clone().all(|(running, most)| *running <= most), "{running:?} run at once");
        most = std::array::from_fn(|column| running[column].max(most[column]));
        samples += 1;
    }
    assert!(samples > 20 && most == [10, 2, 4, 1], "{samples} samples saw {most:?} at most");
    let ended = workers.join_all().await.into_iter().flatten();
    check_strict_order(ended.collect());
    assert_eq!(scene.here.stats().await.expect("stats").in_state(State::Succeeded), JOBS as u64);
    assert_eq!(scene.server.run(DIFFERENCE), "0", "the counts differ from the rows");
}

/// Works on what it gets until nothing is left for anyone. Some jobs fail once. Says when jobs in strict order began and ended.
async fn work(store: &PostgresStore, left: &AtomicUsize) -> Vec<(Job, Instant, Instant)> {
    let mut ended = Vec::new();
    while left.load(Ordering::Relaxed) > 0 {
        let claimed = match store.claim(request(3, PATIENCE)).await {
            // The server ended it because of a deadlock: a worker tries again too.
            Err(StoreError::Busy(_)) => continue,
            claimed => claimed.expect("claimed"),
        };
        let began = Instant::now();
        if claimed.jobs.is_empty() {
            let _ = timeout(Duration::from_millis(20), store.wait(claimed.wake)).await;
        }
        sleep(Duration::from_millis(2)).await;
        for job in claimed.jobs {
            if job.attempt == 1 && job.id.0.as_bytes()[15] % 5 == 0 {
                settle(store, &job, Verdict::Retry(Duration::from_millis(3))).await;
                continue;
            }
            let end = Instant::now();
            settle(store, &job, Verdict::Complete(None)).await;
            left.fetch_sub(1, Ordering::Relaxed);
            if job.partition.as_ref().is_some_and(|of| of.order == Order::Strict) {
                ended.push((job, began, end));
            }
        }
    }
    ended
}

fn check_strict_order(mut ended: Vec<(Job, Instant, Instant)>) {
    ended.sort_by_key(|(job, ..)| job.id);
    let mut last: HashMap<PartitionKey, Instant> = HashMap::new();
    for (job, began, end) in ended {
        let key = job.partition.expect("it has one").key;
        assert!(last.get(&key).is_none_or(|last| *last <= began), "{} of {key} began too early", job.id);
        last.insert(key, end);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claimers_of_two_nodes_start_no_more_often_than_a_rate() {
    const SPAN: i64 = 400;
    let scene = Scene::open().await;
    let rate = |count| Some(Rate { count, per_ms: SPAN as u64 });
    let per_key = Bounds { concurrency: None, rate: rate(3) };
    scene.bound(Some(Quota { concurrency: None, rate: rate(8), per_key })).await;
    let job = |n: usize| scene.job(Some(["a", "b", "c", "d"][n % 4]), Order::Any);
    scene.enqueue((0..200).map(job).collect()).await;
    let mut claimers = JoinSet::new();
    let began = Instant::now();
    for number in 0..8 {
        let store = [&scene.here, &scene.there][number % 2].clone();
        claimers.spawn(async move {
            let mut started = Vec::new();
            while began.elapsed() < Duration::from_millis(1_500) {
                let jobs = claim(&store, 2).await.into_iter();
                started.extend(
                    jobs.map(|job| (job.started_at.expect("it runs"), job.partition.expect("a key").key)),
                );
            }
            started
        });
    }
    let mut starts: Vec<(Timestamp, PartitionKey)> =
        claimers.join_all().await.into_iter().flatten().collect();
    starts.sort();
    assert!(starts.len() >= 24, "{} starts in three spans and more", starts.len());
    for (at, key) in &starts {
        let since =
            |other: &&(Timestamp, PartitionKey)| other.0 <= *at && at.as_ms() - other.0.as_ms() < SPAN;
        let within: Vec<_> = starts.iter().filter(since).collect();
        assert!(within.len() <= 8, "{} starts within the span before {at:?}", within.len());
        let of_key = within.iter().filter(|(_, other)| other == key).count();
        assert!(of_key <= 3, "{of_key} starts of {key} within the span before {at:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slots_of_a_killed_node_come_free_once_it_is_reclaimed() {
    let scene = Scene::open().await;
    scene.bound(Some(quota(2, slots(1)))).await;
    let job = |key| scene.job(Some(key), Order::Any);
    let made = scene.enqueue(["a", "a", "b", "b"].map(job).to_vec()).await;
    let victim = node(&scene.server).await;
    let lease = Duration::from_millis(300);
    let lost = victim.claim(request(9, lease)).await.expect("claimed").jobs;
    assert_eq!(lost.iter().map(|job| job.id).collect::<Vec<_>>(), [made[0], made[2]]);
    drop(victim);
    assert_eq!(claim_ids(&scene.here, 9).await, []);
    sleep(lease + Duration::from_millis(20)).await;
    assert_eq!(claim_ids(&scene.here, 9).await, [], "their leases have ended but nobody has settled them");
    let reclaim = ReclaimRequest { kinds: vec![], limit: 9, lease: PATIENCE, held: vec![] };
    let orphans = scene.there.reclaim(reclaim).await.expect("reclaimed").jobs;
    assert_eq!(orphans.len(), 2);
    for orphan in &orphans {
        settle(&scene.there, orphan, Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
    }
    assert_eq!(claim_ids(&scene.here, 9).await, [made[1], made[3]]);
}

/// Claims begin where the last one ended; a turn comes back at its old place, before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_comes_back_is_claimed_at_once_wherever_claims_have_come_to() {
    let scene = Scene::open().await;
    let plain = |n: usize| scene.enqueue((0..n).map(|_| scene.job(None, Order::Any)).collect());
    // This node's claims have come far before the first job with a key comes.
    plain(1).await;
    sleep(Duration::from_millis(700)).await;
    for _ in 0..3 {
        plain(2).await;
        assert!(!claim(&scene.here, 9).await.is_empty());
    }
    let old = Start::At(Timestamp::from_ms(scene.here.stats().await.expect("stats").now.as_ms() - 60_000));
    let keyed = || NewJob { start: old, ..scene.job(Some("a"), Order::Any) };
    scene.bound(Some(Quota { per_key: slots(1), ..Quota::default() })).await;
    let made: Vec<NewJob> = (0..3).map(|_| keyed()).collect();
    let made_ids: Vec<JobId> = made.iter().map(|job| job.id).collect();
    scene.there.enqueue(made).await.expect("enqueued");
    let mut running = claim(&scene.here, 1).await.pop().expect("it is due");
    for next in &made_ids[1..] {
        assert_eq!(claim_ids(&scene.here, 9).await, []);
        assert_eq!(scene.state(*next).await, State::Waiting);
        plain(3).await;
        assert_eq!(claim(&scene.here, 9).await.len(), 3);
        settle(&scene.there, &running, Verdict::Complete(None)).await;
        running = claim(&scene.here, 9).await.pop().expect("its turn has come, and the first claim sees it");
        assert_eq!(running.id, *next);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_another_node_writes_counts_at_once_and_so_does_its_end() {
    let scene = Scene::open().await;
    for _ in 0..3 {
        let made = scene.enqueue((0..6).map(|_| scene.job(None, Order::Any)).collect()).await;
        let first = claim(&scene.here, 1).await;
        assert_eq!(first[0].id, made[0]);
        scene.bound(Some(quota(3, Bounds::default()))).await;
        assert_eq!(claim_ids(&scene.here, 9).await, made[1..3]);
        assert_eq!(claim_ids(&scene.there, 9).await, []);
        settle(&scene.here, &first[0], Verdict::Complete(None)).await;
        assert_eq!(claim_ids(&scene.there, 9).await, [made[3]]);
        scene.bound(None).await;
        assert_eq!(claim_ids(&scene.here, 9).await, made[4..]);
        for job in scene.server.run("SELECT id || ' ' || epoch FROM redrive.jobs WHERE state = 2").lines() {
            let (id, epoch) = job.split_once(' ').expect("two words");
            let lease = redrive_core::Lease {
                id: JobId(id.parse().expect("an id")),
                epoch: epoch.parse().expect("a number"),
            };
            scene.here.settle(vec![Settlement::new(lease, Verdict::Complete(None))]).await.expect("settled");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_makes_room_wakes_the_other_node() {
    let scene = Scene::open().await;
    scene.bound(Some(quota(1, Bounds::default()))).await;
    scene.enqueue((0..2).map(|_| scene.job(None, Order::Any)).collect()).await;
    let first = claim(&scene.here, 1).await.pop().expect("it is due");
    // Wake-ups of the enqueue may still be on their way.
    let mut seen = scene.there.claim(request(1, PATIENCE)).await.expect("claimed");
    while timeout(Duration::from_millis(100), scene.there.wait(seen.wake)).await.is_ok() {
        seen = scene.there.claim(request(1, PATIENCE)).await.expect("claimed");
    }
    assert_eq!((seen.jobs.len(), seen.next_due), (0, None));
    settle(&scene.here, &first, Verdict::Complete(None)).await;
    timeout(PATIENCE, scene.there.wait(seen.wake)).await.expect("it wakes");
    assert_eq!(claim(&scene.there, 1).await.len(), 1);
}

/// A node that dies between a settlement and what follows from it leaves turns to a sweep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_nobody_passed_on_is_found_by_a_sweep() {
    let scene = Scene::open().await;
    let made = scene.enqueue((0..3).map(|_| scene.job(Some("a"), Order::Strict)).collect()).await;
    assert_eq!(claim_ids(&scene.here, 9).await, made[..1]);
    scene.server.run(&format!("UPDATE redrive.jobs SET state = 4 WHERE id = '{}'", made[0].0));
    assert_eq!(claim_ids(&scene.here, 9).await, []);
    let swept = scene.there.sweep(None, 9).await.expect("swept");
    assert_eq!((swept.resumed, swept.last), (vec![made[1]], Some(made[2])));
    assert_eq!(claim_ids(&scene.here, 9).await, made[1..2]);
}

/// Jobs that could be claimed count for the slots of a key, those too that strict order keeps from starting: the one whose turn it
/// would be is left to a sweep then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_in_carries_the_partition() {
    let scene = Scene::open().await;
    let job = |key| scene.job(Some(key), Order::Strict);
    let (mut client, connection) =
        tokio_postgres::connect(&scene.server.address(), NoTls).await.expect("it answers");
    tokio::spawn(connection);
    let mut sqlx = PgConnection::connect(&scene.server.address()).await.expect("it answers");
    let (by_tokio, by_sqlx, first) = (job("tokio"), job("sqlx"), job("plain"));
    let mut transaction = client.transaction().await.expect("begun");
    scene.here.enqueue_in(&mut transaction, vec![by_tokio.clone()]).await.expect("enqueued");
    transaction.commit().await.expect("committed");
    let mut transaction = sqlx.begin().await.expect("begun");
    scene.here.enqueue_in_sqlx(&mut transaction, vec![by_sqlx.clone()]).await.expect("enqueued");
    transaction.commit().await.expect("committed");
    scene.enqueue(vec![first.clone()]).await;
    let running = claim(&scene.there, 9).await;
    assert_eq!(running.len(), 3);
    let parent = running.iter().find(|job| job.id == first.id).expect("it runs");
    let child = NewJob { parent: Some(Parent::new(parent.id, 0)), ..job("child") };
    let (name, kind) = (StepName::new("fan-out").expect("legal"), StepKind::Children);
    let step = Step { place: 0, name, kind, value: vec![] };
    let memory = Memory { children: vec![child.clone()], ..Memory::new(parent.lease(), step) };
    scene.here.remember(vec![memory]).await.expect("remembered");
    let follow_up = job("next");
    let settlement = Settlement {
        follow_ups: vec![follow_up.clone()],
        ..Settlement::new(parent.lease(), Verdict::Complete(None))
    };
    scene.here.settle(vec![settlement]).await.expect("settled");
    for new in [by_tokio, by_sqlx, first, child, follow_up] {
        let stored = scene.here.get(vec![new.id]).await.expect("get").pop().flatten().expect("it is there");
        assert_eq!(stored.partition, new.partition);
        // A second one of its key has to wait.
        if !stored.state.is_final() {
            let second = NewJob { partition: new.partition.clone(), ..job("-") };
            let second = scene.enqueue(vec![second]).await[0];
            claim(&scene.there, 9).await;
            let second = scene.here.get(vec![second]).await.expect("get").pop().flatten().expect("there");
            assert_eq!(second.awaits, Some(Await::Turn), "{:?}", new.partition);
        }
    }
}
