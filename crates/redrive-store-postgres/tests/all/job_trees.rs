//! Trees of jobs end completely, whatever other transactions are open, and a requested cancel reaches the worker.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::steps::{NewStep, RememberResult, Step, StepKind, WaitCondition};
use redrive_core::store::{CancelResult, ClaimRequest, SettleResult, Settlement, WakeToken};
use redrive_core::{
    Job, JobId, Kind, Lease, NewJob, Outcome, Parent, PolicyRef, Reason, State, StepName, Steps, Store,
    Verdict, Wait, WorkerId, catalog,
};
use redrive_sql::Statement;
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use redrive_worker::{Context, Settings, Worker};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::sql;

static CANCEL: Statement = sql::OPERATE.statement("cancel");

/// A call that waits for an open transaction must not return within this time.
const BLOCKED_FOR: Duration = Duration::from_millis(300);
/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server with two nodes, and another connection.
struct Fixture {
    server: Postgres,
    here: PostgresStore,
    there: PostgresStore,
    client: Client,
    policy: PolicyRef,
}

impl Fixture {
    async fn open() -> Self {
        let server = Postgres::start_with(&[("fsync", "off"), ("max_connections", "200")]);
        let (here, there) = (node(&server).await, node(&server).await);
        let policy = catalog::put_inline(&here, &presets::once(), redrive_core::Timestamp::default())
            .await
            .expect("stored");
        let (client, connection) =
            tokio_postgres::connect(&server.address(), NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        Self { server, here, there, client, policy }
    }

    fn job(&self) -> NewJob {
        NewJob::new(JobId(Uuid::now_v7()), kind(), self.policy.clone(), vec![])
    }

    fn child(&self, parent: JobId) -> NewJob {
        NewJob { parent: Some(Parent::new(parent, 0)), ..self.job() }
    }

    /// Enqueues and claims a job.
    async fn running(&self) -> Job {
        self.here.enqueue(vec![self.job()]).await.expect("enqueued");
        claim(&self.here, 1).await.pop().expect("the job is due")
    }

    /// Adds a child of a running job, as a step does, in a transaction of the other connection that stays open.
    async fn add_uncommitted_child(&self, parent: &Job) -> JobId {
        let id = JobId(Uuid::now_v7());
        let parent = parent.id;
        let sql = format!(
            "BEGIN; SELECT FROM redrive.claims WHERE '{parent}' = ANY (ids) FOR KEY SHARE;
             INSERT INTO redrive.progress (id, began_at, next_run_at, has_children)
             SELECT id, due, due, true FROM redrive.jobs WHERE id = '{parent}'
             ON CONFLICT (id) DO UPDATE SET has_children = true;
             INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload, parent, branch)
             SELECT '{id}', lane, 0, 0, '', policy, '', id, 0 FROM redrive.jobs WHERE id = '{parent}';
             INSERT INTO redrive.ready (id, lane, due) SELECT id, lane, due FROM redrive.jobs WHERE id = '{id}';
             INSERT INTO redrive.children (parent, id, branch) VALUES ('{parent}', '{id}', 0)"
        );
        self.client.batch_execute(&sql).await.expect("added");
        id
    }

    async fn state(&self, id: JobId) -> State {
        self.here.get(vec![id]).await.expect("read").pop().flatten().expect("the job exists").state
    }

    fn marks(&self) -> String {
        self.server.run("SELECT count(*) FROM redrive.closing")
    }
}

async fn node(server: &Postgres) -> PostgresStore {
    PostgresStore::open(&server.address(), Options::default()).await.expect("the store opens")
}

async fn claim(store: &PostgresStore, limit: usize) -> Vec<Job> {
    let worker = WorkerId::new("w").expect("legal");
    let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit, lease: TIMEOUT };
    store.claim(request).await.expect("claimed").jobs
}

async fn settle(store: &PostgresStore, lease: Lease, verdict: Verdict) -> SettleResult {
    store.settle(vec![Settlement::new(lease, verdict)]).await.expect("settled")[0]
}

fn kind() -> Kind {
    Kind::new("trees").expect("legal")
}

fn new_step(lease: Lease, place: u32, children: Vec<NewJob>) -> NewStep {
    let name = StepName::new("fan-out").expect("legal");
    let step = Step { place, name, kind: StepKind::Children, value: vec![] };
    NewStep { children, ..NewStep::new(lease, step) }
}

/// The growth of a tree.
#[derive(Default)]
struct Growth {
    /// Children that were added.
    added: watch::Sender<usize>,
    /// Running jobs.
    running: Mutex<Vec<Lease>>,
    /// Whether the cancel has returned.
    cancelled: AtomicBool,
}

impl Growth {
    /// A step of a running job that adds two children.
    async fn fan_out(
        &self,
        store: &PostgresStore,
        policy: &PolicyRef,
        lease: Lease,
        place: u32,
    ) -> RememberResult {
        let of = Some(Parent::new(lease.id, place));
        let child =
            |_| NewJob { parent: of, ..NewJob::new(JobId(Uuid::now_v7()), kind(), policy.clone(), vec![]) };
        let fan_out = new_step(lease, place, (0..2).map(child).collect());
        let mut remembered = store.remember(vec![fan_out]).await.expect("remembered");
        self.added.send_modify(|added| *added += 2);
        remembered.remove(0)
    }
}

/// Runs due jobs, each of which adds children, until the tree is cancelled.
async fn grow(store: PostgresStore, policy: PolicyRef, growth: Arc<Growth>) {
    loop {
        // In this order, because jobs that were added before the cancel returned must have ended by then.
        let cancelled = growth.cancelled.load(Ordering::SeqCst);
        let jobs = claim(&store, 3).await;
        if cancelled {
            assert!(jobs.is_empty(), "{} jobs of a cancelled tree were due", jobs.len());
            return;
        }
        for lease in jobs.iter().map(Job::lease) {
            growth.running.lock().expect("not poisoned").push(lease);
            for place in 0..3 {
                growth.fan_out(&store, &policy, lease, place).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_growing_tree_that_is_cancelled_keeps_no_live_job() {
    let fixture = Fixture::open().await;
    let nodes = [fixture.here.clone(), fixture.there.clone(), node(&fixture.server).await];
    for round in 0..25 {
        let top = fixture.running().await;
        let growth = Arc::new(Growth::default());
        growth.running.lock().expect("not poisoned").push(top.lease());
        growth.fan_out(&fixture.here, &fixture.policy, top.lease(), 0).await;
        let mut growers = JoinSet::new();
        for store in &nodes {
            growers.spawn(grow(store.clone(), fixture.policy.clone(), growth.clone()));
        }
        let mut added = growth.added.subscribe();
        let enough = added.wait_for(|added| *added >= 8 + 3 * round);
        timeout(TIMEOUT, enough).await.expect("the tree grows in time").expect("the sender lives");
        let answer = fixture.there.cancel(vec![top.id]).await.expect("cancelled");
        assert_eq!(answer, [CancelResult::Requested]);
        growth.cancelled.store(true, Ordering::SeqCst);
        timeout(TIMEOUT, growers.join_all()).await.expect("the workers end");
        let live =
            "SELECT count(*) FROM redrive.all_jobs WHERE state < 4 AND NOT (state = 2 AND cancel_requested)";
        let left = (fixture.server.run(live), fixture.marks());
        assert_eq!(left, ("0".to_owned(), "0".to_owned()), "tree {round}");
        // Running jobs must not add any more children.
        let running = growth.running.lock().expect("not poisoned").clone();
        for lease in running {
            let refused = growth.fan_out(&fixture.there, &fixture.policy, lease, 9).await;
            assert_eq!(refused, RememberResult::CancelRequested);
            assert_eq!(
                settle(&fixture.here, lease, Verdict::Cancel).await,
                SettleResult::Applied(State::Cancelled)
            );
        }
        assert_eq!(
            fixture.server.run("SELECT count(*) FROM redrive.all_jobs WHERE state < 4"),
            "0",
            "tree {round}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_that_are_added_while_the_parent_ends_end_too() {
    let fixture = Fixture::open().await;
    for verdict in [None, Some(Verdict::DeadLetter(Reason::NotRetryable)), Some(Verdict::Cancel)] {
        let parent = fixture.running().await;
        let child = fixture.add_uncommitted_child(&parent).await;
        let (store, lease, by) = (fixture.here.clone(), parent.lease(), verdict.clone());
        let mut calling = tokio::spawn(async move {
            match by {
                None => drop(store.cancel(vec![lease.id]).await.expect("cancelled")),
                Some(verdict) => drop(settle(&store, lease, verdict).await),
            }
        });
        assert!(timeout(BLOCKED_FOR, &mut calling).await.is_err(), "the call did not wait for the step");
        fixture.client.batch_execute("COMMIT").await.expect("committed");
        timeout(TIMEOUT, calling).await.expect("the call ends").expect("no panic");
        assert_eq!(fixture.state(child).await, State::Cancelled, "{verdict:?}");
        assert_eq!(fixture.marks(), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_ends_a_whole_tree_or_nothing() {
    let fixture = Fixture::open().await;
    for (settles, commits) in [(false, true), (false, false), (true, true), (true, false)] {
        let parent = fixture.running().await;
        let child = fixture.child(parent.id);
        let grandchild = fixture.child(child.id);
        fixture.here.enqueue(vec![child.clone()]).await.expect("enqueued");
        let running = claim(&fixture.here, 1).await.pop().expect("the job is due");
        fixture.here.enqueue(vec![grandchild.clone()]).await.expect("enqueued");
        let seen = fixture.there.wait_for_cancel(WakeToken(u64::MAX)).await;
        let (id, lease) = (parent.id, parent.lease());
        let work = fixture.here.transact(move |tx| {
            Box::pin(async move {
                if settles {
                    let dead = Verdict::DeadLetter(Reason::NotRetryable);
                    tx.settle(&[Settlement::new(lease, dead)]).await.expect("settled");
                } else {
                    tx.cancel(&[id]).await.expect("cancelled");
                }
                if commits { Ok(()) } else { Err(()) }
            })
        });
        assert_eq!(work.await.expect("the transaction runs").is_ok(), commits);
        let state = fixture.state(grandchild.id).await;
        assert_eq!(state, if commits { State::Cancelled } else { State::Pending }, "settles: {settles}");
        let child = fixture.here.get(vec![running.id]).await.expect("read").pop().flatten();
        assert_eq!(child.expect("the job exists").cancel_requested, commits);
        let notified =
            timeout(if commits { TIMEOUT } else { BLOCKED_FOR }, fixture.there.wait_for_cancel(seen)).await;
        assert_eq!((notified.is_ok(), fixture.marks()), (commits, "0".to_owned()));
        fixture.server.run(
            "TRUNCATE redrive.jobs, redrive.ready, redrive.claims, redrive.progress, redrive.ended, redrive.children",
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_finishes_a_cancel_that_crashed_after_its_mark() {
    let fixture = Fixture::open().await;
    let parent = fixture.running().await.id;
    let child = fixture.child(parent);
    let grandchild = fixture.child(child.id);
    let detached =
        NewJob { parent: Some(Parent { detached: true, ..Parent::new(parent, 0) }), ..fixture.job() };
    let jobs = vec![child.clone(), grandchild.clone(), detached.clone()];
    fixture.here.enqueue(jobs).await.expect("enqueued");
    // Only the first statement of a cancel.
    let now: Option<i64> = None;
    let claims: Vec<i64> =
        vec![fixture.server.run("SELECT claim FROM redrive.claims").parse().expect("one claim")];
    let first: [(&(dyn ToSql + Sync), Type); 5] = [
        (&now, Type::INT8),
        (&7_i64, Type::INT8),
        (&vec![parent.0], Type::UUID_ARRAY),
        (&claims, Type::INT8_ARRAY),
        (&vec![0_i64], Type::INT8_ARRAY),
    ];
    fixture.client.query_typed(&CANCEL, &first).await.expect("cancelled");
    assert_eq!((fixture.state(child.id).await, fixture.marks()), (State::Pending, "1".to_owned()));
    fixture.there.sweep(None, 10).await.expect("swept");
    for (id, state) in
        [(child.id, State::Cancelled), (grandchild.id, State::Cancelled), (detached.id, State::Pending)]
    {
        assert_eq!(fixture.state(id).await, state);
    }
    assert_eq!(fixture.marks(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_of_a_redriven_job_ends_nothing() {
    let fixture = Fixture::open().await;
    let parent = fixture.running().await;
    settle(&fixture.here, parent.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    let child = fixture.child(parent.id);
    fixture.here.enqueue(vec![child.clone()]).await.expect("enqueued");
    let mark = format!("INSERT INTO redrive.closing (tree, job) VALUES (7, '{}')", parent.id);
    fixture.server.run(&mark);
    fixture.here.redrive(vec![parent.id]).await.expect("redriven");
    fixture.here.sweep(None, 10).await.expect("swept");
    assert_eq!((fixture.state(child.id).await, fixture.marks()), (State::Pending, "0".to_owned()));
    // While the parent is dead, the same mark ends the child.
    let again = claim(&fixture.here, 1).await.pop().expect("the job is due");
    assert_eq!(again.id, child.id, "the child has been due for longer");
    let parent = claim(&fixture.here, 1).await.pop().expect("the job is due");
    settle(&fixture.here, again.lease(), Verdict::Release).await;
    let dead = format!(
        "INSERT INTO redrive.ended (id, epoch, finished_at, attempt, state) \
         SELECT id, epoch, 0, 1, 5 FROM redrive.all_jobs WHERE id = '{id}'; \
         DELETE FROM redrive.claims WHERE '{id}' = ANY (ids)",
        id = parent.id
    );
    fixture.server.run(&dead);
    fixture.server.run(&mark);
    fixture.here.sweep(None, 10).await.expect("swept");
    assert_eq!((fixture.state(child.id).await, fixture.marks()), (State::Cancelled, "0".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_on_one_node_reaches_a_handler_on_another_within_a_second() {
    let fixture = Fixture::open().await;
    let (events, mut received_events) = mpsc::unbounded_channel();
    let handler = move |_: Context| {
        let events = events.clone();
        async move {
            let _ = events.send("started");
            let _end = ReportOnDrop(events);
            std::future::pending::<Outcome>().await
        }
    };
    let worker = Worker::new(Arc::new(fixture.there.clone()), Settings::default()).expect("legal");
    let working = tokio::spawn(worker.on(kind(), handler).run_until(std::future::pending()));
    for _ in 0..3 {
        let job = fixture.job();
        fixture.here.enqueue(vec![job.clone()]).await.expect("enqueued");
        assert_eq!(
            timeout(TIMEOUT, received_events.recv()).await.expect("the handler starts"),
            Some("started")
        );
        let cancelled_at = Instant::now();
        assert_eq!(fixture.here.cancel(vec![job.id]).await.expect("cancelled"), [CancelResult::Requested]);
        assert_eq!(
            timeout(TIMEOUT, received_events.recv()).await.expect("the handler ends"),
            Some("dropped")
        );
        assert!(
            cancelled_at.elapsed() < Duration::from_secs(1),
            "the cancel took {:?}",
            cancelled_at.elapsed()
        );
    }
    working.abort();
}

/// Reports when a handler was dropped.
struct ReportOnDrop(mpsc::UnboundedSender<&'static str>);

impl Drop for ReportOnDrop {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requested_cancels_reach_other_nodes_also_after_a_lost_connection() {
    let fixture = Fixture::open().await;
    let seen = fixture.there.wait_for_cancel(WakeToken(u64::MAX)).await;
    fixture.running().await;
    let quiet = timeout(BLOCKED_FOR, fixture.there.wait_for_cancel(seen)).await;
    assert!(quiet.is_err(), "a wake-up counted as a cancel request");
    let job = fixture.running().await;
    fixture.here.cancel(vec![job.id]).await.expect("cancelled");
    let next = timeout(TIMEOUT, fixture.there.wait_for_cancel(seen)).await.expect("the request arrives");
    assert_ne!(next, seen);
    let listeners = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%LISTEN redrive%' \
        AND pid <> pg_backend_pid()";
    assert_eq!(fixture.server.run(listeners), "2");
    let missed = timeout(TIMEOUT, fixture.there.wait_for_cancel(next)).await;
    assert_ne!(
        missed.expect("a lost connection counts as a request, because one may have been missed"),
        next
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_whose_fan_out_fails_is_claimed_first_on_every_node() {
    for on_the_other in [false, true] {
        let fixture = Fixture::open().await;
        let parent = fixture.running().await;
        let children: Vec<NewJob> = (0..40).map(|_| fixture.child(parent.id)).collect();
        let fan_out = new_step(parent.lease(), 0, children);
        fixture.here.remember(vec![fan_out]).await.expect("remembered");
        let until = WaitCondition::Children { branch: 0, failures_max: 0 };
        settle(&fixture.here, parent.lease(), Verdict::Wait(Wait::until(until))).await;
        // Both nodes claim beyond the position that the parent will have. The next full scan comes after a second.
        tokio::time::sleep(Duration::from_millis(700)).await;
        let mut running = claim(&fixture.here, 4).await;
        running.extend(claim(&fixture.there, 4).await);
        running.extend(claim(&fixture.here, 4).await);
        running.extend(claim(&fixture.there, 4).await);
        assert_eq!(running.len(), 16);
        let rejected = Verdict::DeadLetter(Reason::NotRetryable);
        settle(&fixture.here, running[5].lease(), rejected).await;
        // Another due job, so that no claim returns nothing.
        fixture.here.enqueue(vec![fixture.job()]).await.expect("enqueued");
        assert_eq!(fixture.here.resume(vec![parent.id]).await.expect("resumed"), [true]);
        let next =
            if on_the_other { claim_when_quiet(&fixture.there).await } else { claim(&fixture.here, 1).await };
        assert_eq!(next.first().map(|job| job.id), Some(parent.id), "on the other node: {on_the_other}");
        let live = "SELECT count(*) FROM redrive.all_jobs WHERE parent IS NOT NULL AND state IN (0, 1, 3)";
        assert_eq!(fixture.server.run(live), "0", "children that had not started");
    }
}

/// Waits until no more wake-ups arrive, and then claims one job.
async fn claim_when_quiet(store: &PostgresStore) -> Vec<Job> {
    let worker = WorkerId::new("w").expect("legal");
    let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit: 0, lease: TIMEOUT };
    loop {
        let wake = store.claim(request.clone()).await.expect("claimed").wake;
        if timeout(Duration::from_millis(100), store.wait(wake)).await.is_err() {
            return claim(store, 1).await;
        }
    }
}

/// Cancels running jobs while some of them are settled.
async fn cancel_while_some_finish(fixture: &Fixture, count: usize) -> Duration {
    fixture.here.enqueue((0..count).map(|_| fixture.job()).collect()).await.expect("enqueued");
    let running = claim(&fixture.here, count).await;
    assert_eq!(running.len(), count);
    let ids: Vec<JobId> = running.iter().map(|job| job.id).collect();
    let done = Arc::new(AtomicUsize::new(0));
    let (store, finished, stop) = (fixture.there.clone(), done.clone(), Arc::new(AtomicBool::new(false)));
    let (some, stopped) = (running.clone(), stop.clone());
    let settling = tokio::spawn(async move {
        for batch in some.rchunks(5) {
            if stopped.load(Ordering::SeqCst) {
                break;
            }
            let settlements =
                batch.iter().map(|job| Settlement::new(job.lease(), Verdict::Complete(None))).collect();
            store.settle(settlements).await.expect("settled");
            finished.fetch_add(batch.len(), Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    while done.load(Ordering::SeqCst) == 0 && !settling.is_finished() {
        tokio::task::yield_now().await;
    }
    let began = Instant::now();
    let answers = fixture.here.cancel(ids.clone()).await.expect("cancelled");
    let took = began.elapsed();
    stop.store(true, Ordering::SeqCst);
    settling.await.expect("no panic");
    let after = fixture.here.get(ids).await.expect("read");
    for (job, answer) in after.into_iter().flatten().zip(answers) {
        match answer {
            CancelResult::Requested => assert!(job.cancel_requested),
            CancelResult::Ended(State::Succeeded) => assert_eq!(job.state, State::Succeeded),
            other => panic!("{other:?}"),
        }
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_of_a_thousand_jobs_has_a_result_for_each_while_some_finish() {
    let fixture = Fixture::open().await;
    for _ in 0..3 {
        cancel_while_some_finish(&fixture, 1_000).await;
    }
    assert_eq!(fixture.marks(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: the median should be at most 100 ms on an idle machine"]
async fn measure_a_cancel_of_a_thousand_running_jobs() {
    let fixture = Fixture::open().await;
    let mut took = Vec::new();
    for _ in 0..11 {
        took.push(cancel_while_some_finish(&fixture, 1_000).await);
    }
    took.sort_unstable();
    println!("cancel of 1,000 running jobs: median {:?}, all {took:?}", took[took.len() / 2]);
}
