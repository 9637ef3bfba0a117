//! Sorts the client's errors by what a caller can do about them.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use redrive_core::StoreError;

/// Turns a result of the client's into one of the store's.
pub(crate) trait Sorted<T> {
    fn sorted(self) -> Result<T, StoreError>;
}

impl<T> Sorted<T> for Result<T, RedisError> {
    fn sorted(self) -> Result<T, StoreError> {
        self.map_err(sort)
    }
}

fn sort(error: RedisError) -> StoreError {
    let code = error.code().unwrap_or_default().to_owned();
    // Writes are refused for want of memory, or of disk space for the log.
    if code == "OOM" || code == "MISCONF" {
        return StoreError::Full(Box::new(error));
    }
    if matches!(code.as_str(), "WRONGPASS" | "NOAUTH" | "NOPERM")
        || error.kind() == ErrorKind::AuthenticationFailed
    {
        return StoreError::Refused(format!(
            "the server refuses the login: {error}; see the user and password in the address"
        ));
    }
    match error.kind() {
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => StoreError::Unavailable(Box::new(error)),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::ReadOnly,
        ) => StoreError::Unavailable(Box::new(error)),
        _ if matches!(code.as_str(), "BUSY" | "NOREPLICAS" | "UNKILLABLE") => {
            StoreError::Unavailable(Box::new(error))
        }
        _ => StoreError::Failed(Box::new(error)),
    }
}
