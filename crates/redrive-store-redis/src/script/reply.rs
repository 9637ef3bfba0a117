//! Reads what scripts answer.

use redis::Value;
use redrive_core::{JobId, State, StoreError, Timestamp};
use uuid::Uuid;

/// An answer that is not what the script says it gives.
pub(crate) fn odd(what: &str) -> StoreError {
    StoreError::Corrupt(format!(
        "a script answered without {what}: is another program writing under redrive's keys?"
    ))
}

pub(crate) fn items(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(odd("a list")),
    }
}

/// A list of so many things.
pub(crate) fn parts<const N: usize>(value: Value) -> Result<[Value; N], StoreError> {
    items(value)?.try_into().map_err(|_| odd("all its parts"))
}

pub(crate) fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Int(n) => Ok(n.to_string().into_bytes()),
        _ => Err(odd("a text")),
    }
}

pub(crate) fn text(value: Value) -> Result<String, StoreError> {
    String::from_utf8(bytes(value)?).map_err(|_| odd("a text"))
}

pub(crate) fn texts(value: Value) -> Result<Vec<String>, StoreError> {
    items(value)?.into_iter().map(text).collect()
}

pub(crate) fn number<T: std::str::FromStr>(value: Value) -> Result<T, StoreError> {
    text(value)?.parse().map_err(|_| odd("a number"))
}

pub(crate) fn instant(value: Value) -> Result<Timestamp, StoreError> {
    score(&text(value)?)
}

/// An instant from a score, which a sorted set may write with an exponent.
pub(crate) fn score(text: &str) -> Result<Timestamp, StoreError> {
    let exact = text.parse::<i64>().ok();
    let ms =
        exact.or_else(|| text.parse::<f64>().ok().map(|ms| ms as i64)).ok_or_else(|| odd("an instant"))?;
    Ok(Timestamp::from_ms(ms))
}

pub(crate) fn id(text: &str) -> Result<JobId, StoreError> {
    Uuid::try_parse(text).map(JobId).map_err(|_| odd("an id"))
}

pub(crate) fn state(code: &str) -> Result<State, StoreError> {
    code.parse().ok().and_then(State::from_code).ok_or_else(|| odd("a state"))
}

/// A hash as a flat list, whichever version of the protocol is spoken.
pub(crate) fn flat(value: Value) -> Value {
    match value {
        Value::Map(pairs) => {
            Value::Array(pairs.into_iter().flat_map(|(name, value)| [name, value]).collect())
        }
        other => other,
    }
}

/// A set as a list, whichever version of the protocol is spoken.
pub(crate) fn list(value: Value) -> Value {
    match value {
        Value::Set(items) => Value::Array(items),
        other => other,
    }
}
