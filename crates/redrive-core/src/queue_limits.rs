//! Limits on how many jobs run at once and start per interval, for a whole queue and for each partition key.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::limits::HORIZON;
use crate::names::{PartitionKey, Queue};
use crate::records::RecordValue;
use crate::store::BoxError;
use crate::time::Timestamp;

/// The kind of record that limits a queue: its id is the queue's name, its value a [`QueueLimits`] as JSON.
pub const QUEUE_LIMITS: &str = "quota";

/// Groups jobs of a queue. Jobs with the same key share the limits of the key, and may have to run in order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The key, unique within the queue.
    pub key: PartitionKey,
    /// The order in which jobs with this key run.
    pub order: Order,
}

/// Separates queue and key in a scope. No name contains it.
const SEPARATOR: char = '\u{1f}';

impl Partition {
    /// The name of the partition across all queues.
    pub fn scope(&self, queue: &Queue) -> String {
        format!("{queue}{SEPARATOR}{}", self.key)
    }

    /// The queue of a scope.
    pub fn queue_of_scope(scope: &str) -> &str {
        scope.split_once(SEPARATOR).map_or(scope, |(queue, _)| queue)
    }

    /// The partition with this scope.
    pub fn from_scope(scope: &str, order: Order) -> Result<Self, Invalid> {
        let key = scope.split_once(SEPARATOR).map_or(scope, |(_, key)| key);
        Ok(Self { key: PartitionKey::new(key)?, order })
    }
}

/// The order in which the jobs of a partition run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// By priority and due time, several at once as far as the limits allow.
    Any,
    /// One after the other, by id. A job starts only after every job of the partition with a smaller id has ended, including its retries.
    Strict,
}

/// The limits of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct QueueLimits {
    /// How many jobs of the queue may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many jobs of the queue may start per interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The limits of each partition key.
    pub per_key: Limits,
}

/// A limit on concurrency and a limit on the rate of starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// How many jobs may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many jobs may start per interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// The number of starts that are allowed within any interval of a given length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rate {
    /// The number of starts.
    pub count: u32,
    /// The length of the interval in milliseconds.
    pub per_ms: u64,
}

impl RecordValue for QueueLimits {
    const KIND: &'static str = QUEUE_LIMITS;

    fn decode(bytes: &[u8]) -> Result<Self, BoxError> {
        Ok(Self::read(bytes))
    }
}

impl QueueLimits {
    /// Reads a record's value. A damaged value sets no limit, so that it does not stop the queue.
    pub fn read(value: &[u8]) -> Self {
        serde_json::from_slice(value).unwrap_or_default()
    }

    /// The limits of the whole queue.
    pub fn queue_wide(&self) -> Limits {
        Limits { concurrency: self.concurrency, rate: self.rate }
    }

    /// Rejects limits that would stop a queue for good.
    pub fn check(&self) -> Result<(), Invalid> {
        for limits in [self.queue_wide(), self.per_key] {
            if limits.concurrency == Some(0) {
                return Err(Invalid::new("concurrency", "must be at least 1; pause the queue to stop it"));
            }
            if let Some(rate) = limits.rate
                && (rate.count == 0 || rate.per_ms == 0 || rate.per() > HORIZON)
            {
                return Err(Invalid::new(
                    "rate",
                    "must allow at least 1 start per interval of 1 ms to 1 year",
                ));
            }
        }
        Ok(())
    }
}

impl Rate {
    /// The length of the interval.
    pub fn per(&self) -> Duration {
        Duration::from_millis(self.per_ms)
    }

    /// The start of the interval that ends at `now`. Only later starts count for the rate.
    pub fn since(&self, now: Timestamp) -> Timestamp {
        now.before(self.per())
    }
}

impl Limits {
    /// How many more jobs may start now, if `running` run and `started` have started within the interval of the rate.
    pub fn free_slots(&self, running: u64, started: u64) -> u64 {
        let left = |most: u32, used: u64| u64::from(most).saturating_sub(used);
        let slots = self.concurrency.map_or(u64::MAX, |most| left(most, running));
        slots.min(self.rate.map_or(u64::MAX, |rate| left(rate.count, started)))
    }

    /// Whether a job that waits for a slot may resume, if `running` jobs of its partition run and `claimable` jobs without strict order
    /// are due. With strict order it needs a free slot. Otherwise it needs a slot that none of the claimable jobs will take.
    pub fn may_resume(&self, order: Order, running: u64, claimable: u64) -> bool {
        let slots = Self { rate: None, ..*self }.free_slots(running, 0);
        match order {
            Order::Strict => slots > 0,
            Order::Any => slots > claimable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_limit_counts() {
        let rate = Some(Rate { count: 3, per_ms: 1_000 });
        for (limits, running, started, free) in [
            (Limits::default(), 9, 9, u64::MAX),
            (Limits { concurrency: Some(4), rate: None }, 1, 9, 3),
            (Limits { concurrency: Some(4), rate }, 1, 2, 1),
            (Limits { concurrency: Some(1), rate }, 2, 0, 0),
        ] {
            assert_eq!(limits.free_slots(running, started), free, "{limits:?}");
        }
    }

    #[test]
    fn a_job_in_strict_order_resumes_even_if_others_are_claimable() {
        let two = Limits { concurrency: Some(2), rate: None };
        for (order, running, claimable, resumes) in [
            (Order::Strict, 1, 9, true),
            (Order::Strict, 2, 0, false),
            (Order::Any, 1, 0, true),
            (Order::Any, 1, 1, false),
            (Order::Any, 2, 0, false),
        ] {
            assert_eq!(two.may_resume(order, running, claimable), resumes, "{order:?} {running} {claimable}");
        }
        assert!(Limits::default().may_resume(Order::Any, 9, 9));
    }

    #[test]
    fn limits_are_json_and_limits_that_would_stop_a_queue_are_rejected() {
        let limits = QueueLimits::read(br#"{"concurrency":5,"perKey":{"rate":{"count":2,"perMs":60000}}}"#);
        assert_eq!(
            (limits.concurrency, limits.per_key.rate.unwrap().per()),
            (Some(5), Duration::from_secs(60))
        );
        assert!(limits.check().is_ok());
        assert_eq!(QueueLimits::read(b"nonsense"), QueueLimits::default());
        assert_eq!(QueueLimits::read(br#"{"concurrency":0}"#).check().unwrap_err().field, "concurrency");
        assert_eq!(
            QueueLimits::read(br#"{"rate":{"count":1,"perMs":0}}"#).check().unwrap_err().field,
            "rate"
        );
        let json = serde_json::to_vec(&limits).unwrap();
        assert_eq!(QueueLimits::read(&json), limits);
    }
}
