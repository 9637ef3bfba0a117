//! Records: versioned documents with compare-and-set.

use redrive_core::Invalid;
use redrive_core::records::{Record, RecordWrite, WriteResult};
use redrive_core::transfer::SEALED;

use super::Model;

/// The id of the entry that holds the floor of a kind. No record has it.
const FLOOR: &str = "";

/// A record. Without a value, it is a removed record or the floor of its kind.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordEntry {
    pub(super) version: u64,
    pub(super) value: Option<Vec<u8>>,
}

impl Model {
    /// See [`redrive_core::RecordStore::read`].
    pub fn read(&self, kind: &str, id: &str) -> Option<Record> {
        let entry = self.records.get(&(kind.to_owned(), id.to_owned()))?;
        entry.record(id)
    }

    /// See [`redrive_core::RecordStore::write`].
    pub fn write(&mut self, change: RecordWrite) -> Result<WriteResult, Invalid> {
        change.check()?;
        let RecordWrite { kind, id, expect, value } = change;
        let current = self.read(&kind, &id);
        if !expect.holds(current.as_ref().map(|record| record.version)) {
            return Ok(WriteResult::Conflict(current));
        }
        let version = match (current, value) {
            (None, None) => return Ok(WriteResult::Done(self.last_version(&kind, &id))),
            (Some(record), None) => self.remove_record(kind, id, record.version + 1),
            (current, Some(value)) => {
                let last = current.map_or_else(|| self.last_version(&kind, &id), |record| record.version);
                self.records.insert((kind, id), RecordEntry { version: last + 1, value: Some(value) });
                last + 1
            }
        };
        self.wake_up();
        Ok(WriteResult::Done(version))
    }

    /// Removes a record without a trace, except that the floor of its kind rises. In a sealed store the removal itself stays, for the
    /// move.
    fn remove_record(&mut self, kind: String, id: String, version: u64) -> u64 {
        if self.is_sealed() && kind != SEALED {
            self.records.insert((kind, id), RecordEntry { version, value: None });
            return version;
        }
        self.records.remove(&(kind.clone(), id));
        let removed = self.records.iter().filter(|((of, _), entry)| *of == kind && entry.value.is_none());
        let floor = removed.map(|(_, entry)| entry.version).fold(version, u64::max);
        self.records.retain(|(of, _), entry| *of != kind || entry.value.is_some());
        self.records.insert((kind, FLOOR.to_owned()), RecordEntry { version: floor, value: None });
        version
    }

    /// The version that a new record must exceed: the floor of its kind, or the version of its removal.
    fn last_version(&self, kind: &str, id: &str) -> u64 {
        let version =
            |id: &str| self.records.get(&(kind.to_owned(), id.to_owned())).map_or(0, |entry| entry.version);
        version(FLOOR).max(version(id))
    }

    /// See [`redrive_core::RecordStore::scan`].
    pub fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Vec<Record> {
        self.records
            .iter()
            .filter(|((of, id), _)| of == kind && after.is_none_or(|after| id.as_str() > after))
            .filter_map(|((_, id), entry)| entry.record(id))
            .take(limit)
            .collect()
    }
}

impl RecordEntry {
    fn record(&self, id: &str) -> Option<Record> {
        self.value.clone().map(|value| Record { id: id.to_owned(), version: self.version, value })
    }
}
