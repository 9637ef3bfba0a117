//! Converts SQLite's errors into those of the store.

use redrive_core::{Invalid, StoreError};
use rusqlite::ErrorCode;

/// The result of a function inside this store.
pub(crate) type Result<T, E = SqliteError> = std::result::Result<T, E>;

/// An error inside this store. It lets `?` convert the errors of SQLite and of the core alike, and becomes a
/// [`StoreError`] where it leaves the store.
#[derive(Debug)]
pub(crate) struct SqliteError(StoreError);

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self(store_error(error))
    }
}

impl From<StoreError> for SqliteError {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl From<Invalid> for SqliteError {
    fn from(error: Invalid) -> Self {
        Self(StoreError::Invalid(error))
    }
}

impl From<SqliteError> for StoreError {
    fn from(error: SqliteError) -> Self {
        error.0
    }
}

/// Converts an error of SQLite into a [`StoreError`], which says what the caller can do.
pub fn store_error(error: rusqlite::Error) -> StoreError {
    // This store never writes a value whose type does not fit its column.
    if let rusqlite::Error::IntegralValueOutOfRange(..)
    | rusqlite::Error::FromSqlConversionFailure(..)
    | rusqlite::Error::InvalidColumnType(..) = error
    {
        return StoreError::Corrupt(error.to_string());
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy(Box::new(error)),
        Some(ErrorCode::DiskFull) => StoreError::Full(Box::new(error)),
        Some(ErrorCode::SystemIoFailure | ErrorCode::OperationInterrupted) => {
            StoreError::Unavailable(Box::new(error))
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Corrupt(format!(
            "{error}; restore a backup, or recover the readable rows with the .recover command of the sqlite3 shell"
        )),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::Refused(
            "the database file or its folder cannot be written; make both writable for this user".to_owned(),
        ),
        Some(ErrorCode::CannotOpen) => StoreError::Refused(format!("the database cannot be opened: {error}")),
        _ => StoreError::Failed(Box::new(error)),
    }
}

/// The error of a call to a store whose writer has ended.
pub(crate) fn closed() -> StoreError {
    StoreError::Failed("the store is closed".into())
}

/// The error for a value in the file that this store cannot have written.
pub(crate) fn corrupt(problem: impl Into<String>) -> SqliteError {
    SqliteError(StoreError::Corrupt(problem.into()))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn a_database_that_cannot_be_written_says_what_to_do() {
        let conn = Connection::open_in_memory().unwrap();
        conn.pragma_update(None, "query_only", true).unwrap();
        let error = store_error(conn.execute_batch("CREATE TABLE t (x)").unwrap_err());
        assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
        assert!(error.to_string().contains("make both writable"), "{error}");
    }

    #[test]
    fn only_a_lock_or_a_failing_disk_is_temporary() {
        let error = |code| store_error(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        for code in [rusqlite::ffi::SQLITE_BUSY, rusqlite::ffi::SQLITE_LOCKED, rusqlite::ffi::SQLITE_IOERR] {
            assert!(error(code).is_transient(), "{code}");
        }
        for code in
            [rusqlite::ffi::SQLITE_FULL, rusqlite::ffi::SQLITE_CORRUPT, rusqlite::ffi::SQLITE_CONSTRAINT]
        {
            assert!(!error(code).is_transient(), "{code}");
        }
    }
}
