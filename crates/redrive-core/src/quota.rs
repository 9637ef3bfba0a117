//! How much of a queue may run at once, and how often: for the whole queue and for each key in it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::limits::HORIZON;
use crate::names::{PartitionKey, Queue};
use crate::time::Timestamp;

/// The kind of record that bounds a queue: its id is the queue's name, its value a [`Quota`] as JSON.
pub const QUOTA: &str = "quota";

/// Which jobs of a queue belong together: they share the bounds of a key, and may have to keep their order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// What they have in common, within their queue.
    pub key: PartitionKey,
    /// In which order they run.
    pub order: Order,
}

/// Between a queue and a key: no name has one.
const SEPARATOR: char = '\u{1f}';

impl Partition {
    /// What the partition is called across queues.
    pub fn scope(&self, queue: &Queue) -> String {
        format!("{queue}{SEPARATOR}{}", self.key)
    }

    /// The queue in what a partition is called.
    pub fn queue_of_scope(scope: &str) -> &str {
        scope.split_once(SEPARATOR).map_or(scope, |(queue, _)| queue)
    }

    /// The partition that is called so.
    pub fn of_scope(scope: &str, order: Order) -> Result<Self, Invalid> {
        let key = scope.split_once(SEPARATOR).map_or(scope, |(_, key)| key);
        Ok(Self { key: PartitionKey::new(key)?, order })
    }
}

/// In which order the jobs of a partition run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// As jobs do: by priority and due time, side by side as far as the bounds allow.
    Any,
    /// One after the other by id: none starts before every such job with a smaller id has ended, its retries included.
    Strict,
}

/// The bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Quota {
    /// Of the whole queue: how many run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Of the whole queue: how often one starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Of each partition's key.
    pub per_key: Bounds,
}

/// How many run at once, and how often one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Bounds {
    /// How many run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How often one starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// At most so many starts within any span of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// The span in milliseconds.
    pub per_ms: u64,
}

impl Quota {
    /// Reads a record's value. One that cannot be read bounds nothing, so that a queue is never stopped by it.
    pub fn read(value: &[u8]) -> Self {
        serde_json::from_slice(value).unwrap_or_default()
    }

    /// The bounds of the whole queue.
    pub fn whole(&self) -> Bounds {
        Bounds { concurrency: self.concurrency, rate: self.rate }
    }

    /// Refuses what no queue could work under.
    pub fn check(&self) -> Result<(), Invalid> {
        for bounds in [self.whole(), self.per_key] {
            if bounds.concurrency == Some(0) {
                return Err(Invalid::new("concurrency", "must be at least 1; pause the queue to stop it"));
            }
            if let Some(rate) = bounds.rate
                && (rate.count == 0 || rate.per_ms == 0 || rate.per() > HORIZON)
            {
                return Err(Invalid::new("rate", "must be at least 1 start in 1 ms to a year"));
            }
        }
        Ok(())
    }
}

impl Rate {
    /// The span.
    pub fn per(&self) -> Duration {
        Duration::from_millis(self.per_ms)
    }

    /// Starts after this instant count at `now`.
    pub fn since(&self, now: Timestamp) -> Timestamp {
        now.before(self.per())
    }
}

impl Bounds {
    /// How many more may start now, when so many run and so many have started within the rate's span.
    pub fn room(&self, running: u64, started: u64) -> u64 {
        let left = |most: u32, used: u64| u64::from(most).saturating_sub(used);
        let slots = self.concurrency.map_or(u64::MAX, |most| left(most, running));
        slots.min(self.rate.map_or(u64::MAX, |rate| left(rate.count, started)))
    }

    /// Whether a job that was set aside for want of a slot may go on, when so many of its key run, and so many that keep no
    /// order could be claimed at once. In strict order it needs a free slot; else there must be room beside those others.
    pub fn lets_go_on(&self, order: Order, running: u64, claimable: u64) -> bool {
        let slots = Self { rate: None, ..*self }.room(running, 0);
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
    fn the_tighter_bound_counts() {
        let rate = Some(Rate { count: 3, per_ms: 1_000 });
        for (bounds, running, started, room) in [
            (Bounds::default(), 9, 9, u64::MAX),
            (Bounds { concurrency: Some(4), rate: None }, 1, 9, 3),
            (Bounds { concurrency: Some(4), rate }, 1, 2, 1),
            (Bounds { concurrency: Some(1), rate }, 2, 0, 0),
        ] {
            assert_eq!(bounds.room(running, started), room, "{bounds:?}");
        }
    }

    #[test]
    fn strict_order_goes_on_beside_others_that_could() {
        let two = Bounds { concurrency: Some(2), rate: None };
        for (order, running, claimable, goes_on) in [
            (Order::Strict, 1, 9, true),
            (Order::Strict, 2, 0, false),
            (Order::Any, 1, 0, true),
            (Order::Any, 1, 1, false),
            (Order::Any, 2, 0, false),
        ] {
            assert_eq!(two.lets_go_on(order, running, claimable), goes_on, "{order:?} {running} {claimable}");
        }
        assert!(Bounds::default().lets_go_on(Order::Any, 9, 9));
    }

    #[test]
    fn a_quota_is_json_and_refuses_what_would_stop_a_queue() {
        let quota = Quota::read(br#"{"concurrency":5,"perKey":{"rate":{"count":2,"perMs":60000}}}"#);
        assert_eq!(
            (quota.concurrency, quota.per_key.rate.unwrap().per()),
            (Some(5), Duration::from_secs(60))
        );
        assert!(quota.check().is_ok());
        assert_eq!(Quota::read(b"nonsense"), Quota::default());
        assert_eq!(Quota::read(br#"{"concurrency":0}"#).check().unwrap_err().field, "concurrency");
        assert_eq!(Quota::read(br#"{"rate":{"count":1,"perMs":0}}"#).check().unwrap_err().field, "rate");
        let json = serde_json::to_vec(&quota).unwrap();
        assert_eq!(Quota::read(&json), quota);
    }
}
