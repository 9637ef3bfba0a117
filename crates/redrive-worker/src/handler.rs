//! What a user writes: a handler, and what it gets to see of its attempt.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::store::{Backend, Settled, Settlement, StoreError};
use redrive_core::{Job, NewJob, Outcome, Timestamp, Verdict};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::engine::StoreTime;
use crate::hold::lock;

/// Runs attempts of one kind of job. An async function or closure from [`Context`] to [`Outcome`] is one.
///
/// An attempt may be dropped at any `await`: on a timeout, a cancel, a lost lease or a shutdown. It may also run again
/// although it had succeeded, after a crash before its settlement: what it does outside should bear a repeat.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Makes one attempt. A panic counts as a failure.
    async fn run(&self, cx: Context) -> Outcome;

    /// What attempts have in common that take about as long: their kind, unless a handler knows better.
    fn estimate_key<'a>(&self, job: &'a Job) -> Cow<'a, str> {
        Cow::Borrowed(job.kind.as_str())
    }

    /// Jobs to enqueue with the settlement that ends a job, well or dead, after a crash too.
    fn follow_ups(&self, _job: &Job, _ending: &Ending<'_>) -> Vec<NewJob> {
        Vec::new()
    }

    /// Settles jobs of this kind in place of the store, for a handler whose own writes belong to their end.
    fn settler(&self) -> Option<&dyn Settler> {
        None
    }
}

/// Settles jobs together with writes of its own.
#[async_trait]
pub trait Settler: Send + Sync {
    /// Does what [`redrive_core::Store::settle`] does, in a transaction with what belongs to it: all of it is there or
    /// nothing. `jobs` stand beside their settlements, as they were claimed.
    ///
    /// An error that may pass is retried by the storage policy, and after that every few seconds for as long as the lease is
    /// held; a full store is waited for as well. After any other error, or a panic, the batch is split until the job that
    /// fails is alone. Then:
    ///
    /// - A job that was to succeed has a failed attempt instead, with the error as its evidence. Its policy decides whether
    ///   another attempt follows.
    /// - A job that was to end as dead or cancelled ends so through the store, without this settler. Its last error says so.
    ///
    /// A job never succeeds without its settler, and one whose settler always fails is dead after its last attempt.
    async fn settle(&self, jobs: &[Arc<Job>], settlements: &[Settlement])
    -> Result<Vec<Settled>, StoreError>;
}

/// How a job ends.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// What the last attempt came to.
    pub outcome: &'a Outcome,
    /// What was decided: [`Verdict::Complete`] or [`Verdict::DeadLetter`].
    pub verdict: &'a Verdict,
    /// The evidence of the last attempt, if it left any.
    pub note: Option<&'a Note>,
}

/// Evidence that an attempt leaves beside its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Note {
    /// For the attempt log, as JSON.
    pub detail: Option<String>,
    /// With which number the other side answered.
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

/// What an attempt gets to see.
#[derive(Clone)]
pub struct Context {
    /// The job as it was claimed.
    pub job: Arc<Job>,
    /// How long this attempt may take, after which it is dropped; none is without end.
    pub timeout: Option<Duration>,
    pub(crate) stop: CancellationToken,
    pub(crate) note: Arc<Mutex<Option<Note>>>,
    /// The store, asked again by the storage policy, and its time as of the claim; none without a worker.
    pub(crate) store: Option<(Arc<dyn Backend>, StoreTime)>,
}

impl Context {
    /// A context without a worker, to try a handler by itself.
    pub fn detached(job: Job) -> Self {
        Self {
            timeout: job.timeout,
            job: Arc::new(job),
            stop: CancellationToken::new(),
            note: Arc::default(),
            store: None,
        }
    }

    /// The worker's store, whose passing failures are retried by the storage policy; none without a worker.
    pub fn store(&self) -> Option<&Arc<dyn Backend>> {
        self.store.as_ref().map(|(store, _)| store)
    }

    /// The store's time, as far as the worker knows it; none without a worker.
    pub fn now(&self) -> Option<Timestamp> {
        self.store.as_ref().map(|(_, claimed)| claimed.at(Instant::now()))
    }

    /// Leaves evidence. The last note counts, and it stays when the attempt is dropped: on a timeout the log says how far
    /// it had come.
    pub fn note(&self, note: Note) {
        *lock(&self.note) = Some(note);
    }

    /// Waits until the attempt is aborted. The handler's own future is dropped then: this is for what it has started
    /// elsewhere, such as a task or a blocking call.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.stop.cancelled()
    }

    /// Whether the attempt was aborted: someone asked for its end, the lease is lost, or the worker shuts down. For
    /// blocking code to look at now and then, and for a destructor to tell an abort from a timeout.
    pub fn is_cancelled(&self) -> bool {
        self.stop.is_cancelled()
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
