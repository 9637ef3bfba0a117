//! Converts payloads, outputs and signals to and from JSON, and catches panics in the serde code of the caller.

use std::fmt;

use redrive_core::Panic;
use redrive_core::panics::catch;
use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};

/// Reads a value. A panic in its Deserialize becomes an error that names `kind`.
pub(crate) fn read<T: DeserializeOwned>(
    kind: impl fmt::Display,
    json: &[u8],
) -> Result<T, serde_json::Error> {
    catch_read(kind, json).unwrap_or_else(|panic| Err(serde_json::Error::custom(panic)))
}

/// Reads a value, and returns a panic in its Deserialize separately from other errors.
pub(crate) fn catch_read<T: DeserializeOwned>(
    kind: impl fmt::Display,
    json: &[u8],
) -> Result<Result<T, serde_json::Error>, Panic> {
    catch(format_args!("the Deserialize of a {kind}"), || serde_json::from_slice(json))
}

/// Writes a value, and returns a panic in its Serialize, which names `kind`, separately from other errors.
pub(crate) fn catch_write<T: Serialize + ?Sized>(
    kind: impl fmt::Display,
    value: &T,
) -> Result<Result<Vec<u8>, serde_json::Error>, Panic> {
    catch(format_args!("the Serialize of a {kind}"), || serde_json::to_vec(value))
}
