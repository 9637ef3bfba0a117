//! Reads the replies of scripts and commands.

use redis::Value;
use redrive_core::{JobId, State, StoreError, Timestamp};
use uuid::Uuid;

/// The error for a reply that is not what the script returns.
pub(crate) fn unexpected(missing: &str) -> StoreError {
    StoreError::Corrupt(format!(
        "a script replied without {missing}: check whether another program writes keys under the prefix of redrive"
    ))
}

pub(crate) fn items(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(unexpected("a list")),
    }
}

/// A list of exactly `N` items.
pub(crate) fn parts<const N: usize>(value: Value) -> Result<[Value; N], StoreError> {
    items(value)?.try_into().map_err(|_| unexpected("all its parts"))
}

pub(crate) fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Int(n) => Ok(n.to_string().into_bytes()),
        _ => Err(unexpected("a text")),
    }
}

pub(crate) fn text(value: Value) -> Result<String, StoreError> {
    String::from_utf8(bytes(value)?).map_err(|_| unexpected("a text"))
}

pub(crate) fn texts(value: Value) -> Result<Vec<String>, StoreError> {
    items(value)?.into_iter().map(text).collect()
}

/// A list of 0 and 1.
pub(crate) fn flags(value: Value) -> Result<Vec<bool>, StoreError> {
    Ok(items(value)?.into_iter().map(|flag| flag == Value::Int(1)).collect())
}

pub(crate) fn number<T: std::str::FromStr>(value: Value) -> Result<T, StoreError> {
    text(value)?.parse().map_err(|_| unexpected("a number"))
}

pub(crate) fn timestamp(value: Value) -> Result<Timestamp, StoreError> {
    score(&text(value)?)
}

/// A time from a score, which a sorted set may print with an exponent.
pub(crate) fn score(text: &str) -> Result<Timestamp, StoreError> {
    let exact = text.parse::<i64>().ok();
    let ms =
        exact.or_else(|| text.parse::<f64>().ok().map(|ms| ms as i64)).ok_or_else(|| unexpected("a time"))?;
    Ok(Timestamp::from_ms(ms))
}

pub(crate) fn id(text: &str) -> Result<JobId, StoreError> {
    Uuid::try_parse(text).map(JobId).map_err(|_| unexpected("an id"))
}

/// An id, or `None` for an empty text.
pub(crate) fn optional_id(value: Value) -> Result<Option<JobId>, StoreError> {
    let text = text(value)?;
    if text.is_empty() { Ok(None) } else { id(&text).map(Some) }
}

pub(crate) fn state(code: &str) -> Result<State, StoreError> {
    code.parse().ok().and_then(State::from_code).ok_or_else(|| unexpected("a state"))
}

/// A hash as a flat list, in either version of the protocol.
pub(crate) fn flatten_map(value: Value) -> Value {
    match value {
        Value::Map(pairs) => {
            Value::Array(pairs.into_iter().flat_map(|(name, value)| [name, value]).collect())
        }
        other => other,
    }
}

/// A set as a list, in either version of the protocol.
pub(crate) fn set_to_list(value: Value) -> Value {
    match value {
        Value::Set(items) => Value::Array(items),
        other => other,
    }
}
