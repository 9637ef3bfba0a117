//! What moving from one store to another needs: all of a store's content out and in, and a seal that stops work meanwhile.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::finding::{Finding, Gravity};
use crate::invalid::Invalid;
use crate::job::{Attempt, Job, JobId};
use crate::names::{Kind, SignalName, Tenant, UniqueKey};
use crate::records::{Change, Expect};
use crate::steps::Step;
use crate::store::{StoreError, Unreadable, check_batch};
use crate::time::Timestamp;

/// The kind of record whose presence stops every claim and reclaim of a store, whatever its id. It is no pause: resuming a
/// queue does not undo it, and a pause outlives it. When a write of one returns, every claim that did not see it has ended.
pub const SEALED: &str = "sealed";
/// The id of the [`SEALED`] record of a store that is moved away from, during the move and after it.
pub const MOVED_AWAY: &str = "moved-away";
/// The id of the [`SEALED`] record of a store that is being filled: as long as it is there, imports replace jobs.
pub const BEING_FILLED: &str = "being-filled";

/// Bytes of parcels after which one export ends, with the parcel that reaches them.
pub const EXPORT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// All of a store's content, out and in. Each method is one atomic write or read; results stand in the order of what was asked.
///
/// Importing is idempotent, so that a transfer that was cut off is simply done again. When jobs were started is not
/// transferred: rates count anew.
#[async_trait]
pub trait Transfer: Send + Sync {
    /// Jobs with all that belongs to them, in the order of their ids, those after `after`, at most `limit`.
    ///
    /// A parcel is always whole, so that it is imported in one write; an export ends early once it has reached
    /// [`EXPORT_BYTES_MAX`], with at least one parcel. Rows that cannot be read are named and not dropped silently.
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError>;

    /// Adds jobs exactly as they are. Each is answered for by itself, and those that were added wake like an enqueue.
    ///
    /// A job whose id is there already is left as it is; while there is a [`BEING_FILLED`] record it is replaced by the
    /// parcel, with all that belongs to it. A job whose idempotency key belongs to another job, or whose unique key another
    /// one holds in force, is not added.
    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError>;

    /// Records of every kind, removed ones too, in the order of kind and id by their bytes, those after `after`, at most
    /// `limit`.
    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError>;

    /// Writes records with their versions where there is none or one with a smaller version, so that versions only grow;
    /// says of each whether it did. Wakes like [`crate::Records::write`].
    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError>;

    /// Unique keys that are still promised to jobs that are gone, in the order of the jobs' ids, those after `after`, at
    /// most `limit`.
    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError>;

    /// Takes over promises whose key nobody holds in force, or the same job held before; says of each whether it did.
    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError>;
}

/// A job with all that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Parcel {
    /// The row as it is: state, epoch, lease and every instant.
    pub job: Job,
    /// What was asked for under its idempotency key.
    pub fingerprint: Option<[u8; 32]>,
    /// The unique key that it holds.
    pub unique: Option<Held>,
    /// Its attempts, oldest first.
    pub log: Vec<Attempt>,
    /// Its remembered steps, by their places.
    pub steps: Vec<Step>,
    /// Its signals, in the order of their arrival.
    pub signals: Vec<Received>,
}

impl Parcel {
    /// About how large it is, to bound a batch.
    pub fn bytes(&self) -> usize {
        /// What a row costs beside its long columns.
        const ROW: usize = 256;
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let job = &self.job;
        let row = job.payload.len() + job.output.as_ref().map_or(0, Vec::len) + text(&job.metadata);
        let log: usize =
            self.log.iter().map(|each| ROW + text(&each.entry.error) + text(&each.entry.detail)).sum();
        let steps: usize = self.steps.iter().map(|step| ROW + step.value.len()).sum();
        let signals: usize = self.signals.iter().map(|signal| ROW + signal.value.len()).sum();
        ROW + row + log + steps + signals
    }

    /// Refuses a batch that no store would take.
    pub fn check_all(parcels: &[Self]) -> Result<(), Invalid> {
        check_batch(parcels.len())
    }
}

/// A unique key that a job holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The key.
    pub key: UniqueKey,
    /// Until when, whatever becomes of the job; none until it has ended.
    pub until: Option<Timestamp>,
}

/// A signal that a job got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Makes it repeatable.
    pub id: Uuid,
    /// Its name.
    pub name: SignalName,
    /// What it says; empty once it was taken, because the step has it from then on.
    pub value: Vec<u8>,
    /// A step has taken it. It is kept so that a repeat is known as one.
    pub taken: bool,
}

/// What an export came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Exported {
    /// The jobs.
    pub parcels: Vec<Parcel>,
    /// Rows that could not be read, or something that belongs to them; they stay where they are.
    pub unreadable: Vec<Unreadable>,
    /// The last job that was looked at, where the next export goes on; none at the end.
    pub last: Option<JobId>,
}

/// What came of importing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// It is new.
    Created,
    /// It was there and is now as the parcel says, since the store is being filled.
    Replaced,
    /// It was there, and the store is open for work; nothing changed.
    Kept,
    /// Its idempotency key or its unique key belongs to this other job; nothing changed.
    Conflict(JobId),
}

/// Where a record is, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The kind.
    pub kind: String,
    /// The name within the kind.
    pub id: String,
    /// The version of the record, or of its removal.
    pub version: u64,
    /// Its content; none when it was removed.
    pub value: Option<Vec<u8>>,
}

impl Slot {
    /// Refuses a batch that no store would take.
    pub fn check_all(slots: &[Self]) -> Result<(), Invalid> {
        check_batch(slots.len())?;
        for slot in slots {
            if slot.version == 0 {
                return Err(Invalid::new("version", "must be at least 1"));
            }
            let change = Change {
                kind: slot.kind.clone(),
                id: slot.id.clone(),
                expect: Expect::Any,
                value: slot.value.clone(),
            };
            change.check()?;
        }
        Ok(())
    }
}

/// A unique key that stays taken although its job is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// Whose key it is.
    pub tenant: Tenant,
    /// For which kind of job.
    pub kind: Kind,
    /// The key.
    pub key: UniqueKey,
    /// The job that had it.
    pub job: JobId,
    /// Until when.
    pub until: Timestamp,
}

/// What a [`SEALED`] record says: which transfer it belongs to, and where the other store is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seal {
    /// The transfer.
    pub transfer: Uuid,
    /// The other store's address, without a password.
    pub other: String,
    /// When it began, by the source's clock.
    pub at: Timestamp,
    /// Whether everything has been transferred.
    pub done: bool,
}

impl Seal {
    /// Reads a record's value.
    pub fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    /// The seal as a record's value.
    pub fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What the record of this id and value means for whoever meets it, and what to do.
    pub fn finding(id: &str, value: &[u8]) -> Finding {
        let seal = Self::read(value);
        let other = seal.as_ref().map_or("another store", |seal| seal.other.as_str());
        let evidence = format!("record {SEALED}/{id}");
        if id == BEING_FILLED {
            let what = format!("nothing is claimed here: the store is being filled from {other}");
            let remedy = format!("let `redrive move --from {other}` end, or run it again if it was cut off");
            return Finding::new(Gravity::Warning, "seal", what, evidence, remedy);
        }
        let (what, remedy) = if seal.as_ref().is_none_or(|seal| seal.done) {
            (
                format!("nothing is claimed here: the store was moved to {other}"),
                format!(
                    "point services and workers at {other}; what was enqueued here since comes there by running the \
                     same `redrive move` again; to work here after all, run `redrive move --lift` with this store"
                ),
            )
        } else {
            (
                format!("nothing is claimed here: the store is being moved to {other}"),
                format!("let `redrive move --to {other}` end, or run it again if it was cut off"),
            )
        };
        Finding::new(Gravity::Warning, "seal", what, evidence, remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_says_where_to_go_and_how_to_lift_it() {
        let seal = |done| Seal {
            transfer: Uuid::nil(),
            other: "sqlite:b.db".to_owned(),
            at: Timestamp::default(),
            done,
        };
        assert_eq!(Seal::read(&seal(true).write()), Some(seal(true)));
        let moved = Seal::finding(MOVED_AWAY, &seal(true).write());
        assert!(moved.what.contains("was moved to sqlite:b.db"), "{moved:?}");
        assert!(moved.remedy.is_some_and(|remedy| remedy.contains("--lift")));
        assert!(Seal::finding(MOVED_AWAY, &seal(false).write()).what.contains("is being moved to"));
        assert!(Seal::finding(BEING_FILLED, b"nonsense").what.contains("filled from another store"));
    }

    #[test]
    fn a_batch_of_records_is_checked_by_name() {
        let slot =
            |version, kind: &str| Slot { kind: kind.to_owned(), id: "x".to_owned(), version, value: None };
        assert_eq!(Slot::check_all(&[slot(1, "a"), slot(0, "a")]).unwrap_err().field, "version");
        assert_eq!(Slot::check_all(&[slot(1, "")]).unwrap_err().field, "kind");
    }
}
