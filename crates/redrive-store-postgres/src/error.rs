//! Converts errors of Postgres into errors that say what the caller can do.

use redrive_core::{Invalid, StoreError};
use tokio_postgres::error::SqlState;

/// The error of this crate's own functions: a [`StoreError`] into which `?` also converts errors of Postgres.
#[derive(Debug)]
pub(crate) struct Error(pub(crate) StoreError);

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Self(store_error(error))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl From<Invalid> for Error {
    fn from(error: Invalid) -> Self {
        Self(error.into())
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        error.0
    }
}

impl Error {
    /// An error that a retry does not help against.
    pub(crate) fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(StoreError::Failed(cause.into()))
    }

    /// A stored value that this version cannot read.
    pub(crate) fn corrupt(problem: impl Into<String>) -> Self {
        Self(StoreError::Corrupt(problem.into()))
    }

    /// The error for a statement that returned no row although it always returns one.
    pub(crate) fn no_row() -> Self {
        Self::failed("a statement returned no row, although it always returns one")
    }

    /// Whether a retry may succeed at once, because another transaction was in the way.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.0, StoreError::Busy(_))
    }

    /// Whether a row with the same key existed.
    pub(crate) fn is_duplicate(&self) -> bool {
        let StoreError::Failed(cause) = &self.0 else { return false };
        let cause = cause.downcast_ref::<tokio_postgres::Error>();
        cause.and_then(tokio_postgres::Error::code) == Some(&SqlState::UNIQUE_VIOLATION)
    }

    /// The same error for another caller. Its cause becomes text, because causes cannot be cloned.
    pub(crate) fn duplicate(&self) -> Self {
        let error = &self.0;
        let cause = || explain(std::error::Error::source(error).unwrap_or(error)).into();
        Self(match error {
            StoreError::Unavailable(_) => StoreError::Unavailable(cause()),
            StoreError::Busy(_) => StoreError::Busy(cause()),
            StoreError::Full(_) => StoreError::Full(cause()),
            StoreError::Refused(text) => StoreError::Refused(text.clone()),
            StoreError::Invalid(invalid) => StoreError::Invalid(invalid.clone()),
            StoreError::Corrupt(text) => StoreError::Corrupt(text.clone()),
            StoreError::Failed(_) => StoreError::Failed(cause()),
        })
    }

    /// The error with its causes, for a log line.
    pub(crate) fn explain(&self) -> String {
        explain(&self.0)
    }
}

/// Converts an error of Postgres into a [`StoreError`], by its code.
pub fn store_error(error: tokio_postgres::Error) -> StoreError {
    let Some(code) = error.code().cloned() else { return without_code(error) };
    let text = || error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    match &code {
        // Another transaction was in the way, or a timeout ran out.
        &SqlState::T_R_DEADLOCK_DETECTED
        | &SqlState::T_R_SERIALIZATION_FAILURE
        | &SqlState::LOCK_NOT_AVAILABLE
        | &SqlState::QUERY_CANCELED => StoreError::Busy(Box::new(error)),
        &SqlState::DISK_FULL => StoreError::Full(Box::new(error)),
        &SqlState::UNDEFINED_TABLE
        | &SqlState::UNDEFINED_COLUMN
        | &SqlState::UNDEFINED_FUNCTION
        | &SqlState::INVALID_SCHEMA_NAME => StoreError::Refused(format!("{}; run `redrive migrate`", text())),
        &SqlState::INSUFFICIENT_PRIVILEGE => StoreError::Refused(format!(
            "{}; grant this role USAGE on the schema redrive, or run `redrive migrate` as the owner of the schema",
            text()
        )),
        &SqlState::INVALID_CATALOG_NAME => {
            StoreError::Refused(format!("{}; create the database first, for example with createdb", text()))
        }
        &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => StoreError::Corrupt(text()),
        // A server that became a standby: writes work again at the new primary, or later.
        &SqlState::READ_ONLY_SQL_TRANSACTION | &SqlState::IO_ERROR => {
            StoreError::Unavailable(Box::new(error))
        }
        other => match &other.code()[..2] {
            // Connection errors, insufficient resources, operator intervention.
            "08" | "53" | "57" => StoreError::Unavailable(Box::new(error)),
            "28" => StoreError::Refused(format!("{}; check the user and password in the address", text())),
            _ => StoreError::Failed(Box::new(error)),
        },
    }
}

/// Converts errors without a code: a connection that broke, or a value of the wrong type in a column.
fn without_code(error: tokio_postgres::Error) -> StoreError {
    let broke = error.is_closed()
        || std::error::Error::source(&error).is_some_and(|source| source.is::<std::io::Error>());
    match error.to_string() {
        text if text.starts_with("error deserializing column") => StoreError::Corrupt(text),
        text if text.starts_with("error performing TLS handshake") => {
            StoreError::Refused(format!("{}; see sslmode in the address", explain(&error)))
        }
        _ if broke => StoreError::Unavailable(Box::new(error)),
        text if text.starts_with("error connecting to server") => StoreError::Unavailable(Box::new(error)),
        _ => StoreError::Failed(Box::new(error)),
    }
}

/// The text of an error with its causes.
pub(crate) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
