//! Maps errors of the Redis client to what a caller can do about them.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use redrive_core::StoreError;

/// The error of the store for an error of the client. Both types belong to other crates, so this cannot be a `From`.
pub(crate) fn store_error(error: RedisError) -> StoreError {
    let code = error.code().unwrap_or_default().to_owned();
    // The server refuses writes because its memory, or the disk under its append-only file, is full.
    if code == "OOM" || code == "MISCONF" {
        return StoreError::Full(Box::new(error));
    }
    if matches!(code.as_str(), "WRONGPASS" | "NOAUTH" | "NOPERM")
        || error.kind() == ErrorKind::AuthenticationFailed
    {
        return StoreError::Refused(format!(
            "the server refuses the login: {error}; check the user and password in the address"
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
