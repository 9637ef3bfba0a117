//! The records that every claim reads: paused queues, limits of queues, and seals.

use redis::{Cmd, Value};
use redrive_core::capacity::LimitsByQueue;
use redrive_core::queue_limits::{Limits, QUEUE_LIMITS};
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::transfer::{BEING_FILLED, SEALED};
use redrive_core::{Partition, Queue, QueueLimits, StoreError};

use crate::inner::Inner;
use crate::row::SEPARATOR;
use crate::schema::records_prefix;
use crate::script::reply;

/// Whether claims read records of this kind.
pub(crate) fn is_setting(kind: &str) -> bool {
    kind == PAUSED || kind == QUEUE_LIMITS || kind == SEALED
}

/// The command that reads all settings.
pub(crate) fn read_command(prefix: &str) -> Cmd {
    let mut command = redis::cmd("HGETALL");
    command.arg(format!("{}settings", records_prefix(prefix)));
    command
}

/// The kind, id and value of each setting in the reply.
pub(crate) fn parse(reply: Value) -> Result<Vec<(String, String, Vec<u8>)>, StoreError> {
    let mut found = Vec::new();
    let mut flat = reply::items(reply::flatten_map(reply))?.into_iter();
    while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
        if let Some((kind, id)) = reply::text(name)?.split_once(SEPARATOR) {
            found.push((kind.to_owned(), id.to_owned(), reply::bytes(value)?));
        }
    }
    Ok(found)
}

/// The settings of a store.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    paused: Vec<String>,
    /// The ids of the seals on the store.
    seals: Vec<String>,
    pub(crate) limits: LimitsByQueue,
}

impl Settings {
    pub(crate) async fn read(inner: &Inner) -> Result<Self, StoreError> {
        let mut settings = Self::default();
        for (kind, id, value) in parse(inner.send(read_command(&inner.layout.prefix)).await?)? {
            match kind.as_str() {
                PAUSED => settings.paused.push(id),
                SEALED => settings.seals.push(id),
                QUEUE_LIMITS => drop(settings.limits.insert(id, QueueLimits::read(&value))),
                _ => {}
            }
        }
        Ok(settings)
    }

    pub(crate) fn is_paused(&self, queue: &str) -> bool {
        self.paused.iter().any(|paused| paused == EVERY_QUEUE || paused == queue)
    }

    /// Whether the store is sealed, so that nothing is claimed.
    pub(crate) fn is_sealed(&self) -> bool {
        !self.seals.is_empty()
    }

    /// Whether the store is being filled, so that imports replace existing jobs.
    pub(crate) fn is_being_filled(&self) -> bool {
        self.seals.iter().any(|id| id == BEING_FILLED)
    }

    pub(crate) fn has_limits(&self, queue: &Queue) -> bool {
        self.limits.contains_key(queue.as_str())
    }

    /// The limits of a partition key.
    pub(crate) fn key_limits(&self, scope: &str) -> Limits {
        self.limits.get(Partition::queue_of_scope(scope)).map(|limits| limits.per_key).unwrap_or_default()
    }
}
