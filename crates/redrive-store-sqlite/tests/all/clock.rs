//! A clock that jumps, as after a suspend: jobs that run in this process keep their leases, jobs of a crashed worker do
//! not.

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

/// The longest time that a test waits for anything.
const WAIT_MAX: Duration = Duration::from_secs(60);
const JUMP: Duration = Duration::from_secs(3_600);
const MS: Duration = Duration::from_millis(1);

/// A store on a manual clock, with jobs whose handlers run until the test lets them end.
struct Fixture {
    clock: ManualClock,
    store: Arc<dyn Backend>,
    jobs: Vec<JobId>,
    started: Arc<AtomicUsize>,
    may_end: Arc<Semaphore>,
}

impl Fixture {
    async fn with_jobs(count: u128) -> Self {
        let clock = ManualClock::new();
        let options = Options::default().with_clock(clock.clone());
        let store: Arc<dyn Backend> =
            Arc::new(SqliteStore::open_in_memory_with(options).expect("the store opens"));
        let policy = catalog::put_inline(&*store, &presets::quadratic(), redrive_core::Timestamp::default())
            .await
            .expect("stored");
        let jobs: Vec<JobId> = (1..=count).map(|number| JobId(Uuid::from_u128(number))).collect();
        let new = jobs.iter().map(|id| NewJob::new(*id, kind(), policy.clone(), Vec::new()));
        store.enqueue(new.collect()).await.expect("enqueued");
        Self { clock, store, jobs, started: Arc::default(), may_end: Arc::new(Semaphore::new(0)) }
    }

    fn start(&self, settings: Settings) -> RunningWorker {
        let reclaims = Arc::new(ReclaimCounter::default());
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
        let (shutdown, requested) = oneshot::channel::<()>();
        let run = async {
            worker.run_until(async { drop(requested.await) }).await.expect("the worker shuts down cleanly")
        };
        RunningWorker { reclaims, shutdown, task: tokio::spawn(run) }
    }

    async fn wait_until_all_started(&self) {
        until(async || self.started.load(Ordering::SeqCst) == self.jobs.len()).await;
    }

    async fn rows(&self) -> Vec<Job> {
        let rows = self.store.get(self.jobs.clone()).await.expect("get");
        rows.into_iter().map(|row| row.expect("the job exists")).collect()
    }
}

struct RunningWorker {
    reclaims: Arc<ReclaimCounter>,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<Summary>,
}

impl RunningWorker {
    async fn stop(self) -> Summary {
        drop(self.shutdown);
        self.task.await.expect("no panic")
    }
}

/// Counts the calls of reclaim.
#[derive(Default)]
struct ReclaimCounter(AtomicUsize);

impl ReclaimCounter {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Observer for ReclaimCounter {
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
    timeout(WAIT_MAX, waiting).await.expect("the condition holds in time");
}

/// A worker that reclaims all the time, and renews no lease while a test runs.
fn reclaiming_settings() -> Settings {
    Settings::default().with_reclaim_every(10 * MS).with_lease(2 * WAIT_MAX).with_concurrency(5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_jump_takes_no_job_from_the_process_that_runs_it() {
    let fixture = Fixture::with_jobs(10).await;
    // Each worker runs five jobs at once, so that both get some.
    let workers = [fixture.start(reclaiming_settings()), fixture.start(reclaiming_settings())];
    fixture.wait_until_all_started().await;
    fixture.clock.advance(JUMP);
    for worker in &workers {
        let before = worker.reclaims.count();
        until(async || worker.reclaims.count() >= before + 3).await;
    }
    fixture.may_end.add_permits(fixture.jobs.len());
    until(async || fixture.rows().await.iter().all(|job| job.state == State::Succeeded)).await;
    for worker in workers {
        let summary = worker.stop().await;
        assert_eq!((summary.succeeded, summary.reclaimed, summary.lease_lost), (5, 0, 0));
    }
    assert_eq!(fixture.started.load(Ordering::SeqCst), 10);
    assert!(fixture.rows().await.iter().all(|job| (job.attempt, job.epoch) == (1, 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_after_the_jump_renews_a_lease_that_seems_expired() {
    let fixture = Fixture::with_jobs(3).await;
    let worker = fixture.start(reclaiming_settings().with_heartbeat(10 * MS));
    fixture.wait_until_all_started().await;
    fixture.clock.advance(JUMP);
    let now = fixture.clock.now();
    until(async || fixture.rows().await.iter().all(|job| job.lease_until.is_some_and(|until| until > now)))
        .await;
    fixture.may_end.add_permits(fixture.jobs.len());
    until(async || fixture.rows().await.iter().all(|job| job.state == State::Succeeded)).await;
    assert_eq!(worker.stop().await.reclaimed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jobs_of_a_crashed_worker_are_reclaimed_after_their_leases() {
    let fixture = Fixture::with_jobs(3).await;
    let crashed = fixture.start(reclaiming_settings());
    fixture.wait_until_all_started().await;
    crashed.task.abort();
    drop(crashed.task.await.expect_err("the task was aborted"));
    let worker = fixture.start(reclaiming_settings());
    let before = worker.reclaims.count();
    until(async || worker.reclaims.count() >= before + 3).await;
    assert!(fixture.rows().await.iter().all(|job| (job.state, job.epoch) == (State::Running, 1)));
    fixture.clock.advance(JUMP);
    until(async || fixture.rows().await.iter().all(|job| job.state == State::Retrying)).await;
    assert_eq!(worker.stop().await.reclaimed, 3);
}
