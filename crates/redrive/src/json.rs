//! Reads and writes values whose serde implementations users wrote. A panic in one is an error like any other.

use std::fmt;

use redrive_core::Panic;
use redrive_core::panics::catch;
use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};

/// Reads a value. `kind` names it if its Deserialize panics.
pub(crate) fn read<T: DeserializeOwned>(
    kind: impl fmt::Display,
    json: &[u8],
) -> Result<T, serde_json::Error> {
    catch_read(kind, json).unwrap_or_else(|panic| Err(serde_json::Error::custom(panic)))
}

/// Reads a value, with a panic apart from other errors.
pub(crate) fn catch_read<T: DeserializeOwned>(
    kind: impl fmt::Display,
    json: &[u8],
) -> Result<Result<T, serde_json::Error>, Panic> {
    catch(format_args!("the Deserialize of a {kind}"), || serde_json::from_slice(json))
}

/// Writes a value, with a panic apart from other errors. `kind` names the value if its Serialize panics.
pub(crate) fn catch_write<T: Serialize + ?Sized>(
    kind: impl fmt::Display,
    value: &T,
) -> Result<Result<Vec<u8>, serde_json::Error>, Panic> {
    catch(format_args!("the Serialize of a {kind}"), || serde_json::to_vec(value))
}
