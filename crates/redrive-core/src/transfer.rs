//! Moves the content of one store to another: export, import, and a seal that stops claims meanwhile.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::finding::{Finding, Severity};
use crate::invalid::Invalid;
use crate::job::{Attempt, Job, JobId};
use crate::names::{Kind, SignalName, Tenant, UniqueKey};
use crate::records::{Precondition, RecordValue, RecordWrite};
use crate::steps::Step;
use crate::store::{StoreError, UnreadableJob, check_batch};
use crate::time::Timestamp;

/// The kind of record that stops every claim and reclaim of a store, with any id. A seal is independent of pauses:
/// resuming a queue does not remove a seal, and removing a seal ends no pause. When the write of a seal returns, every
/// claim that did not see the seal has ended.
pub const SEALED: &str = "sealed";
/// The id of the [`SEALED`] record in the source of a move, during the move and after it.
pub const MOVED_AWAY: &str = "moved-away";
/// The id of the [`SEALED`] record in the target of a move. While it exists, imports replace existing jobs.
pub const BEING_FILLED: &str = "being-filled";

/// An export ends with the job that brings it to this number of bytes.
pub const EXPORT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Exports and imports the whole content of a store. Each method is one atomic write or read. Results come in the order
/// of the request.
///
/// Imports are idempotent, so that an interrupted transfer can be repeated. The start times that rates count are not transferred: rates
/// start again from zero.
#[async_trait]
pub trait Transfer: Send + Sync {
    /// Jobs with everything that belongs to them, after `after` in the order of their ids, at most `limit`.
    ///
    /// Each job is complete, so that one write can import it. An export ends early at [`EXPORT_BYTES_MAX`], but has at least one job. Damaged
    /// rows are reported.
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError>;

    /// Adds jobs unchanged. Each job has its own result. Added jobs wake workers, as an enqueue does.
    ///
    /// A job whose id exists stays unchanged. While a [`BEING_FILLED`] record exists, it is replaced, with everything that belongs to it. A job
    /// is not added if its idempotency key belongs to another job, or if another job holds its unique key.
    async fn import(&self, jobs: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError>;

    /// The next `limit` records of all kinds after `after`, in the byte order of kind and id.
    ///
    /// The floor of a kind is among them, as a snapshot with an empty id and without a value. So are the records that were removed
    /// while the store was sealed. See [`crate::RecordStore`].
    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError>;

    /// Writes records and floors with their versions. A record or floor that has the same or a greater version stays,
    /// so that versions only grow. Returns for each whether it was written. Wakes workers, as
    /// [`crate::RecordStore::write`] does.
    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError>;

    /// Unique keys that are reserved although their jobs are gone, after `after` in the order of the jobs' ids, at most `limit`.
    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError>;

    /// Adds reservations whose key is free or belongs to the same job. Returns for each whether it was added.
    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError>;
}

/// A job with everything that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSnapshot {
    /// The job, with state, epoch, lease and all times.
    pub job: Job,
    /// The fingerprint of the request with its idempotency key.
    pub fingerprint: Option<[u8; 32]>,
    /// The unique key that the job holds.
    pub unique: Option<HeldUniqueKey>,
    /// Its attempts, oldest first.
    pub log: Vec<Attempt>,
    /// Its stored steps, by place.
    pub steps: Vec<Step>,
    /// Its signals, in the order of their arrival.
    pub signals: Vec<StoredSignal>,
}

impl JobSnapshot {
    /// The approximate size in bytes, to limit a batch.
    pub fn bytes(&self) -> usize {
        /// The size of a row without its long columns.
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

    /// Checks the limits of a batch.
    pub fn check_all(jobs: &[Self]) -> Result<(), Invalid> {
        check_batch(jobs.len())
    }
}

/// A unique key that a job holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldUniqueKey {
    /// The key.
    pub key: UniqueKey,
    /// The end of the reservation, even if the job ends earlier. None if the key becomes free when the job ends.
    pub until: Option<Timestamp>,
}

/// A stored signal of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSignal {
    /// The identity of the signal.
    pub id: Uuid,
    /// Its name.
    pub name: SignalName,
    /// The content. Empty after a step took the signal, because the step then stores it.
    pub value: Vec<u8>,
    /// Whether a step has taken the signal. A taken signal is kept so that a repeat is recognised.
    pub taken: bool,
}

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExportPage {
    /// The jobs.
    pub jobs: Vec<JobSnapshot>,
    /// Damaged rows, or rows with damaged parts. They stay in the source.
    pub unreadable: Vec<UnreadableJob>,
    /// The last job that was examined: the next export starts after it. None at the end.
    pub last: Option<JobId>,
}

/// The result of importing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportResult {
    /// The job was added.
    Created,
    /// The job existed and was replaced, because the store is the target of a move.
    Replaced,
    /// The job existed, and nothing changed.
    Kept,
    /// This other job has the idempotency key or the unique key. Nothing changed.
    Conflict(JobId),
}

/// A record, a removed record, or the floor of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSnapshot {
    /// The kind.
    pub kind: String,
    /// The name within the kind; empty for the floor.
    pub id: String,
    /// The version of the record or of its removal, or the floor.
    pub version: u64,
    /// The content of the record; `None` if it was removed, and for the floor.
    pub value: Option<Vec<u8>>,
}

impl RecordSnapshot {
    /// Whether this is the floor of its kind: the number that the version of a new record exceeds.
    pub fn is_floor(&self) -> bool {
        self.id.is_empty() && self.value.is_none()
    }

    /// Checks the limits of a batch.
    pub fn check_all(records: &[Self]) -> Result<(), Invalid> {
        check_batch(records.len())?;
        for record in records {
            if record.version == 0 {
                return Err(Invalid::new("version", "must be at least 1"));
            }
            let change = RecordWrite {
                kind: record.kind.clone(),
                id: if record.is_floor() { "floor".to_owned() } else { record.id.clone() },
                expect: Precondition::Any,
                value: record.value.clone(),
            };
            change.check()?;
        }
        Ok(())
    }
}

/// A unique key that is reserved although its job is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedKey {
    /// The tenant of the key.
    pub tenant: Tenant,
    /// The kind of job.
    pub kind: Kind,
    /// The key.
    pub key: UniqueKey,
    /// The job that had the key.
    pub job: JobId,
    /// The end of the reservation.
    pub until: Timestamp,
}

/// The content of a [`SEALED`] record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seal {
    /// The transfer that the seal belongs to.
    pub transfer: Uuid,
    /// The address of the other store, without a password.
    pub other: String,
    /// When the transfer started, by the source's clock.
    pub at: Timestamp,
    /// Whether the transfer is complete.
    pub done: bool,
}

impl RecordValue for Seal {
    const KIND: &'static str = SEALED;
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

    /// The finding for `redrive doctor` about a seal with this id and value.
    pub fn finding(id: &str, value: &[u8]) -> Finding {
        let seal = Self::read(value);
        let other = seal.as_ref().map_or("another store", |seal| seal.other.as_str());
        let evidence = format!("record {SEALED}/{id}");
        if id == BEING_FILLED {
            let what = format!("nothing is claimed here: the store is being filled from {other}");
            let remedy = format!(
                "wait until `redrive move --from {other}` ends, or run it again if it was interrupted"
            );
            return Finding::new(Severity::Warning, "seal", what, evidence, remedy);
        }
        let (what, remedy) = if seal.as_ref().is_none_or(|seal| seal.done) {
            (
                format!("nothing is claimed here: the store was moved to {other}"),
                format!(
                    "point services and workers at {other}; run the same `redrive move` again to move jobs that were enqueued here \
                     since; to use this store again, run `redrive move --lift` with it"
                ),
            )
        } else {
            (
                format!("nothing is claimed here: the store is being moved to {other}"),
                format!("wait until `redrive move --to {other}` ends, or run it again if it was interrupted"),
            )
        };
        Finding::new(Severity::Warning, "seal", what, evidence, remedy)
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
    fn an_invalid_record_is_rejected_with_its_field() {
        let record = |version, kind: &str| RecordSnapshot {
            kind: kind.to_owned(),
            id: "x".to_owned(),
            version,
            value: None,
        };
        let records = [record(1, "a"), record(0, "a")];
        assert_eq!(RecordSnapshot::check_all(&records).unwrap_err().field, "version");
        assert_eq!(RecordSnapshot::check_all(&[record(1, "")]).unwrap_err().field, "kind");
    }
}
