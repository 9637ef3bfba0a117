//! Versioned documents with compare-and-set.

use redrive_core::Invalid;
use redrive_core::records::{Change, Record, Written};

use super::Model;

/// Where a record is or was: it outlives a removal, so that versions only grow.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot {
    pub(super) version: u64,
    pub(super) value: Option<Vec<u8>>,
}

impl Model {
    /// See [`redrive_core::Records::read`].
    pub fn read(&self, kind: &str, id: &str) -> Option<Record> {
        let slot = self.slots.get(&(kind.to_owned(), id.to_owned()))?;
        slot.record(id)
    }

    /// See [`redrive_core::Records::write`].
    pub fn write(&mut self, change: Change) -> Result<Written, Invalid> {
        change.check()?;
        let current = self.read(&change.kind, &change.id);
        if !change.expect.holds(current.as_ref().map(|record| record.version)) {
            return Ok(Written::Conflict(current));
        }
        let slot = self.slots.entry((change.kind, change.id)).or_default();
        slot.version += 1;
        slot.value = change.value;
        let version = slot.version;
        self.wake_up();
        Ok(Written::Done(version))
    }

    /// See [`redrive_core::Records::scan`].
    pub fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Vec<Record> {
        self.slots
            .iter()
            .filter(|((of, id), _)| of == kind && after.is_none_or(|after| id.as_str() > after))
            .filter_map(|((_, id), slot)| slot.record(id))
            .take(limit)
            .collect()
    }
}

impl Slot {
    fn record(&self, id: &str) -> Option<Record> {
        self.value.clone().map(|value| Record { id: id.to_owned(), version: self.version, value })
    }
}
