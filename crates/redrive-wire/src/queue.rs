//! Queues on the wire.

use std::collections::BTreeMap;

use redrive_core::quota::{Bounds, Quota, Rate};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A queue.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Its name.
    pub name: String,
    /// Whether nothing is claimed from it.
    pub paused: bool,
    /// How much of it may run at once, and how often; absent when nothing bounds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<QueueQuota>,
    /// Jobs by state.
    pub jobs: BTreeMap<String, u64>,
}

impl QueueStatus {
    /// A queue of which nothing is known.
    pub fn empty(name: &str, paused: bool) -> Self {
        Self { name: name.to_owned(), paused, quota: None, jobs: BTreeMap::new() }
    }
}

/// Every queue.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Queues {
    /// The queues, by name.
    pub items: Vec<QueueStatus>,
    /// Whether every queue is paused.
    pub all_paused: bool,
}

/// How much of a queue may run at once, and how often a job of it starts, on all nodes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schema(example = json!({"concurrency": 50, "rate": {"count": 1000, "perMs": 60000}, "perKey": {"concurrency": 2}}))]
pub struct QueueQuota {
    /// Of the whole queue: how many run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = "uint32", minimum = 1, maximum = 4294967295u64)]
    pub concurrency: Option<u32>,
    /// Of the whole queue: how often one starts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub rate: Option<QueueRate>,
    /// Of each partition's key.
    #[serde(deserialize_with = "object")]
    pub per_key: QueueBounds,
}

/// How many run at once, and how often one starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct QueueBounds {
    /// How many run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = "uint32", minimum = 1, maximum = 4294967295u64)]
    pub concurrency: Option<u32>,
    /// How often one starts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub rate: Option<QueueRate>,
}

/// At most so many starts within any span of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueRate {
    /// How many.
    #[schema(format = "uint32", minimum = 1, maximum = 4294967295u64)]
    pub count: u32,
    /// The span; at most a year.
    #[schema(minimum = 1, maximum = 31536000000u64)]
    pub per_ms: u64,
}

/// An object by its names. A list would fill a struct by position, which no schema allows.
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

impl From<Quota> for QueueQuota {
    fn from(quota: Quota) -> Self {
        let Quota { concurrency, rate, per_key } = quota;
        Self { concurrency, rate: rate.map(Into::into), per_key: per_key.into() }
    }
}

impl From<QueueQuota> for Quota {
    fn from(quota: QueueQuota) -> Self {
        let QueueQuota { concurrency, rate, per_key } = quota;
        Self { concurrency, rate: rate.map(Into::into), per_key: per_key.into() }
    }
}

impl From<Bounds> for QueueBounds {
    fn from(bounds: Bounds) -> Self {
        Self { concurrency: bounds.concurrency, rate: bounds.rate.map(Into::into) }
    }
}

impl From<QueueBounds> for Bounds {
    fn from(bounds: QueueBounds) -> Self {
        Self { concurrency: bounds.concurrency, rate: bounds.rate.map(Into::into) }
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
