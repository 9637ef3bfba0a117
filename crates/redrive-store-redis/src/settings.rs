//! The records that claims look at: which queues are paused, how much of each may run, and whether the store is sealed.

use redis::{Cmd, Value};
use redrive_core::quota::{Bounds, QUOTA};
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::rooms::Quotas;
use redrive_core::transfer::{BEING_FILLED, SEALED};
use redrive_core::{Partition, Queue, Quota, StoreError};

use crate::answer;
use crate::homes::records_tag;
use crate::open::Inner;

/// Between the kind and the id of a record among the settings.
const SEPARATOR: char = '\u{1f}';

/// Whether claims look at records of this kind.
pub(crate) fn is_setting(kind: &str) -> bool {
    kind == PAUSED || kind == QUOTA || kind == SEALED
}

/// Asks for all of them.
pub(crate) fn all(prefix: &str) -> Cmd {
    let mut command = redis::cmd("HGETALL");
    command.arg(format!("{}settings", records_tag(prefix)));
    command
}

/// Their kinds, ids and values.
pub(crate) fn each(answer: Value) -> Result<Vec<(String, String, Vec<u8>)>, StoreError> {
    let mut found = Vec::new();
    let mut flat = answer::items(answer::flat(answer))?.into_iter();
    while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
        if let Some((kind, id)) = answer::text(name)?.split_once(SEPARATOR) {
            found.push((kind.to_owned(), id.to_owned(), answer::bytes(value)?));
        }
    }
    Ok(found)
}

/// What claims look at.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    paused: Vec<String>,
    /// The seals on the store, by their ids.
    seals: Vec<String>,
    pub(crate) quotas: Quotas,
}

impl Settings {
    pub(crate) async fn read(inner: &Inner) -> Result<Self, StoreError> {
        let mut settings = Self::default();
        for (kind, id, value) in each(inner.send(all(&inner.layout.prefix)).await?)? {
            match kind.as_str() {
                PAUSED => settings.paused.push(id),
                SEALED => settings.seals.push(id),
                QUOTA => drop(settings.quotas.insert(id, Quota::read(&value))),
                _ => {}
            }
        }
        Ok(settings)
    }

    pub(crate) fn is_paused(&self, queue: &str) -> bool {
        self.paused.iter().any(|paused| paused == EVERY_QUEUE || paused == queue)
    }

    /// Whether nothing is claimed here.
    pub(crate) fn is_sealed(&self) -> bool {
        !self.seals.is_empty()
    }

    /// Whether imports replace what is there.
    pub(crate) fn is_being_filled(&self) -> bool {
        self.seals.iter().any(|id| id == BEING_FILLED)
    }

    pub(crate) fn is_bounded(&self, queue: &Queue) -> bool {
        self.quotas.contains_key(queue.as_str())
    }

    /// The bounds of a partition's key.
    pub(crate) fn bounds_of(&self, scope: &str) -> Bounds {
        self.quotas.get(Partition::queue_of_scope(scope)).map(|quota| quota.per_key).unwrap_or_default()
    }
}
