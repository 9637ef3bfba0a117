//! What Postgres' errors mean to a caller.

use redrive_core::StoreError;
use tokio_postgres::error::SqlState;

/// Sorts an error by what the caller can do about it.
pub fn sort(error: tokio_postgres::Error) -> StoreError {
    let Some(code) = error.code().cloned() else { return without_code(error) };
    let text = || error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    match &code {
        // Another transaction was in the way, or a limit of time was.
        &SqlState::T_R_DEADLOCK_DETECTED
        | &SqlState::T_R_SERIALIZATION_FAILURE
        | &SqlState::LOCK_NOT_AVAILABLE
        | &SqlState::QUERY_CANCELED => StoreError::Busy(Box::new(error)),
        &SqlState::DISK_FULL => StoreError::Full(Box::new(error)),
        &SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN | &SqlState::INVALID_SCHEMA_NAME => {
            StoreError::Refused(format!("{}; run `redrive migrate`", text()))
        }
        &SqlState::INSUFFICIENT_PRIVILEGE => StoreError::Refused(format!(
            "{}; grant this role the use of the schema redrive, or run `redrive migrate` as its owner",
            text()
        )),
        &SqlState::INVALID_CATALOG_NAME => {
            StoreError::Refused(format!("{}; create it first, with createdb", text()))
        }
        &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => StoreError::Corrupt(text()),
        // A server that was made a standby takes writes again elsewhere or later.
        &SqlState::READ_ONLY_SQL_TRANSACTION | &SqlState::IO_ERROR => {
            StoreError::Unavailable(Box::new(error))
        }
        other => match &other.code()[..2] {
            // Connections, lack of resources, an operator's intervention.
            "08" | "53" | "57" => StoreError::Unavailable(Box::new(error)),
            "28" => StoreError::Refused(format!("{}; check user and password of the address", text())),
            _ => StoreError::Failed(Box::new(error)),
        },
    }
}

/// Errors of this side: a connection that broke, or a value that is not what its column should hold.
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

/// The same error for another caller.
pub(crate) fn again(error: &StoreError) -> StoreError {
    let cause = || explain(std::error::Error::source(error).unwrap_or(error)).into();
    match error {
        StoreError::Unavailable(_) => StoreError::Unavailable(cause()),
        StoreError::Busy(_) => StoreError::Busy(cause()),
        StoreError::Full(_) => StoreError::Full(cause()),
        StoreError::Refused(text) => StoreError::Refused(text.clone()),
        StoreError::Invalid(invalid) => StoreError::Invalid(invalid.clone()),
        StoreError::Corrupt(text) => StoreError::Corrupt(text.clone()),
        StoreError::Failed(_) => StoreError::Failed(cause()),
    }
}

/// The error for a statement that should always answer with a row.
pub(crate) fn nothing() -> StoreError {
    StoreError::Failed("a statement that always answers did not".into())
}

/// An error with its causes.
pub(crate) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Sorts the error inside a result.
pub(crate) trait Sorted<T> {
    /// The result with its error sorted.
    fn sorted(self) -> Result<T, StoreError>;
}

impl<T> Sorted<T> for Result<T, tokio_postgres::Error> {
    fn sorted(self) -> Result<T, StoreError> {
        self.map_err(sort)
    }
}
