//! Waits until a job has ended and reads its output.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use redrive_core::{Job, JobId, Kind, Reason, State, StoreError};
use tokio::time::{Instant, sleep};

use crate::{Redrive, Task, json};

/// The shortest and the longest time between two reads of the job. The time grows by half after each read.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_millis(500);

impl Redrive {
    /// Waits until a job of `T` has ended, and returns its output. Without [`AwaitResult::timeout`] the wait has no limit. A job
    /// that waits for a retry or for its due time has not ended.
    ///
    /// ```
    /// # use redrive::{Context, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Double { n: u32 }
    /// # impl Task for Double { const KIND: &'static str = "double"; type Output = u32; }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Double { n: 21 }).await?.id();
    /// # let answer = async {
    /// let answer = redrive.result::<Double>(id).timeout(std::time::Duration::from_secs(5)).await?;
    /// assert_eq!(answer, 42);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) };
    /// # let worker = redrive.worker().on(|job: Double, _: Context| async move { Ok(2 * job.n) });
    /// # worker.run_until(async { answer.await.unwrap() }).await?;
    /// # Ok(()) }
    /// ```
    pub fn result<T: Task>(&self, id: JobId) -> AwaitResult<T> {
        AwaitResult { redrive: self.clone(), id, timeout: None, task: PhantomData }
    }

    /// Reads the output of a job of `T`. Returns none while the job has not ended.
    ///
    /// ```
    /// # use redrive::{Redrive, ResultError, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] #[task(output = u32)] struct Double { n: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Double { n: 21 }).await?.id();
    /// assert_eq!(redrive.output::<Double>(id).await?, None);
    /// redrive.cancel(id).await?;
    /// assert!(matches!(redrive.output::<Double>(id).await, Err(ResultError::Cancelled)));
    /// # Ok(()) }
    /// ```
    pub async fn output<T: Task>(&self, id: JobId) -> Result<Option<T::Output>, ResultError> {
        let job = self.backend().get(vec![id]).await?.pop().flatten().ok_or(ResultError::NotFound(id))?;
        if job.kind.as_str() != T::KIND {
            return Err(ResultError::WrongKind { kind: job.kind, expected: T::KIND });
        }
        match job.state {
            State::Pending | State::Retrying | State::Running | State::Waiting => Ok(None),
            State::Succeeded => read::<T>(&job).map(Some),
            State::Dead => Err(ResultError::Dead {
                reason: job.reason.unwrap_or(Reason::NotRetryable),
                last_error: job.last_error,
            }),
            State::Cancelled => Err(ResultError::Cancelled),
        }
    }
}

/// A wait for the end of a job. Await it, or set a timeout first. See [`Redrive::result`].
#[must_use = "the wait begins only when this is awaited"]
#[derive(Debug)]
pub struct AwaitResult<T> {
    redrive: Redrive,
    id: JobId,
    timeout: Option<Duration>,
    task: PhantomData<fn() -> T>,
}

impl<T: Task> AwaitResult<T> {
    /// Stops waiting after `timeout`, with [`ResultError::TimedOut`]. The job continues.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    async fn wait(self) -> Result<T::Output, ResultError> {
        let deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut poll = POLL_MIN;
        loop {
            if let Some(output) = self.redrive.output::<T>(self.id).await? {
                return Ok(output);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(ResultError::TimedOut);
            }
            sleep(poll.min(left.unwrap_or(Duration::MAX))).await;
            poll = (poll * 3 / 2).min(POLL_MAX);
        }
    }
}

impl<T: Task> IntoFuture for AwaitResult<T> {
    type Output = Result<T::Output, ResultError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.wait())
    }
}

/// Why a job has no output.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// The job is dead. [`Redrive::redrive_job`] gives it a new run.
    #[error("the job is dead: {reason}, {}", last_error.as_deref().unwrap_or("without an error"))]
    Dead {
        /// Why it is dead.
        reason: Reason,
        /// The error of its last failed attempt.
        last_error: Option<String>,
    },
    /// The job was cancelled.
    #[error("the job was cancelled")]
    Cancelled,
    /// No job has this id. It may have been removed at the end of its retention.
    #[error("there is no job {0}; it may have been removed at the end of its retention")]
    NotFound(JobId),
    /// The job is of another kind than `T`.
    #[error("the job is a {kind}, not a {expected}; use the task type of {kind}")]
    WrongKind {
        /// The kind of the job.
        kind: Kind,
        /// The kind of `T`.
        expected: &'static str,
    },
    /// The job succeeded, but its output does not have the type that the task returns now.
    #[error(
        "the job succeeded, but its output cannot be read as the output of a {kind}; read it from Job::output"
    )]
    Unreadable {
        /// The kind of the job.
        kind: &'static str,
        /// The error of the deserializer.
        source: serde_json::Error,
    },
    /// The job has not ended within the timeout. It continues.
    #[error("the job has not ended within the timeout; it continues")]
    TimedOut,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn read<T: Task>(job: &Job) -> Result<T::Output, ResultError> {
    let output = job.output.as_deref().unwrap_or(b"null");
    let read = json::read(format_args!("{} output", T::KIND), output);
    read.map_err(|source| ResultError::Unreadable { kind: T::KIND, source })
}
