//! Queues and their limits.

use std::collections::BTreeMap;

use redrive_core::queue_limits::{self, Limits, Rate};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::page::Paged;

/// A queue.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Its name.
    pub name: String,
    /// Whether it is paused: no job of it is claimed.
    pub paused: bool,
    /// Its limits; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<QueueLimits>,
    /// Jobs by state.
    pub jobs: BTreeMap<String, u64>,
}

impl QueueStatus {
    /// A queue without jobs or limits.
    pub fn empty(name: &str, paused: bool) -> Self {
        Self { name: name.to_owned(), paused, limits: None, jobs: BTreeMap::new() }
    }
}

/// A page of the queues.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Queues {
    /// The queues, by name.
    pub items: Vec<QueueStatus>,
    /// Send it as `cursor` to get the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// Whether every queue is paused.
    pub all_paused: bool,
}

impl Paged for Queues {
    fn next_cursor(&self) -> Option<&str> {
        self.next_cursor.as_deref()
    }

    fn append(&mut self, next: Self) {
        self.items.extend(next.items);
        self.next_cursor = next.next_cursor;
    }
}

/// The limits of a queue, on all nodes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schema(example = json!({"concurrency": 50, "rate": {"count": 1000, "perMs": 60000}, "perKey": {"concurrency": 2}}))]
pub struct QueueLimits {
    /// The most jobs of the queue that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = "uint32", minimum = 1, maximum = 4294967295u64)]
    pub concurrency: Option<u32>,
    /// The most jobs of the queue that start within an interval.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub rate: Option<QueueRate>,
    /// The limits of each partition key.
    #[serde(deserialize_with = "object")]
    pub per_key: KeyLimits,
}

/// The limits of each partition key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KeyLimits {
    /// The most jobs with one key that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = "uint32", minimum = 1, maximum = 4294967295u64)]
    pub concurrency: Option<u32>,
    /// The most jobs with one key that start within an interval.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub rate: Option<QueueRate>,
}

/// The most starts within any interval of a given length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueRate {
    /// The number of starts.
    #[schema(format = "uint32", minimum = 1, maximum = 4294967295u64)]
    pub count: u32,
    /// The length of the interval; at most a year.
    #[schema(minimum = 1, maximum = 31536000000u64)]
    pub per_ms: u64,
}

/// Reads an object. Serde would also read a list, by position, which the schema does not allow.
fn object<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let object = Map::deserialize(deserializer)?;
    T::deserialize(Value::Object(object)).map_err(D::Error::custom)
}

fn optional_object<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let Some(object) = Option::<Map<String, Value>>::deserialize(deserializer)? else { return Ok(None) };
    T::deserialize(Value::Object(object)).map(Some).map_err(D::Error::custom)
}

impl From<queue_limits::QueueLimits> for QueueLimits {
    fn from(limits: queue_limits::QueueLimits) -> Self {
        let queue_limits::QueueLimits { concurrency, rate, per_key } = limits;
        Self { concurrency, rate: rate.map(Into::into), per_key: per_key.into() }
    }
}

impl From<QueueLimits> for queue_limits::QueueLimits {
    fn from(limits: QueueLimits) -> Self {
        let QueueLimits { concurrency, rate, per_key } = limits;
        Self { concurrency, rate: rate.map(Into::into), per_key: per_key.into() }
    }
}

impl From<Limits> for KeyLimits {
    fn from(limits: Limits) -> Self {
        Self { concurrency: limits.concurrency, rate: limits.rate.map(Into::into) }
    }
}

impl From<KeyLimits> for Limits {
    fn from(limits: KeyLimits) -> Self {
        Self { concurrency: limits.concurrency, rate: limits.rate.map(Into::into) }
    }
}

impl From<Rate> for QueueRate {
    fn from(rate: Rate) -> Self {
        Self { count: rate.count, per_ms: rate.per_ms }
    }
}

impl From<QueueRate> for Rate {
    fn from(rate: QueueRate) -> Self {
        Self { count: rate.count, per_ms: rate.per_ms }
    }
}
