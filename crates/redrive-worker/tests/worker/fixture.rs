//! A store with a policy, and workers on it. All time comes from tokio's clock.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::Store;
use redrive_core::{
    Attempt, Clock, Job, JobId, Kind, NewJob, Policy, PolicyRef, State, StoreError, Timestamp, catalog,
};
use redrive_testkit::ModelStore;
use redrive_testkit::clock::START;
use redrive_worker::{Handler, HeartbeatSource, Settings, Summary, Worker, WorkerError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use crate::faulty_store::FaultyStore;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const S: Duration = Duration::from_secs(1);

/// A store's clock that follows tokio's clock, which a test may have paused.
#[derive(Debug)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        START.after(Duration::from_millis(self.0.elapsed().as_millis() as u64))
    }
}

pub(crate) struct Fixture {
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) policy: PolicyRef,
}

impl Fixture {
    /// Creates an empty store with a policy of four attempts, 1, 4 and 9 s apart.
    pub(crate) async fn new() -> Self {
        Self::with_policy(&presets::quadratic()).await
    }

    pub(crate) async fn with_policy(policy: &Policy) -> Self {
        let model = ModelStore::new(TokioClock(Instant::now()));
        let policy = catalog::put_inline(&model, policy, redrive_core::Timestamp::default()).await.unwrap();
        Self { store: Arc::new(FaultyStore::new(model)), policy }
    }

    /// Returns a job with the id `n`, which is not enqueued yet.
    pub(crate) fn new_job(&self, n: u128) -> NewJob {
        NewJob::new(id(n), kind("test"), self.policy.clone(), n.to_le_bytes().to_vec())
    }

    pub(crate) async fn enqueue(&self, jobs: impl IntoIterator<Item = NewJob>) {
        self.store.model.enqueue(jobs.into_iter().collect()).await.unwrap();
    }

    /// Enqueues jobs with the ids from 1 to `count`.
    pub(crate) async fn enqueue_many(&self, count: u128) {
        self.enqueue((1..=count).map(|n| self.new_job(n))).await;
    }

    pub(crate) fn job(&self, n: u128) -> Job {
        self.store.model.inspect(|model| model.job(id(n)).cloned()).unwrap()
    }

    pub(crate) fn state(&self, n: u128) -> State {
        self.job(n).state
    }

    pub(crate) fn log(&self, n: u128) -> Vec<Attempt> {
        self.store.model.inspect(|model| model.log(id(n)).cloned().collect())
    }

    pub(crate) fn outcomes(&self, n: u128) -> Vec<String> {
        self.log(n).into_iter().map(|attempt| attempt.entry.outcome).collect()
    }

    pub(crate) fn count_in_state(&self, state: State) -> usize {
        self.store.model.inspect(|model| model.jobs().filter(|job| job.state == state).count())
    }

    /// Waits until the job `n` is in `state`.
    pub(crate) async fn wait_for_state(&self, n: u128, state: State) {
        self.wait_until(|fixture| fixture.state(n) == state).await;
    }

    /// Waits until `holds` returns true, for at most an hour.
    pub(crate) async fn wait_until(&self, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + 3_600 * S;
        while !holds(self) {
            assert!(Instant::now() < deadline, "the condition did not hold within an hour");
            tokio::time::sleep(MS).await;
        }
    }

    /// Settings for a paused clock.
    pub(crate) fn settings() -> Settings {
        Settings::default().with_heartbeat_source(HeartbeatSource::Inline).with_seed(1)
    }

    pub(crate) fn worker(&self, settings: Settings, handler: impl Handler) -> Worker {
        let worker = Worker::new(self.store.clone(), settings).unwrap();
        worker.on(kind("test"), handler)
    }

    pub(crate) fn start(&self, handler: impl Handler) -> RunningWorker {
        self.start_with(Self::settings(), handler)
    }

    pub(crate) fn start_with(&self, settings: Settings, handler: impl Handler) -> RunningWorker {
        self.run(self.worker(settings, handler))
    }

    pub(crate) fn run(&self, worker: Worker) -> RunningWorker {
        let (shutdown, requested) = oneshot::channel::<()>();
        let run = worker.run_until(async {
            let _ = requested.await;
        });
        RunningWorker { shutdown, task: tokio::spawn(run) }
    }
}

/// A running worker. It shuts down when this value is dropped.
pub(crate) struct RunningWorker {
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<Result<Summary, WorkerError>>,
}

impl RunningWorker {
    /// Shuts the worker down and returns its summary.
    pub(crate) async fn stop(self) -> Summary {
        drop(self.shutdown);
        self.task.await.unwrap().unwrap()
    }

    /// Drops the worker's future, which has the effect of a crash.
    pub(crate) async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

pub(crate) fn id(n: u128) -> JobId {
    JobId(Uuid::from_u128(n))
}

pub(crate) fn kind(name: &str) -> Kind {
    Kind::new(name).unwrap()
}

pub(crate) fn unavailable() -> StoreError {
    StoreError::Unavailable("connection reset".into())
}
