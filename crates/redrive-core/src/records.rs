//! Small versioned documents with compare-and-set: policies, queue settings, keys, schedules, long operations.

use async_trait::async_trait;

use crate::invalid::Invalid;
use crate::limits::{NAME_BYTES_MAX, RECORD_BYTES_MAX, check_text};
use crate::store::StoreError;

/// The kind of record whose presence stops claims: its id is the queue's name, or [`EVERY_QUEUE`].
pub const PAUSED: &str = "paused";
/// The id of a [`PAUSED`] record that stops every queue.
pub const EVERY_QUEUE: &str = "*";

/// Documents by kind and id. A new kind of setting needs nothing new in a store.
///
/// Guarantees: a write under [`Expect::Version`] or [`Expect::Absent`] takes effect only if the record is still so;
/// versions of one record only grow, across a removal too, so that a stale writer never hits a successor.
#[async_trait]
pub trait Records: Send + Sync {
    /// The record, if there is one.
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError>;

    /// Writes or, without a value, removes a record; wakes workers that [`crate::Store::wait`].
    async fn write(&self, change: Change) -> Result<Written, StoreError>;

    /// Records of a kind in the order of their ids, those after `after`, at most `limit`.
    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError>;
}

/// A document as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its name within its kind.
    pub id: String,
    /// Grows with each write.
    pub version: u64,
    /// Its content.
    pub value: Vec<u8>,
}

/// A write to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The kind.
    pub kind: String,
    /// The name within the kind.
    pub id: String,
    /// What must be there for the write to take effect.
    pub expect: Expect,
    /// The new content; none removes the record.
    pub value: Option<Vec<u8>>,
}

impl Change {
    /// Refuses what no store would take.
    pub fn check(&self) -> Result<(), Invalid> {
        for (field, name) in [("kind", &self.kind), ("id", &self.id)] {
            if name.is_empty() || name.len() > 2 * NAME_BYTES_MAX {
                return Err(Invalid::new(
                    field,
                    format!("must be from 1 to {} bytes long", 2 * NAME_BYTES_MAX),
                ));
            }
            check_text(field, Some(name))?;
        }
        if self.value.as_ref().is_some_and(|value| value.len() > RECORD_BYTES_MAX) {
            return Err(Invalid::new("value", format!("at most {RECORD_BYTES_MAX} bytes are allowed")));
        }
        Ok(())
    }
}

/// What must be there for a write to take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Anything or nothing.
    Any,
    /// No record.
    Absent,
    /// The record in this version.
    Version(u64),
}

impl Expect {
    /// Whether a record in version `current`, or none, is what was expected.
    pub fn holds(self, current: Option<u64>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// What came of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It took effect; the record, or its removal, has this version.
    Done(u64),
    /// Something else was there.
    Conflict(Option<Record>),
}
