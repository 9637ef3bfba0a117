//! A clock that jumps, as it does after a suspend: what runs in this process stays with it, and what has crashed does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::Backend;
use redrive_core::{Job, JobId, Kind, NewJob, Outcome, State, catalog};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_testkit::ManualClock;
use redrive_worker::{Context, Observer, Settings, Summary, Worker};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
const JUMP: Duration = Duration::from_secs(3_600);
const MS: Duration = Duration::from_millis(1);

/// A store on a clock that only the test moves, with handlers that run until the test lets them end.
struct Scene {
    clock: ManualClock,
    store: Arc<dyn Backend>,
    jobs: Vec<JobId>,
    started: Arc<AtomicUsize>,
    may_end: Arc<Semaphore>,
}

impl Scene {
    async fn with_jobs(count: u128) -> Self {
        let clock = ManualClock::new();
        let options = Options::default().with_clock(clock.clone());
        let store: Arc<dyn Backend> = Arc::new(SqliteStore::open_in_memory_with(options).expect("it opens"));
        let policy = catalog::put_inline(&*store, &presets::quadratic()).await.expect("stored");
        let jobs: Vec<JobId> = (1..=count).map(|number| JobId(Uuid::from_u128(number))).collect();
        let new = jobs.iter().map(|id| NewJob::new(*id, kind(), policy.clone(), Vec::new()));
        store.enqueue(new.collect()).await.expect("enqueued");
        Self { clock, store, jobs, started: Arc::default(), may_end: Arc::new(Semaphore::new(0)) }
    }

    fn start(&self, settings: Settings) -> Running {
        let reclaims = Arc::new(Reclaims::default());
        let (started, may_end) = (self.started.clone(), self.may_end.clone());
        let worker =
            Worker::new(self.store.clone(), settings).expect("legal settings").observe(reclaims.clone());
        let worker = worker.on(kind(), move |_: Context| {
            started.fetch_add(1, Ordering::SeqCst);
            let may_end = may_end.clone();
            async move {
                may_end.acquire().await.expect("never closed").forget();
                Outcome::Done(None)
            }
        });
        let (shutdown, asked) = oneshot::channel::<()>();
        let run =
            async { worker.run_until(async { drop(asked.await) }).await.expect("it ends in good order") };
        Running { reclaims, shutdown, task: tokio::spawn(run) }
    }

    async fn all_started(&self) {
        until(async || self.started.load(Ordering::SeqCst) == self.jobs.len()).await;
    }

    async fn rows(&self) -> Vec<Job> {
        let rows = self.store.get(self.jobs.clone()).await.expect("get");
        rows.into_iter().map(|row| row.expect("it is there")).collect()
    }
}

struct Running {
    reclaims: Arc<Reclaims>,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<Summary>,
}

impl Running {
    async fn stop(self) -> Summary {
        drop(self.shutdown);
        self.task.await.expect("no panic")
    }
}

/// Counts the reclaims that a store has answered.
#[derive(Default)]
struct Reclaims(AtomicUsize);

impl Reclaims {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Observer for Reclaims {
    fn store_call(&self, verb: &'static str, _items: usize, _took: Duration, _ok: bool) {
        self.0.fetch_add(usize::from(verb == "reclaim"), Ordering::SeqCst);
    }
}

fn kind() -> Kind {
    Kind::new("work").expect("legal")
}

async fn until(holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(5 * MS).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("it comes to that");
}

/// Looks for orphans all the time; does not renew while a test runs.
fn eager() -> Settings {
    Settings::default().with_reclaim_every(10 * MS).with_lease(2 * PATIENCE).with_concurrency(5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_takes_no_job_from_the_process_that_runs_it() {
    let scene = Scene::with_jobs(10).await;
    // Five at once in each, so that each has some.
    let workers = [scene.start(eager()), scene.start(eager())];
    scene.all_started().await;
    scene.clock.advance(JUMP);
    for worker in &workers {
        let before = worker.reclaims.count();
        until(async || worker.reclaims.count() >= before + 3).await;
    }
    scene.may_end.add_permits(scene.jobs.len());
    until(async || scene.rows().await.iter().all(|job| job.state == State::Succeeded)).await;
    for worker in workers {
        let summary = worker.stop().await;
        assert_eq!((summary.succeeded, summary.reclaimed, summary.lease_lost), (5, 0, 0));
    }
    assert_eq!(scene.started.load(Ordering::SeqCst), 10);
    assert!(scene.rows().await.iter().all(|job| (job.attempt, job.epoch) == (1, 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_after_the_jump_renews_a_lease_that_seems_to_have_run_out() {
    let scene = Scene::with_jobs(3).await;
    let worker = scene.start(eager().with_heartbeat(10 * MS));
    scene.all_started().await;
    scene.clock.advance(JUMP);
    let now = scene.clock.now();
    until(async || scene.rows().await.iter().all(|job| job.lease_until.is_some_and(|until| until > now)))
        .await;
    scene.may_end.add_permits(scene.jobs.len());
    until(async || scene.rows().await.iter().all(|job| job.state == State::Succeeded)).await;
    assert_eq!(worker.stop().await.reclaimed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_crashed_worker_of_the_process_held_is_reclaimed_after_its_lease() {
    let scene = Scene::with_jobs(3).await;
    let crashed = scene.start(eager());
    scene.all_started().await;
    crashed.task.abort();
    drop(crashed.task.await.expect_err("it was aborted"));
    let worker = scene.start(eager());
    let before = worker.reclaims.count();
    until(async || worker.reclaims.count() >= before + 3).await;
    assert!(scene.rows().await.iter().all(|job| (job.state, job.epoch) == (State::Running, 1)));
    scene.clock.advance(JUMP);
    until(async || scene.rows().await.iter().all(|job| job.state == State::Retrying)).await;
    assert_eq!(worker.stop().await.reclaimed, 3);
}
