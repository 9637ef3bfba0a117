//! What SQLite's errors mean to a caller.

use redrive_core::StoreError;
use rusqlite::ErrorCode;

/// Sorts an error by what the caller can do about it.
pub fn sort(error: rusqlite::Error) -> StoreError {
    // A value that is not of its column's sort was not written by this store.
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
            "{error}; restore a backup, or recover what is left with the .recover command of the sqlite3 shell"
        )),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::Refused(
            "the database file or its folder cannot be written; make both writable for this user".to_owned(),
        ),
        Some(ErrorCode::CannotOpen) => StoreError::Refused(format!("the database cannot be opened: {error}")),
        _ => StoreError::Failed(Box::new(error)),
    }
}

/// The error for work handed to a store whose writer has ended.
pub(crate) fn closed() -> StoreError {
    StoreError::Failed("the store is closed".into())
}

/// Sorts the error inside a result.
pub(crate) trait Sorted<T> {
    /// The result with its error sorted.
    fn sorted(self) -> Result<T, StoreError>;
}

impl<T> Sorted<T> for rusqlite::Result<T> {
    fn sorted(self) -> Result<T, StoreError> {
        self.map_err(sort)
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn a_database_that_cannot_be_written_says_what_to_do() {
        let conn = Connection::open_in_memory().unwrap();
        conn.pragma_update(None, "query_only", true).unwrap();
        let error = conn.execute_batch("CREATE TABLE t (x)").sorted().unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
        assert!(error.to_string().contains("make both writable"), "{error}");
    }

    #[test]
    fn only_a_lock_or_a_failing_disk_may_pass() {
        let error = |code| sort(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        for code in [rusqlite::ffi::SQLITE_BUSY, rusqlite::ffi::SQLITE_LOCKED, rusqlite::ffi::SQLITE_IOERR] {
            assert!(error(code).may_pass(), "{code}");
        }
        for code in
            [rusqlite::ffi::SQLITE_FULL, rusqlite::ffi::SQLITE_CORRUPT, rusqlite::ffi::SQLITE_CONSTRAINT]
        {
            assert!(!error(code).may_pass(), "{code}");
        }
    }
}
