//! Trees of jobs end whole, whatever other connections are in the middle of, and a requested end reaches the worker.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_core::policy::presets;
use redrive_core::steps::{Await, Memory, Remembered, Step, StepKind};
use redrive_core::store::{Cancelled, ClaimRequest, Settled, Settlement, Wake};
use redrive_core::{
    Job, JobId, Kind, Lease, NewJob, Outcome, Parent, PolicyRef, Reason, State, StepName, Steps, Store,
    Verdict, Wait, WorkerId, catalog,
};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;
use redrive_worker::{Context, Settings, Worker};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

const ASKED: &str = concat!(include_str!("../sql/cancel_asked.sql"), include_str!("../sql/cancel.sql"));

/// How long what waits for an open transaction is watched.
const WHILE: Duration = Duration::from_millis(300);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server, two nodes on it, and a connection beside them.
struct Scene {
    server: Postgres,
    here: PostgresStore,
    there: PostgresStore,
    client: Client,
    policy: PolicyRef,
}

impl Scene {
    async fn open() -> Self {
        let server = Postgres::start_with(&[("fsync", "off"), ("max_connections", "200")]);
        let (here, there) = (node(&server).await, node(&server).await);
        let policy = catalog::put_inline(&here, &presets::once()).await.expect("stored");
        let (client, connection) =
            tokio_postgres::connect(&server.address(), NoTls).await.expect("it answers");
        tokio::spawn(connection);
        Self { server, here, there, client, policy }
    }

    fn job(&self) -> NewJob {
        NewJob::new(JobId(Uuid::now_v7()), kind(), self.policy.clone(), vec![])
    }

    fn child(&self, parent: JobId) -> NewJob {
        NewJob { parent: Some(Parent::new(parent, 0)), ..self.job() }
    }

    /// A new job, running.
    async fn running(&self) -> Job {
        self.here.enqueue(vec![self.job()]).await.expect("enqueued");
        claim(&self.here, 1).await.pop().expect("it is due")
    }

    /// Adds a child of a running job, as a step does, in the transaction that is open on the connection beside the nodes.
    async fn add_child_beside(&self, parent: &Job) -> JobId {
        let id = JobId(Uuid::now_v7());
        let parent = parent.id;
        let sql = format!(
            "BEGIN; UPDATE redrive.jobs SET has_children = true WHERE id = '{parent}';
             INSERT INTO redrive.jobs (id, lane, next_run_at, began_at, created_at, tenant, policy, payload, parent, branch)
             SELECT '{id}', lane, 0, 0, 0, '', policy, '', id, 0 FROM redrive.jobs WHERE id = '{parent}'"
        );
        self.client.batch_execute(&sql).await.expect("added");
        id
    }

    async fn state(&self, id: JobId) -> State {
        self.here.get(vec![id]).await.expect("read").pop().flatten().expect("it is there").state
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
    let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit, lease: PATIENCE };
    store.claim(request).await.expect("claimed").jobs
}

async fn settle(store: &PostgresStore, lease: Lease, verdict: Verdict) -> Settled {
    store.settle(vec![Settlement::new(lease, verdict)]).await.expect("settled")[0]
}

fn kind() -> Kind {
    Kind::new("trees").expect("legal")
}

fn memory(lease: Lease, place: u32, children: Vec<NewJob>) -> Memory {
    let name = StepName::new("fan-out").expect("legal");
    let step = Step { place, name, kind: StepKind::Children, value: vec![] };
    Memory { children, ..Memory::new(lease, step) }
}

/// How a tree grows.
#[derive(Default)]
struct Growth {
    /// Children that were remembered.
    added: watch::Sender<usize>,
    /// Jobs that run and are not settled.
    running: Mutex<Vec<Lease>>,
    /// Whether the cancel has returned.
    cancelled: AtomicBool,
}

impl Growth {
    /// A step of a running job that brings two children.
    async fn fan_out(
        &self,
        store: &PostgresStore,
        policy: &PolicyRef,
        lease: Lease,
        place: u32,
    ) -> Remembered {
        let of = Some(Parent::new(lease.id, place));
        let child =
            |_| NewJob { parent: of, ..NewJob::new(JobId(Uuid::now_v7()), kind(), policy.clone(), vec![]) };
        let memory = memory(lease, place, (0..2).map(child).collect());
        let mut remembered = store.remember(vec![memory]).await.expect("remembered");
        self.added.send_modify(|added| *added += 2);
        remembered.remove(0)
    }
}

/// Runs what is due and lets each job bring children, until the tree is cancelled.
async fn grow(store: PostgresStore, policy: PolicyRef, growth: Arc<Growth>) {
    loop {
        // In this order: what was added before the cancel returned has ended by then.
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
async fn a_tree_that_is_cancelled_while_it_grows_keeps_no_live_job() {
    let scene = Scene::open().await;
    let nodes = [scene.here.clone(), scene.there.clone(), node(&scene.server).await];
    for round in 0..25 {
        let top = scene.running().await;
        let growth = Arc::new(Growth::default());
        growth.running.lock().expect("not poisoned").push(top.lease());
        growth.fan_out(&scene.here, &scene.policy, top.lease(), 0).await;
        let mut growers = JoinSet::new();
        for store in &nodes {
            growers.spawn(grow(store.clone(), scene.policy.clone(), growth.clone()));
        }
        let mut added = growth.added.subscribe();
        let enough = added.wait_for(|added| *added >= 8 + 3 * round);
        timeout(PATIENCE, enough).await.expect("it grows").expect("it is there");
        let answer = scene.there.cancel(vec![top.id]).await.expect("cancelled");
        assert_eq!(answer, [Cancelled::Requested]);
        growth.cancelled.store(true, Ordering::SeqCst);
        timeout(PATIENCE, growers.join_all()).await.expect("the workers end");
        let live =
            "SELECT count(*) FROM redrive.jobs WHERE state < 4 AND NOT (state = 2 AND cancel_requested)";
        let left = (scene.server.run(live), scene.marks());
        assert_eq!(left, ("0".to_owned(), "0".to_owned()), "tree {round}");
        // Those that run may not bring any more.
        let running = growth.running.lock().expect("not poisoned").clone();
        for lease in running {
            let refused = growth.fan_out(&scene.there, &scene.policy, lease, 9).await;
            assert_eq!(refused, Remembered::CancelRequested);
            assert_eq!(settle(&scene.here, lease, Verdict::Cancel).await, Settled::Applied(State::Cancelled));
        }
        assert_eq!(
            scene.server.run("SELECT count(*) FROM redrive.jobs WHERE state < 4"),
            "0",
            "tree {round}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_that_are_being_added_end_with_a_parent_that_ends_just_now() {
    let scene = Scene::open().await;
    for verdict in [None, Some(Verdict::DeadLetter(Reason::NotRetryable)), Some(Verdict::Cancel)] {
        let parent = scene.running().await;
        let child = scene.add_child_beside(&parent).await;
        let (store, lease, by) = (scene.here.clone(), parent.lease(), verdict.clone());
        let mut calling = tokio::spawn(async move {
            match by {
                None => drop(store.cancel(vec![lease.id]).await.expect("cancelled")),
                Some(verdict) => drop(settle(&store, lease, verdict).await),
            }
        });
        assert!(timeout(WHILE, &mut calling).await.is_err(), "it did not wait for the step");
        scene.client.batch_execute("COMMIT").await.expect("committed");
        timeout(PATIENCE, calling).await.expect("it ends").expect("no panic");
        assert_eq!(scene.state(child).await, State::Cancelled, "{verdict:?}");
        assert_eq!(scene.marks(), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_ends_a_whole_tree_with_its_commit_or_not_at_all() {
    let scene = Scene::open().await;
    for (settles, commits) in [(false, true), (false, false), (true, true), (true, false)] {
        let parent = scene.running().await;
        let child = scene.child(parent.id);
        let below = scene.child(child.id);
        scene.here.enqueue(vec![child.clone()]).await.expect("enqueued");
        let running = claim(&scene.here, 1).await.pop().expect("it is due");
        scene.here.enqueue(vec![below.clone()]).await.expect("enqueued");
        let seen = scene.there.wait_for_cancel(Wake(u64::MAX)).await;
        let (id, lease) = (parent.id, parent.lease());
        let work = scene.here.transact(move |tx| {
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
        assert_eq!(work.await.expect("it works").is_ok(), commits);
        let state = scene.state(below.id).await;
        assert_eq!(state, if commits { State::Cancelled } else { State::Pending }, "settles: {settles}");
        let child = scene.here.get(vec![running.id]).await.expect("read").pop().flatten();
        assert_eq!(child.expect("it is there").cancel_requested, commits);
        let heard = timeout(if commits { PATIENCE } else { WHILE }, scene.there.wait_for_cancel(seen)).await;
        assert_eq!((heard.is_ok(), scene.marks()), (commits, "0".to_owned()));
        scene.server.run("DELETE FROM redrive.jobs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_the_mark_and_the_work_is_finished_by_a_sweep() {
    let scene = Scene::open().await;
    let parent = scene.running().await.id;
    let child = scene.child(parent);
    let below = scene.child(child.id);
    let detached =
        NewJob { parent: Some(Parent { detached: true, ..Parent::new(parent, 0) }), ..scene.job() };
    let jobs = vec![child.clone(), below.clone(), detached.clone()];
    scene.here.enqueue(jobs).await.expect("enqueued");
    // The first statement of a cancel, and nothing more.
    let now: Option<i64> = None;
    let first: [(&(dyn ToSql + Sync), Type); 3] =
        [(&now, Type::INT8), (&7_i64, Type::INT8), (&vec![parent.0], Type::UUID_ARRAY)];
    scene.client.query_typed(ASKED, &first).await.expect("asked");
    assert_eq!((scene.state(child.id).await, scene.marks()), (State::Pending, "1".to_owned()));
    scene.there.sweep(None, 10).await.expect("swept");
    for (id, state) in
        [(child.id, State::Cancelled), (below.id, State::Cancelled), (detached.id, State::Pending)]
    {
        assert_eq!(scene.state(id).await, state);
    }
    assert_eq!(scene.marks(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_of_a_redriven_job_ends_nothing() {
    let scene = Scene::open().await;
    let parent = scene.running().await;
    settle(&scene.here, parent.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    let child = scene.child(parent.id);
    scene.here.enqueue(vec![child.clone()]).await.expect("enqueued");
    let mark = format!("INSERT INTO redrive.closing (tree, job) VALUES (7, '{}')", parent.id);
    scene.server.run(&mark);
    scene.here.redrive(vec![parent.id]).await.expect("redriven");
    scene.here.sweep(None, 10).await.expect("swept");
    assert_eq!((scene.state(child.id).await, scene.marks()), (State::Pending, "0".to_owned()));
    // The same mark ends the child while the parent is dead.
    let again = claim(&scene.here, 1).await.pop().expect("it is due");
    assert_eq!(again.id, child.id, "it has waited longer");
    let parent = claim(&scene.here, 1).await.pop().expect("it is due");
    settle(&scene.here, again.lease(), Verdict::Release).await;
    scene.server.run(&format!("UPDATE redrive.jobs SET state = 5 WHERE id = '{}'", parent.id));
    scene.server.run(&mark);
    scene.here.sweep(None, 10).await.expect("swept");
    assert_eq!((scene.state(child.id).await, scene.marks()), (State::Cancelled, "0".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_on_one_node_reaches_a_handler_on_another_within_a_second() {
    let scene = Scene::open().await;
    let (events, mut happened) = mpsc::unbounded_channel();
    let handler = move |_: Context| {
        let events = events.clone();
        async move {
            let _ = events.send("started");
            let _end = Dropped(events);
            std::future::pending::<Outcome>().await
        }
    };
    let worker = Worker::new(Arc::new(scene.there.clone()), Settings::default()).expect("legal");
    let working = tokio::spawn(worker.on(kind(), handler).run_until(std::future::pending()));
    for _ in 0..3 {
        let job = scene.job();
        scene.here.enqueue(vec![job.clone()]).await.expect("enqueued");
        assert_eq!(timeout(PATIENCE, happened.recv()).await.expect("it starts"), Some("started"));
        let asked = Instant::now();
        assert_eq!(scene.here.cancel(vec![job.id]).await.expect("cancelled"), [Cancelled::Requested]);
        assert_eq!(timeout(PATIENCE, happened.recv()).await.expect("it ends"), Some("dropped"));
        assert!(asked.elapsed() < Duration::from_secs(1), "it took {:?}", asked.elapsed());
    }
    working.abort();
}

/// Says when a handler was dropped.
struct Dropped(mpsc::UnboundedSender<&'static str>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_an_end_are_heard_on_other_nodes_and_after_a_break() {
    let scene = Scene::open().await;
    let seen = scene.there.wait_for_cancel(Wake(u64::MAX)).await;
    scene.running().await;
    let quiet = timeout(WHILE, scene.there.wait_for_cancel(seen)).await;
    assert!(quiet.is_err(), "a wake-up was taken for a request");
    let job = scene.running().await;
    scene.here.cancel(vec![job.id]).await.expect("cancelled");
    let next = timeout(PATIENCE, scene.there.wait_for_cancel(seen)).await.expect("it is heard");
    assert_ne!(next, seen);
    let listeners = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%LISTEN redrive%' \
        AND pid <> pg_backend_pid()";
    assert_eq!(scene.server.run(listeners), "2");
    let missed = timeout(PATIENCE, scene.there.wait_for_cancel(next)).await;
    assert_ne!(missed.expect("one may have been missed"), next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_whose_fan_out_fails_is_claimed_first_on_every_node() {
    for on_the_other in [false, true] {
        let scene = Scene::open().await;
        let parent = scene.running().await;
        let children: Vec<NewJob> = (0..40).map(|_| scene.child(parent.id)).collect();
        let fan_out = memory(parent.lease(), 0, children);
        scene.here.remember(vec![fan_out]).await.expect("remembered");
        let until = Await::Children { branch: 0, failures_max: 0 };
        settle(&scene.here, parent.lease(), Verdict::Wait(Wait::until(until))).await;
        // Both nodes claim beyond the place that the parent will have. A second full look is a second away.
        tokio::time::sleep(Duration::from_millis(700)).await;
        let mut running = claim(&scene.here, 4).await;
        running.extend(claim(&scene.there, 4).await);
        running.extend(claim(&scene.here, 4).await);
        running.extend(claim(&scene.there, 4).await);
        assert_eq!(running.len(), 16);
        let rejected = Verdict::DeadLetter(Reason::NotRetryable);
        settle(&scene.here, running[5].lease(), rejected).await;
        // Something that is due keeps a claim from coming back empty.
        scene.here.enqueue(vec![scene.job()]).await.expect("enqueued");
        assert_eq!(scene.here.resume(vec![parent.id]).await.expect("resumed"), [true]);
        let next = if on_the_other { until_claimed(&scene.there).await } else { claim(&scene.here, 1).await };
        assert_eq!(next.first().map(|job| job.id), Some(parent.id), "on the other node: {on_the_other}");
        let live = "SELECT count(*) FROM redrive.jobs WHERE parent IS NOT NULL AND state IN (0, 1, 3)";
        assert_eq!(scene.server.run(live), "0", "children that had not started");
    }
}

/// Waits for what the other node tells, and claims one then.
async fn until_claimed(store: &PostgresStore) -> Vec<Job> {
    let worker = WorkerId::new("w").expect("legal");
    let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit: 0, lease: PATIENCE };
    loop {
        let wake = store.claim(request.clone()).await.expect("claimed").wake;
        if timeout(Duration::from_millis(100), store.wait(wake)).await.is_err() {
            return claim(store, 1).await;
        }
    }
}

/// Running jobs, of which some are settled while all are cancelled.
async fn cancel_while_some_finish(scene: &Scene, count: usize) -> Duration {
    scene.here.enqueue((0..count).map(|_| scene.job()).collect()).await.expect("enqueued");
    let running = claim(&scene.here, count).await;
    assert_eq!(running.len(), count);
    let ids: Vec<JobId> = running.iter().map(|job| job.id).collect();
    let done = Arc::new(AtomicUsize::new(0));
    let (store, finished, stop) = (scene.there.clone(), done.clone(), Arc::new(AtomicBool::new(false)));
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
    while done.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let began = Instant::now();
    let answers = scene.here.cancel(ids.clone()).await.expect("cancelled");
    let took = began.elapsed();
    stop.store(true, Ordering::SeqCst);
    settling.await.expect("no panic");
    let after = scene.here.get(ids).await.expect("read");
    for (job, answer) in after.into_iter().flatten().zip(answers) {
        match answer {
            Cancelled::Requested => assert!(job.cancel_requested),
            Cancelled::Ended(State::Succeeded) => assert_eq!(job.state, State::Succeeded),
            other => panic!("{other:?}"),
        }
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_of_a_thousand_jobs_answers_for_each_while_some_finish() {
    let scene = Scene::open().await;
    for _ in 0..3 {
        cancel_while_some_finish(&scene, 1_000).await;
    }
    assert_eq!(scene.marks(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: the median should be at most 100 ms on an idle machine"]
async fn measure_a_cancel_of_a_thousand_running_jobs() {
    let scene = Scene::open().await;
    let mut took = Vec::new();
    for _ in 0..11 {
        took.push(cancel_while_some_finish(&scene, 1_000).await);
    }
    took.sort_unstable();
    println!("cancel of 1,000 running jobs: median {:?}, all {took:?}", took[took.len() / 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: a part of the 100 ms from the rejection of a child to the end of its parent"]
async fn measure_the_resume_of_a_parent_of_two_thousand_children() {
    let scene = Scene::open().await;
    let mut took = Vec::new();
    for _ in 0..7 {
        let parent = scene.running().await;
        for place in 0..2 {
            let of = Some(Parent::new(parent.id, 0));
            let children = (0..1_000).map(|_| NewJob { parent: of, ..scene.job() }).collect();
            let fan_out = memory(parent.lease(), place, children);
            scene.here.remember(vec![fan_out]).await.expect("remembered");
        }
        let until = Await::Children { branch: 0, failures_max: 0 };
        settle(&scene.here, parent.lease(), Verdict::Wait(Wait::until(until))).await;
        let running = claim(&scene.here, 64).await;
        let began = Instant::now();
        settle(&scene.here, running[3].lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
        assert_eq!(scene.here.resume(vec![parent.id]).await.expect("resumed"), [true]);
        let first = claim(&scene.here, 1).await.pop().expect("it is due");
        took.push(began.elapsed());
        assert_eq!(first.id, parent.id);
        settle(&scene.here, first.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
        for job in running {
            settle(&scene.here, job.lease(), Verdict::Cancel).await;
        }
        assert_eq!(scene.server.run("SELECT count(*) FROM redrive.jobs WHERE state < 4"), "0");
    }
    took.sort_unstable();
    println!("from a rejection to the claim of the parent: median {:?}, all {took:?}", took[took.len() / 2]);
}
