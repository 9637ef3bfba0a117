//! Small versioned documents with compare-and-set: policies, queue settings, keys, schedules, long operations.
//!
//! A store implements [`RecordStore`], which knows kinds, ids and bytes. Everything else uses [`Records`], which adds the type.

mod typed;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::limits::{NAME_BYTES_MAX, RECORD_BYTES_MAX, check_text};
use crate::store::{BoxError, StoreError};

pub use typed::{DamagedRecord, RecordEdit, RecordPage, RecordValue, Records};

/// The kind of record whose presence stops claims: its id is the queue's name, or [`EVERY_QUEUE`].
pub const PAUSED: &str = "paused";
/// The id of a [`PAUSED`] record that stops every queue.
pub const EVERY_QUEUE: &str = "*";

/// A paused queue: a record of kind [`PAUSED`], whose id is the queue's name or [`EVERY_QUEUE`]. Its value is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueuePause;

impl RecordValue for QueuePause {
    const KIND: &'static str = PAUSED;

    fn encode(&self) -> Vec<u8> {
        Vec::new()
    }

    fn decode(_: &[u8]) -> Result<Self, BoxError> {
        Ok(Self)
    }
}

/// Documents by kind and id. A store does not have to change for a new kind of setting.
///
/// Guarantees: a write under [`Precondition::Version`] or [`Precondition::Absent`] takes effect only if the precondition holds at that
/// moment. The versions of one record only grow, even across a removal, so that a stale writer never overwrites a successor.
///
/// A removed record leaves nothing behind. Instead the store keeps one number for each kind, its floor, which is at least the version of
/// every removal: a record that is created starts above the floor. While the store is sealed for a move ([`crate::transfer::SEALED`]), a
/// removal leaves a record without a value, so that the move removes the record from the target too. The first removal of that kind
/// after the move deletes these records.
#[async_trait]
pub trait RecordStore: Send + Sync {
    /// The record, if there is one.
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError>;

    /// Writes or, without a value, removes a record; wakes workers that [`crate::Store::wait`].
    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError>;

    /// Returns at most `limit` records of a kind whose ids come after `after`, in the order of ids.
    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError>;
}

/// A stored document: its bytes, or the value that [`Records`] decoded from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<T = Vec<u8>> {
    /// Its name within its kind.
    pub id: String,
    /// Grows with each write.
    pub version: u64,
    /// Its content.
    pub value: T,
}

/// A request to write or remove a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordWrite {
    /// The kind.
    pub kind: String,
    /// The name within the kind.
    pub id: String,
    /// The condition under which the write takes effect.
    pub expect: Precondition,
    /// The new content; none removes the record.
    pub value: Option<Vec<u8>>,
}

impl RecordWrite {
    /// Returns an error if no store would accept this write.
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

/// The condition under which a write takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// Always.
    Any,
    /// Only if there is no record.
    Absent,
    /// Only if the record has this version.
    Version(u64),
}

impl Precondition {
    /// Whether the condition holds for a record with version `current`, or for none.
    pub fn holds(self, current: Option<u64>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteResult {
    /// The write took effect. The record, or its removal, has this version. If there was no record to remove, nothing changed, and
    /// a new record would get a version above this one.
    Done(u64),
    /// The precondition did not hold. Contains the current record, if there is one.
    Conflict(Option<Record>),
}
