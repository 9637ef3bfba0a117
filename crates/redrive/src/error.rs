//! The errors of the library's calls, and the error that a handler returns.

use std::fmt;
use std::time::Duration;

use redrive_core::{Failure, FailureKind, Invalid, Outcome, Panic, StoreError};

use crate::{BatchConflict, Conflict};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// A value is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The worker failed.
    #[error(transparent)]
    Worker(#[from] redrive_worker::WorkerError),
    /// The payload cannot be written as JSON.
    #[error("the payload of a {kind} cannot be written as JSON")]
    Payload {
        /// The kind of the task, or "signal" for the value of a signal.
        kind: &'static str,
        /// The error of the serializer.
        source: serde_json::Error,
    },
    /// The idempotency key belongs to a job with a different task. The task was not enqueued.
    ///
    /// Inside a transaction everything else stays: return the error to roll back, or handle it and continue.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// Some tasks of a batch have keys that belong to different tasks. All other tasks were enqueued.
    #[error(transparent)]
    BatchConflict(#[from] BatchConflict),
    /// An enqueue middleware refused the job. See [`crate::EnqueueMiddleware`].
    #[error("the job was refused: {0}")]
    Refused(String),
    /// Code of the caller panicked: a closure passed to a transaction, an enqueue middleware or a serializer. A
    /// transaction in which it ran was rolled back.
    #[error(transparent)]
    Panicked(#[from] Panic),
    /// A large payload could not be put into the object store.
    #[cfg(feature = "bodies")]
    #[error("the payload is too large for a row, and could not be put into the object store")]
    Body(#[from] redrive_bodies::PutError),
    /// A move between stores is not possible. The message says what to do.
    #[error("{0}")]
    Move(String),
    /// The address does not name a store that this build knows, or the store cannot do what the call needs.
    #[error("{0}")]
    Address(String),
}

impl Error {
    /// Refuses a job, from an enqueue middleware. The caller of the enqueue gets the reason.
    pub fn refused(why: impl fmt::Display) -> Self {
        Self::Refused(why.to_string())
    }
}

/// A store reports a panic in the caller's closure as a failure of its own. It becomes [`Error::Panicked`].
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Failed(cause) => match cause.downcast::<Panic>() {
                Ok(panic) => Self::Panicked(*panic),
                Err(cause) => Self::Store(StoreError::Failed(cause)),
            },
            error => Self::Store(error),
        }
    }
}

/// Lets a closure of [`crate::Redrive::transact`] use `?`. The error says whether a repeat may succeed.
#[cfg(feature = "sqlite")]
impl From<redrive_store_sqlite::rusqlite::Error> for Error {
    fn from(error: redrive_store_sqlite::rusqlite::Error) -> Self {
        Self::Store(redrive_store_sqlite::store_error(error))
    }
}

/// Lets a closure of [`crate::Redrive::transact_postgres`] use `?`. The error says whether a repeat may succeed.
#[cfg(feature = "postgres")]
impl From<redrive_store_postgres::tokio_postgres::Error> for Error {
    fn from(error: redrive_store_postgres::tokio_postgres::Error) -> Self {
        Self::Store(redrive_store_postgres::store_error(error))
    }
}

/// The error of a handler: how its attempt ended if it did not succeed.
///
/// `?` turns any error into a failure that is retried: every `std::error::Error` that is `Send + Sync + 'static`,
/// `anyhow::Error`, `Box<dyn Error + Send + Sync>`, and texts. The job stores the text of the error with all its causes. An error
/// that borrows, for example the error of a poisoned lock, needs a `map_err(JobError::fail)`.
///
/// `JobError` does not implement `std::error::Error`. A function that returns `anyhow::Error` therefore cannot turn a
/// [`JobError::reject`] into an ordinary error with `?`.
///
/// ```
/// use redrive::JobError;
///
/// fn attempt(order: &str) -> Result<u64, JobError> {
///     if order.is_empty() {
///         return Err(JobError::reject("an order needs a number"));
///     }
///     Ok(order.parse()?)
/// }
/// assert!(attempt("seven").is_err());
/// ```
#[derive(Debug)]
pub struct JobError(pub(crate) Outcome);

impl JobError {
    /// The attempt failed. Another attempt may succeed. The job stores the text of `{error:#}`, which for `anyhow::Error` has all
    /// causes.
    pub fn fail(error: impl fmt::Display) -> Self {
        Self(Outcome::fail(format_args!("{error:#}")))
    }

    /// The attempt failed, and no further attempt can help. The job is dead at once. It stores the text of `{error:#}`, which for
    /// `anyhow::Error` has all causes.
    ///
    /// ```
    /// use anyhow::Context as _;
    /// use redrive::JobError;
    ///
    /// fn parse(line: &str) -> anyhow::Result<u64> {
    ///     line.parse().with_context(|| format!("cannot read {line:?}"))
    /// }
    ///
    /// let error = parse("x").map_err(JobError::reject).unwrap_err();
    /// assert_eq!(error.to_string(), r#"cannot read "x": invalid digit found in string"#);
    /// ```
    pub fn reject(error: impl fmt::Display) -> Self {
        Self(Outcome::reject(format_args!("{error:#}")))
    }

    /// The attempt failed, and the next one must not start before `wait` has passed, for example because a server sent
    /// `Retry-After`.
    ///
    /// ```
    /// use redrive::JobError;
    ///
    /// fn call(status: u16) -> Result<(), JobError> {
    ///     match status {
    ///         200 => Ok(()),
    ///         429 => Err(JobError::retry_after("too many requests", std::time::Duration::from_secs(60))),
    ///         _ => Err(JobError::fail(format_args!("answered {status}"))),
    ///     }
    /// }
    /// assert_eq!(call(429).unwrap_err().to_string(), "too many requests");
    /// ```
    pub fn retry_after(error: impl fmt::Display, wait: Duration) -> Self {
        Self(Outcome::retry_after(format_args!("{error:#}"), wait))
    }

    /// Nothing failed. The job runs again after `wait`. This costs no attempt.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use redrive::{Context, JobError};
    /// # struct Export { ready: bool }
    ///
    /// async fn export(job: Export, _cx: Context) -> Result<(), JobError> {
    ///     if !job.ready {
    ///         return Err(JobError::snooze(Duration::from_secs(60)));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn snooze(wait: Duration) -> Self {
        Self(Outcome::Snooze(wait))
    }

    /// The handler stopped because someone cancelled the job. The job ends as cancelled, and no further attempt follows.
    pub fn cancelled() -> Self {
        Self(Outcome::Cancelled)
    }

    pub(crate) fn copy(&self) -> Self {
        Self(self.0.clone())
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.error().unwrap_or(self.0.name()))
    }
}

// `anyhow::Error` and boxed errors do not implement `std::error::Error`, so a bound on that trait would leave them out. This bound
// covers them. It does not overlap with `From<JobError> for JobError`, because `JobError` does not implement `std::error::Error`.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for JobError {
    fn from(error: E) -> Self {
        Self(Outcome::Fail(Failure::new(FailureKind::Error, chain(&*error.into()))))
    }
}

/// The text of an error with all its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    use anyhow::Context as _;

    /// The outcome that `?` turns an error into.
    fn outcome_of<E>(error: E) -> Outcome
    where
        JobError: From<E>,
    {
        let attempt = || -> Result<(), JobError> { Err(error)? };
        attempt().unwrap_err().0
    }

    fn payload_error() -> Error {
        Error::Payload { kind: "k", source: serde_json::from_str::<u8>("x").unwrap_err() }
    }

    #[test]
    fn the_question_mark_keeps_every_error_with_its_causes() {
        let payload = "the payload of a k cannot be written as JSON: expected value at line 1 column 1";
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(payload_error());
        let unavailable = StoreError::Unavailable("connection refused".into());
        let cases = [
            (outcome_of(payload_error()), payload.to_owned()),
            (outcome_of(boxed), payload.to_owned()),
            (outcome_of(anyhow::Error::from(payload_error())), payload.to_owned()),
            (
                outcome_of(Err::<(), _>(payload_error()).context("order 7").unwrap_err()),
                format!("order 7: {payload}"),
            ),
            (outcome_of(anyhow::anyhow!("no more paper")), "no more paper".to_owned()),
            (outcome_of(unavailable), "the store is unavailable for now: connection refused".to_owned()),
            (outcome_of("a text"), "a text".to_owned()),
        ];
        for (outcome, text) in cases {
            assert_eq!(outcome, Outcome::Fail(Failure::new(FailureKind::Error, text)));
        }
    }

    #[test]
    fn the_question_mark_does_not_change_a_job_error() {
        assert_eq!(outcome_of(JobError::reject("no")), Outcome::reject("no"));
        assert_eq!(
            outcome_of(JobError::snooze(Duration::from_secs(1))),
            Outcome::Snooze(Duration::from_secs(1))
        );
    }

    #[test]
    fn an_anyhow_error_is_rejected_with_its_causes() {
        let error = Err::<(), _>(std::fmt::Error).context("order 7").unwrap_err();
        let text = format!("order 7: {}", std::fmt::Error);
        assert_eq!(JobError::reject(error).0, Outcome::reject(text));
    }
}
