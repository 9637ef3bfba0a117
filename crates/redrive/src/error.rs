//! What goes wrong around jobs, and what a handler may say about one.

use std::fmt;
use std::time::Duration;

use redrive_core::{Failure, Fault, Invalid, Outcome, Panic, StoreError};

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

/// How an attempt ended that did not succeed. Any error becomes a failure that is retried, so that `?` works.
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
    /// Failed; another attempt may succeed.
    pub fn fail(error: impl fmt::Display) -> Self {
        Self(Outcome::fail(error))
    }

    /// Failed, and no further attempt can help: dead at once.
    pub fn reject(error: impl fmt::Display) -> Self {
        Self(Outcome::reject(error))
    }

    /// Failed, and the other side asked to be left alone for `wait`: never retried earlier.
    pub fn retry_after(error: impl fmt::Display, wait: Duration) -> Self {
        Self(Outcome::retry_after(error, wait))
    }

    /// Nothing failed; run again after `wait`. Costs no attempt.
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

impl<E: std::error::Error> From<E> for JobError {
    fn from(error: E) -> Self {
        Self(Outcome::Fail(Failure::new(Fault::Error, chain(&error))))
    }
}

/// An error with its causes, since only its text is kept.
fn chain(error: &dyn std::error::Error) -> String {
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

    #[test]
    fn an_error_is_kept_with_its_causes() {
        let error = Error::Payload { kind: "k", source: serde_json::from_str::<u8>("x").unwrap_err() };
        let JobError(outcome) = JobError::from(error);
        let text = outcome.error().unwrap().to_owned();
        assert!(text.starts_with("the payload of a k cannot be written as JSON: expected value"), "{text}");
    }
}
