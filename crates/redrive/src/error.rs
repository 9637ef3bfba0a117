//! What goes wrong around jobs, and what a handler may say about one.

use std::fmt;
use std::time::Duration;

use redrive_core::{Failure, Fault, Invalid, Outcome, Panic, StoreError};

use crate::{BatchConflict, Conflict};

/// Why a call did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store could not do it.
    #[error(transparent)]
    Store(StoreError),
    /// A value is not legal.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The worker could not work.
    #[error(transparent)]
    Worker(#[from] redrive_worker::WorkerError),
    /// The payload cannot be written as JSON.
    #[error("the payload of a {kind} cannot be written as JSON")]
    Payload {
        /// The task's kind.
        kind: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// The idempotency key belongs to a job with a different task. The task was not enqueued.
    ///
    /// In a transaction nothing else is undone: whoever returns the error rolls back, and whoever handles it may go on.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// Some tasks of a batch have keys that belong to different tasks. All other tasks were enqueued.
    #[error(transparent)]
    BatchConflict(#[from] BatchConflict),
    /// A middleware refused the job; see [`crate::Redrive::with_enqueue`].
    #[error("the job was refused: {0}")]
    Refused(String),
    /// Code of the caller panicked: a closure passed to a transaction, an enqueue middleware, a serializer. Nothing that
    /// it did in a transaction is kept.
    #[error(transparent)]
    Panicked(#[from] Panic),
    /// A large payload could not be put into the object store.
    #[cfg(feature = "bodies")]
    #[error("the payload is too large for a row, and could not be put into the object store")]
    Body(#[from] redrive_bodies::PutError),
    /// A move cannot be made, or not so; the message says what to do.
    #[error("{0}")]
    Move(String),
    /// The address names no store that this build knows.
    #[error("{0}")]
    Address(String),
}

impl Error {
    /// The refusal of a job, with what its caller should read.
    pub fn refused(why: impl fmt::Display) -> Self {
        Self::Refused(why.to_string())
    }
}

/// A store reports a panic of the caller's closure as its own failure.
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

/// What went wrong in a transaction on the store's own file; whether it may pass is told apart.
#[cfg(feature = "sqlite")]
impl From<redrive_store_sqlite::rusqlite::Error> for Error {
    fn from(error: redrive_store_sqlite::rusqlite::Error) -> Self {
        Self::Store(redrive_store_sqlite::sort(error))
    }
}

/// What went wrong in a transaction on the store's own database; whether it may pass is told apart.
#[cfg(feature = "postgres")]
impl From<redrive_store_postgres::tokio_postgres::Error> for Error {
    fn from(error: redrive_store_postgres::tokio_postgres::Error) -> Self {
        Self::Store(redrive_store_postgres::sort(error))
    }
}

/// How an attempt ended that did not succeed.
///
/// `?` turns any error into a failure that is retried: every `std::error::Error` that is `Send + Sync + 'static`,
/// `anyhow::Error`, `Box<dyn Error + Send + Sync>`, and texts. The job keeps the error's text with all its causes. An error that
/// borrows, for example that of a poisoned lock, needs a `map_err(JobError::fail)`.
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
    /// Failed; another attempt may succeed. The text is that of `{error:#}`, which for `anyhow::Error` has all causes.
    pub fn fail(error: impl fmt::Display) -> Self {
        Self(Outcome::fail(format_args!("{error:#}")))
    }

    /// Failed, and no further attempt can help: dead at once. The text is that of `{error:#}`, which for `anyhow::Error` has
    /// all causes.
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

    /// Failed, and the other side asked to be left alone for `wait`: never retried earlier.
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

    /// Nothing failed; run again after `wait`. Costs no attempt.
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

    /// Ended by request.
    pub fn cancelled() -> Self {
        Self(Outcome::Cancelled)
    }

    /// The same error once more.
    pub(crate) fn copy(&self) -> Self {
        Self(self.0.clone())
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.error().unwrap_or(self.0.name()))
    }
}

// A bound on `std::error::Error` would leave out `anyhow::Error` and boxed errors, which do not implement it. This one covers them,
// and does not overlap with `From<JobError> for JobError` as long as `JobError` is no `std::error::Error`.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for JobError {
    fn from(error: E) -> Self {
        Self(Outcome::Fail(Failure::new(Fault::Error, chain(&*error.into()))))
    }
}

/// An error with its causes, since only its text is kept.
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

    /// The outcome that `?` makes of an error.
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
            assert_eq!(outcome, Outcome::Fail(Failure::new(Fault::Error, text)));
        }
    }

    #[test]
    fn the_question_mark_passes_a_job_error_on() {
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
