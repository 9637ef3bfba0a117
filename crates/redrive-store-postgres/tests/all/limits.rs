//! Limits across nodes: no queue and no key runs more jobs than its limits allow, and no free slot is lost.

mod candidates;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::queue_limits::{Limits, QUEUE_LIMITS, Rate};
use redrive_core::records::{Precondition, RecordStore, RecordWrite};
use redrive_core::steps::{NewStep, Step, StepKind, Steps};
use redrive_core::store::{ClaimRequest, ReclaimRequest, SettleResult, Settlement, StoreError};
use redrive_core::{
    Job, JobId, Kind, NewJob, Order, Parent, Partition, PartitionKey, PolicyRef, Queue, QueueLimits, Reason,
    Start, State, StepName, Store, Timestamp, Verdict, WaitCondition, WorkerId, catalog,
};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use sqlx_core::connection::Connection as _;
use sqlx_postgres::PgConnection;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Counts running jobs in one snapshot: of the queue and of any key, without and with strict order.
const RUNNING: &str = "SELECT coalesce(sum(jobs) FILTER (WHERE NOT strict), 0)::bigint, \
    coalesce(max(jobs) FILTER (WHERE NOT strict), 0)::bigint, coalesce(sum(jobs) FILTER (WHERE strict), 0)::bigint, \
    coalesce(max(jobs) FILTER (WHERE strict), 0)::bigint FROM \
    (SELECT strict, count(*) AS jobs FROM redrive.all_jobs WHERE state = 2 GROUP BY partition, strict) AS keys";

/// Counts the differences between the table of counts and the rows, in one snapshot.
const DIFFERENCE: &str = "SELECT count(*) FROM \
    (SELECT lane, state, sum(jobs) AS jobs FROM redrive.counts GROUP BY lane, state HAVING sum(jobs) <> 0) AS kept \
    FULL JOIN (SELECT lane, state, count(*) AS jobs FROM redrive.all_jobs GROUP BY lane, state) AS real USING (lane, state) \
    WHERE kept.jobs IS DISTINCT FROM real.jobs";

/// A server with two nodes.
struct Fixture {
    server: Postgres,
    here: PostgresStore,
    there: PostgresStore,
    policy: PolicyRef,
}

impl Fixture {
    /// Starts a fast server, without protection against a power cut.
    async fn open() -> Self {
        let server = Postgres::start_with(&[("fsync", "off"), ("max_connections", "200")]);
        let (here, there) = (node(&server).await, node(&server).await);
        let policy = catalog::put_inline(&here, &presets::once(), redrive_core::Timestamp::default())
            .await
            .expect("stored");
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

    /// Sets the limits of the default queue, through a node that claims nothing.
    async fn set_limits(&self, limits: Option<QueueLimits>) {
        self.set_queue_limits("default", limits).await;
    }

    async fn set_queue_limits(&self, queue: &str, limits: Option<QueueLimits>) {
        let value = limits.map(|limits| serde_json::to_vec(&limits).expect("JSON"));
        let change = RecordWrite {
            kind: QUEUE_LIMITS.to_owned(),
            id: queue.to_owned(),
            expect: Precondition::Any,
            value,
        };
        node(&self.server).await.write(change).await.expect("written");
    }

    /// A session of somebody else.
    async fn session(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.server.address(), NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client
    }

    async fn state(&self, id: JobId) -> State {
        self.here.get(vec![id]).await.expect("get").pop().flatten().expect("the job exists").state
    }
}

async fn node(server: &Postgres) -> PostgresStore {
    PostgresStore::open(&server.address(), Options::default()).await.expect("the store opens")
}

fn slots(concurrency: u32) -> Limits {
    Limits { concurrency: Some(concurrency), rate: None }
}

fn limits(concurrency: u32, per_key: Limits) -> QueueLimits {
    QueueLimits { concurrency: Some(concurrency), rate: None, per_key }
}

fn request(limit: usize, lease: Duration) -> ClaimRequest {
    ClaimRequest { worker: WorkerId::new("w").expect("legal"), queues: vec![], kinds: vec![], limit, lease }
}

async fn claim(store: &PostgresStore, limit: usize) -> Vec<Job> {
    store.claim(request(limit, TIMEOUT)).await.expect("claimed").jobs
}

async fn claim_ids(store: &PostgresStore, limit: usize) -> Vec<JobId> {
    claim(store, limit).await.iter().map(|job| job.id).collect()
}

async fn settle(store: &PostgresStore, job: &Job, verdict: Verdict) {
    let settled = store.settle(vec![Settlement::new(job.lease(), verdict)]).await.expect("settled");
    assert!(matches!(settled[..], [SettleResult::Applied(_)]), "{settled:?}");
}

const KEYS: usize = 24;
const STRICT_KEYS: usize = 6;
const JOBS: usize = 720;

/// There is no sweep: each waiting job gets its slot from a job that ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_under_load_never_exceed_the_limits() {
    let fixture = Fixture::open().await;
    fixture.set_limits(Some(limits(10, slots(2)))).await;
    fixture.set_queue_limits("ordered", Some(limits(4, Limits::default()))).await;
    let job = |n: usize| match n % KEYS {
        key if key < STRICT_KEYS => {
            let queue = Queue::new("ordered").expect("legal");
            NewJob { queue, ..fixture.job(Some(&format!("key-{key}")), Order::Strict) }
        }
        key => fixture.job(Some(&format!("key-{key}")), Order::Any),
    };
    fixture.enqueue((0..JOBS).map(job).collect()).await;
    let left = Arc::new(AtomicUsize::new(JOBS));
    let mut workers = JoinSet::new();
    for number in 0..12 {
        let (store, left) = ([&fixture.here, &fixture.there][number % 2].clone(), left.clone());
        workers.spawn(async move { work(&store, &left).await });
    }
    let client = fixture.session().await;
    let (began, mut samples, mut most) = (Instant::now(), 0, [0; 4]);
    while left.load(Ordering::Relaxed) > 0 {
        assert!(began.elapsed() < TIMEOUT, "{} jobs are left", left.load(Ordering::Relaxed));
        let row = client.query_one(RUNNING, &[]).await.expect("counted");
        let running: [i64; 4] = std::array::from_fn(|column| row.get(column));
        let mut limited = running.iter().zip([10, 2, 4, 1]);
        assert!(limited.all(|(running, limit)| *running <= limit), "{running:?} run at once");
        most = std::array::from_fn(|column| running[column].max(most[column]));
        samples += 1;
    }
    assert!(samples > 20 && most == [10, 2, 4, 1], "{samples} samples saw {most:?} at most");
    let ended = workers.join_all().await.into_iter().flatten();
    check_strict_order(ended.collect());
    assert_eq!(fixture.here.stats().await.expect("stats").in_state(State::Succeeded), JOBS as u64);
    assert_eq!(fixture.server.run(DIFFERENCE), "0", "the counts differ from the rows");
}

/// Runs jobs until none are left. Some jobs fail once. Returns when jobs in strict order started and ended.
async fn work(store: &PostgresStore, left: &AtomicUsize) -> Vec<(Job, Instant, Instant)> {
    let mut ended = Vec::new();
    while left.load(Ordering::Relaxed) > 0 {
        let claimed = match store.claim(request(3, TIMEOUT)).await {
            // The server resolved a deadlock. A worker would retry too.
            Err(StoreError::Busy(_)) => continue,
            claimed => claimed.expect("claimed"),
        };
        let began = Instant::now();
        if claimed.jobs.is_empty() {
            let _ = timeout(Duration::from_millis(20), store.wait(claimed.wake)).await;
        }
        // Long enough that running jobs reach the limits on a slow machine too.
        sleep(Duration::from_millis(30)).await;
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
        let key = job.partition.expect("the job has a partition key").key;
        assert!(last.get(&key).is_none_or(|last| *last <= began), "{} of {key} began too early", job.id);
        last.insert(key, end);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_together_respect_a_rate_limit() {
    const SPAN: i64 = 400;
    let fixture = Fixture::open().await;
    let rate = |count| Some(Rate { count, per_ms: SPAN as u64 });
    let per_key = Limits { concurrency: None, rate: rate(3) };
    fixture.set_limits(Some(QueueLimits { concurrency: None, rate: rate(8), per_key })).await;
    let job = |n: usize| fixture.job(Some(["a", "b", "c", "d"][n % 4]), Order::Any);
    fixture.enqueue((0..200).map(job).collect()).await;
    let mut claimers = JoinSet::new();
    let began = Instant::now();
    for number in 0..8 {
        let store = [&fixture.here, &fixture.there][number % 2].clone();
        claimers.spawn(async move {
            let mut started = Vec::new();
            while began.elapsed() < Duration::from_millis(1_500) {
                let jobs = claim(&store, 2).await.into_iter();
                started.extend(
                    jobs.map(|job| {
                        (job.started_at.expect("the job runs"), job.partition.expect("a key").key)
                    }),
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
async fn the_slots_of_a_killed_node_become_free_after_the_reclaim() {
    let fixture = Fixture::open().await;
    fixture.set_limits(Some(limits(2, slots(1)))).await;
    let job = |key| fixture.job(Some(key), Order::Any);
    let enqueued = fixture.enqueue(["a", "a", "b", "b"].map(job).to_vec()).await;
    let victim = node(&fixture.server).await;
    let lease = Duration::from_millis(300);
    let lost = victim.claim(request(9, lease)).await.expect("claimed").jobs;
    assert_eq!(lost.iter().map(|job| job.id).collect::<Vec<_>>(), [enqueued[0], enqueued[2]]);
    drop(victim);
    assert_eq!(claim_ids(&fixture.here, 9).await, []);
    sleep(lease + Duration::from_millis(20)).await;
    assert_eq!(
        claim_ids(&fixture.here, 9).await,
        [],
        "the leases have run out, but the jobs are not settled yet"
    );
    let reclaim = ReclaimRequest { kinds: vec![], limit: 9, lease: TIMEOUT, held: vec![] };
    let orphans = fixture.there.reclaim(reclaim).await.expect("reclaimed").jobs;
    assert_eq!(orphans.len(), 2);
    for orphan in &orphans {
        settle(&fixture.there, orphan, Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
    }
    assert_eq!(claim_ids(&fixture.here, 9).await, [enqueued[1], enqueued[3]]);
}

/// Claims start where the last one ended. A job that waited for a slot becomes due before that position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_gets_a_slot_is_claimed_at_once_whatever_the_position_of_claims() {
    let fixture = Fixture::open().await;
    let plain = |n: usize| fixture.enqueue((0..n).map(|_| fixture.job(None, Order::Any)).collect());
    // The claims of this node have advanced before the first job with a key is added.
    plain(1).await;
    sleep(Duration::from_millis(700)).await;
    for _ in 0..3 {
        plain(2).await;
        assert!(!claim(&fixture.here, 9).await.is_empty());
    }
    let old = Start::At(Timestamp::from_ms(fixture.here.stats().await.expect("stats").now.as_ms() - 60_000));
    let keyed = || NewJob { start: old, ..fixture.job(Some("a"), Order::Any) };
    fixture.set_limits(Some(QueueLimits { per_key: slots(1), ..QueueLimits::default() })).await;
    let enqueued: Vec<NewJob> = (0..3).map(|_| keyed()).collect();
    let keyed_ids: Vec<JobId> = enqueued.iter().map(|job| job.id).collect();
    fixture.there.enqueue(enqueued).await.expect("enqueued");
    let mut running = claim(&fixture.here, 1).await.pop().expect("the job is due");
    for next in &keyed_ids[1..] {
        assert_eq!(claim_ids(&fixture.here, 9).await, []);
        assert_eq!(fixture.state(*next).await, State::Waiting);
        plain(3).await;
        assert_eq!(claim(&fixture.here, 9).await.len(), 3);
        settle(&fixture.there, &running, Verdict::Complete(None)).await;
        running =
            claim(&fixture.here, 9).await.pop().expect("the job has a slot, and the first claim finds it");
        assert_eq!(running.id, *next);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_another_node_sets_or_removes_apply_at_once() {
    let fixture = Fixture::open().await;
    for _ in 0..3 {
        let enqueued = fixture.enqueue((0..6).map(|_| fixture.job(None, Order::Any)).collect()).await;
        let first = claim(&fixture.here, 1).await;
        assert_eq!(first[0].id, enqueued[0]);
        fixture.set_limits(Some(limits(3, Limits::default()))).await;
        assert_eq!(claim_ids(&fixture.here, 9).await, enqueued[1..3]);
        assert_eq!(claim_ids(&fixture.there, 9).await, []);
        settle(&fixture.here, &first[0], Verdict::Complete(None)).await;
        assert_eq!(claim_ids(&fixture.there, 9).await, [enqueued[3]]);
        fixture.set_limits(None).await;
        assert_eq!(claim_ids(&fixture.here, 9).await, enqueued[4..]);
        for job in
            fixture.server.run("SELECT id || ' ' || epoch FROM redrive.all_jobs WHERE state = 2").lines()
        {
            let (id, epoch) = job.split_once(' ').expect("two words");
            let lease = redrive_core::Lease {
                id: JobId(id.parse().expect("an id")),
                epoch: epoch.parse().expect("a number"),
            };
            fixture
                .here
                .settle(vec![Settlement::new(lease, Verdict::Complete(None))])
                .await
                .expect("settled");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_frees_a_slot_wakes_the_other_node() {
    let fixture = Fixture::open().await;
    fixture.set_limits(Some(limits(1, Limits::default()))).await;
    fixture.enqueue((0..2).map(|_| fixture.job(None, Order::Any)).collect()).await;
    let first = claim(&fixture.here, 1).await.pop().expect("the job is due");
    // Wake-ups of the enqueue may still arrive.
    let mut seen = fixture.there.claim(request(1, TIMEOUT)).await.expect("claimed");
    while timeout(Duration::from_millis(100), fixture.there.wait(seen.wake)).await.is_ok() {
        seen = fixture.there.claim(request(1, TIMEOUT)).await.expect("claimed");
    }
    assert_eq!((seen.jobs.len(), seen.next_due), (0, None));
    settle(&fixture.here, &first, Verdict::Complete(None)).await;
    timeout(TIMEOUT, fixture.there.wait(seen.wake)).await.expect("the wake-up arrives");
    assert_eq!(claim(&fixture.there, 1).await.len(), 1);
}

/// Makes every job that starts to wait stop before its row is written, as long as another session holds the lock 16.
const STOP_NEW_WAITERS: &str = "\
    CREATE FUNCTION stop_new_waiters() RETURNS trigger LANGUAGE plpgsql AS \
      $$ BEGIN PERFORM pg_advisory_xact_lock(16); RETURN new; END $$; \
    CREATE TRIGGER stop_new_waiters BEFORE INSERT ON redrive.waiting FOR EACH ROW EXECUTE FUNCTION stop_new_waiters()";

/// Counts the sessions that wait for the lock 16.
const STOPPED: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 16 AND objsubid = 1 AND NOT granted";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_becomes_free_while_a_job_starts_to_wait_is_not_lost() {
    let fixture = Fixture::open().await;
    fixture.set_limits(Some(limits(10, slots(1)))).await;
    let enqueued = fixture.enqueue((0..2).map(|_| fixture.job(Some("a"), Order::Any)).collect()).await;
    let running = claim(&fixture.here, 1).await.pop().expect("the job is due");
    let client = fixture.session().await;
    client.batch_execute(STOP_NEW_WAITERS).await.expect("a trigger");
    client.batch_execute("SELECT pg_advisory_lock(16)").await.expect("the lock");
    // The claim finds the only slot taken, and stops on its way to make the second job wait.
    let there = fixture.there.clone();
    let claiming = tokio::spawn(async move { claim_ids(&there, 1).await });
    let stopped = async || client.query_one(STOPPED, &[]).await.expect("locks").get::<_, i64>(0) > 0;
    timeout(TIMEOUT, async {
        while !stopped().await {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the claim stops");
    // This frees the slot, and finds nobody who waits for it.
    settle(&fixture.here, &running, Verdict::Complete(None)).await;
    client.batch_execute("SELECT pg_advisory_unlock(16)").await.expect("unlocked");
    let claimed = timeout(TIMEOUT, claiming).await.expect("in time").expect("the claim ends");
    assert_eq!(claimed, enqueued[1..], "the slot was free");
}

/// If a node dies after a settlement and before it gives the free slot to another job, a sweep does it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_gives_a_slot_that_nobody_gave() {
    let fixture = Fixture::open().await;
    let enqueued = fixture.enqueue((0..3).map(|_| fixture.job(Some("a"), Order::Strict)).collect()).await;
    assert_eq!(claim_ids(&fixture.here, 9).await, enqueued[..1]);
    // A settlement writes this.
    let settle = format!(
        "INSERT INTO redrive.ended (id, epoch, finished_at, attempt, state) SELECT id, epoch, 0, 1, 4 FROM redrive.all_jobs WHERE id = '{id}';
         DELETE FROM redrive.claims; DELETE FROM redrive.slots; DELETE FROM redrive.ordered WHERE id = '{id}'",
        id = enqueued[0].0
    );
    fixture.server.run(&settle);
    assert_eq!(claim_ids(&fixture.here, 9).await, []);
    let swept = fixture.there.sweep(None, 9).await.expect("swept");
    assert_eq!((swept.resumed, swept.last), (vec![enqueued[1]], Some(enqueued[2])));
    assert_eq!(claim_ids(&fixture.here, 9).await, enqueued[1..2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_enqueue_stores_the_partition_key() {
    let fixture = Fixture::open().await;
    let job = |key| fixture.job(Some(key), Order::Strict);
    let mut client = fixture.session().await;
    let mut sqlx = PgConnection::connect(&fixture.server.address()).await.expect("the server answers");
    let (by_tokio, by_sqlx, first) = (job("tokio"), job("sqlx"), job("plain"));
    let mut transaction = client.transaction().await.expect("begun");
    fixture.here.enqueue_in(&mut transaction, vec![by_tokio.clone()]).await.expect("enqueued");
    transaction.commit().await.expect("committed");
    let mut transaction = sqlx.begin().await.expect("begun");
    fixture.here.enqueue_in_sqlx(&mut transaction, vec![by_sqlx.clone()]).await.expect("enqueued");
    transaction.commit().await.expect("committed");
    fixture.enqueue(vec![first.clone()]).await;
    let running = claim(&fixture.there, 9).await;
    assert_eq!(running.len(), 3);
    let parent = running.iter().find(|job| job.id == first.id).expect("the job runs");
    let child = NewJob { parent: Some(Parent::new(parent.id, 0)), ..job("child") };
    let (name, kind) = (StepName::new("fan-out").expect("legal"), StepKind::Children);
    let step = Step { place: 0, name, kind, value: vec![] };
    let new_step = NewStep { children: vec![child.clone()], ..NewStep::new(parent.lease(), step) };
    fixture.here.remember(vec![new_step]).await.expect("remembered");
    let follow_up = job("next");
    let settlement = Settlement {
        follow_ups: vec![follow_up.clone()],
        ..Settlement::new(parent.lease(), Verdict::Complete(None))
    };
    fixture.here.settle(vec![settlement]).await.expect("settled");
    for new in [by_tokio, by_sqlx, first, child, follow_up] {
        let stored =
            fixture.here.get(vec![new.id]).await.expect("get").pop().flatten().expect("the job exists");
        assert_eq!(stored.partition, new.partition);
        // A second job with this key must wait.
        if !stored.state.is_final() {
            let second = NewJob { partition: new.partition.clone(), ..job("-") };
            let second = fixture.enqueue(vec![second]).await[0];
            claim(&fixture.there, 9).await;
            let second = fixture.here.get(vec![second]).await.expect("get").pop().flatten().expect("there");
            assert_eq!(second.awaits, Some(WaitCondition::FreeSlot), "{:?}", new.partition);
        }
    }
}
