//! Waits for a job's end and reads what it came to.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use redrive_core::{Job, JobId, Kind, Reason, State, StoreError};
use tokio::time::{Instant, sleep};

use crate::{Redrive, Task, json};

/// The first wait between two looks at a job, and the longest: each is half as long again as the one before.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LAST: Duration = Duration::from_millis(500);

impl Redrive {
    /// Waits until a job of `T` has ended, and returns its output. Without [`Waiting::timeout`] it waits for as long as that
    /// takes; a job that waits for a retry or for its time has not ended.
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
    pub fn result<T: Task>(&self, id: JobId) -> Waiting<T> {
        Waiting { redrive: self.clone(), id, timeout: None, task: PhantomData }
    }

    /// The output of a job of `T` if it has succeeded, and none while it has not ended.
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
            return Err(ResultError::OtherKind { kind: job.kind, asked: T::KIND });
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

/// A wait for the end of a job; await it, or give it a timeout first.
#[must_use = "nothing is waited for until this is awaited"]
#[derive(Debug)]
pub struct Waiting<T> {
    redrive: Redrive,
    id: JobId,
    timeout: Option<Duration>,
    task: PhantomData<fn() -> T>,
}

impl<T: Task> Waiting<T> {
    /// Gives up after `timeout`, with [`ResultError::TimedOut`]. The job goes on.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    async fn wait(self) -> Result<T::Output, ResultError> {
        let deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut rest = LOOK_FIRST;
        loop {
            if let Some(output) = self.redrive.output::<T>(self.id).await? {
                return Ok(output);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(ResultError::TimedOut);
            }
            sleep(rest.min(left.unwrap_or(Duration::MAX))).await;
            rest = (rest * 3 / 2).min(LOOK_LAST);
        }
    }
}

impl<T: Task> IntoFuture for Waiting<T> {
    type Output = Result<T::Output, ResultError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.wait())
    }
}

/// Why a job has no output to give.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// It is dead; it may be given a fresh run with [`Redrive::retry_dead`].
    #[error("the job is dead: {reason}, {}", last_error.as_deref().unwrap_or("without an error"))]
    Dead {
        /// Why.
        reason: Reason,
        /// The last failure.
        last_error: Option<String>,
    },
    /// It was ended by request.
    #[error("the job was cancelled")]
    Cancelled,
    /// There is none: it never was, or it was removed at the end of its retention.
    #[error("there is no job {0}; it may have been removed at the end of its retention")]
    NotFound(JobId),
    /// It is of another kind.
    #[error("the job is a {kind}, not a {asked}; ask for its own task")]
    OtherKind {
        /// What it is.
        kind: Kind,
        /// What was asked for.
        asked: &'static str,
    },
    /// It succeeded, and its output is not what the task now returns.
    #[error("the job succeeded, but its output does not read as that of a {kind}; see Job::output")]
    Unreadable {
        /// What it is.
        kind: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// It has not ended in time, and goes on.
    #[error("the job has not ended within the timeout; it goes on")]
    TimedOut,
    /// The store could not say.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn read<T: Task>(job: &Job) -> Result<T::Output, ResultError> {
    let output = job.output.as_deref().unwrap_or(b"null");
    let read = json::read(format_args!("{} output", T::KIND), output);
    read.map_err(|source| ResultError::Unreadable { kind: T::KIND, source })
}
