//! The interface for users: the handler of a kind of jobs, and the context of an attempt.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::store::{Backend, SettleResult, Settlement, StoreError};
use redrive_core::{Job, NewJob, Outcome, Timestamp, Verdict};
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFuture;

use crate::engine::{StoreTime, lock};
use crate::lease_table::AttemptHandle;

/// Runs attempts of one kind of job. Every async function or closure from [`Context`] to [`Outcome`] is a handler.
///
/// An attempt may be dropped at any `await`: on a timeout, a cancel, a lost lease or a shutdown. A job may also run again after
/// it has succeeded, if the worker crashed before the settlement. Its external effects should therefore be idempotent.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Makes one attempt. A panic counts as a failure.
    async fn run(&self, cx: Context) -> Outcome;

    /// Returns a key for estimates: attempts with the same key take about as long. By default the key is the kind.
    fn estimate_key<'a>(&self, job: &'a Job) -> Cow<'a, str> {
        Cow::Borrowed(job.kind.as_str())
    }

    /// Returns jobs to enqueue in the settlement that ends a job as succeeded or dead, also if the job ends after a crash.
    fn follow_ups(&self, _job: &Job, _end: &JobEnd<'_>) -> Vec<NewJob> {
        Vec::new()
    }

    /// Returns a settler if jobs of this kind must be settled in one transaction with writes of the application.
    fn settler(&self) -> Option<&dyn Settler> {
        None
    }
}

/// Settles jobs in one transaction with writes of the application.
#[async_trait]
pub trait Settler: Send + Sync {
    /// Settles like [`redrive_core::Store::settle`], and writes the application's rows in the same transaction. `jobs` and
    /// `settlements` have the same order; the jobs are as they were claimed.
    ///
    /// A transient error is retried by the storage policy, and after that every few seconds while the lease is held. The same
    /// applies to a full store. After any other error, or a panic, the batch is split until the job that fails is alone. Then:
    ///
    /// - If the job would have succeeded, its attempt fails instead, with this error. Its policy decides whether another
    ///   attempt follows.
    /// - If the job would have ended as dead or cancelled, the store settles it without this settler. Its last error says so.
    ///
    /// A job never succeeds without its settler. A job whose settler always fails is dead after its last attempt.
    async fn settle(
        &self,
        jobs: &[Arc<Job>],
        settlements: &[Settlement],
    ) -> Result<Vec<SettleResult>, StoreError>;
}

/// How a job ends.
#[derive(Debug, Clone, Copy)]
pub struct JobEnd<'a> {
    /// The outcome of the last attempt.
    pub outcome: &'a Outcome,
    /// The decision: [`Verdict::Complete`] or [`Verdict::DeadLetter`].
    pub verdict: &'a Verdict,
    /// The note of the last attempt, if it left one.
    pub note: Option<&'a AttemptNote>,
}

/// What a handler records about its attempt, in addition to the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AttemptNote {
    /// Detail for the attempt log, as JSON.
    pub detail: Option<String>,
    /// The status code with which the target answered.
    pub status: Option<u16>,
}

#[async_trait]
impl<F, Fut> Handler for F
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send,
{
    async fn run(&self, cx: Context) -> Outcome {
        self(cx).await
    }
}

/// The context of an attempt.
#[derive(Clone)]
pub struct Context {
    /// The job as it was claimed.
    pub job: Arc<Job>,
    /// The time after which this attempt is dropped, if it is limited.
    pub timeout: Option<Duration>,
    pub(crate) attempt: Arc<AttemptHandle>,
    /// The retrying store, and the store's time at the claim. None without a worker.
    pub(crate) store: Option<(Arc<dyn Backend>, StoreTime)>,
}

impl Context {
    /// Creates a context without a worker, to test a handler on its own.
    pub fn detached(job: Job) -> Self {
        Self { timeout: job.timeout, job: Arc::new(job), attempt: Arc::default(), store: None }
    }

    /// The worker's store, which retries transient failures by the storage policy. None without a worker.
    pub fn store(&self) -> Option<&Arc<dyn Backend>> {
        self.store.as_ref().map(|(store, _)| store)
    }

    /// The store's time, derived from its time at the claim. None without a worker.
    pub fn now(&self) -> Option<Timestamp> {
        self.store.as_ref().map(|(_, claimed)| claimed.at(Instant::now()))
    }

    /// Records a note about this attempt. It replaces the previous note. It is kept when the attempt is dropped, so after a
    /// timeout the attempt log shows how far the attempt got.
    pub fn note(&self, note: AttemptNote) {
        *lock(&self.attempt.note) = Some(note);
    }

    /// Waits until the attempt is aborted. The handler's own future is dropped at that moment, so this is for tasks and blocking
    /// calls that the handler has started.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.attempt.stop.cancelled()
    }

    /// Whether the attempt was aborted: the job was cancelled, the lease is lost, or the worker shuts down. Blocking code can
    /// check it at intervals, and a destructor can use it to distinguish an abort from a timeout.
    pub fn is_cancelled(&self) -> bool {
        self.attempt.stop.is_cancelled()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("job", &self.job.id)
            .field("attempt", &self.job.attempt)
            .finish_non_exhaustive()
    }
}
