//! Moves the jobs that were enqueued at the source after the move was finished.
//!
//! The source records which jobs were moved. A job that has ended and was removed at the target must not be moved a second time.

use std::collections::HashSet;

use redrive_core::JobId;
use redrive_core::limits::RECORD_BYTES_MAX;
use redrive_core::records::{RecordValue, Records};
use redrive_core::store::BoxError;
use redrive_core::transfer::{ImportResult, JobSnapshot, Seal};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::copy::{BATCH, CopyPass, conflict};
use super::{MoveProgress, MoveResult, StoreMove, UnmovedJob};
use crate::Error;

/// Ids of moved jobs: a record at the source, whose id is the id of the move and a number.
#[derive(Serialize, Deserialize)]
pub(super) struct MovedBatch(Vec<JobId>);

impl RecordValue for MovedBatch {
    const KIND: &'static str = "moved";

    /// 16 bytes for each id.
    fn encode(&self) -> Vec<u8> {
        self.0.iter().flat_map(|id| *id.0.as_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Self, BoxError> {
        let ids = bytes.chunks_exact(16).map(|id| Uuid::from_slice(id).map(JobId));
        Ok(Self(ids.collect::<Result<_, _>>()?))
    }
}

/// Ids in one record.
const IDS_MAX: usize = RECORD_BYTES_MAX / 16;

impl StoreMove {
    /// Records the jobs that a pass has moved.
    pub(super) async fn record_moved(&self, seal: &Seal, pass: &CopyPass) -> Result<(), Error> {
        let mut known = self.moved_ids(seal).await?;
        let ids = pass.moved.iter().chain(&pass.ahead).filter(|id| !known.ids.contains(id));
        let new = ids.copied().collect();
        self.add_moved(seal, &mut known, new).await
    }

    /// Writes ids to new records. No record is overwritten: its ids would be forgotten, and their jobs moved again.
    async fn add_moved(&self, seal: &Seal, known: &mut MovedIds, new: Vec<JobId>) -> Result<(), Error> {
        for chunk in new.chunks(IDS_MAX) {
            let id = format!("{}.{:08}", seal.transfer, known.next_record);
            Records::new(&*self.from.backend).put(&id, &MovedBatch(chunk.to_vec())).await?;
            known.next_record += 1;
        }
        Ok(())
    }

    /// The jobs that were moved so far.
    async fn moved_ids(&self, seal: &Seal) -> Result<MovedIds, Error> {
        let batches = Records::<MovedBatch>::new(&*self.from.backend).all(&seal.transfer.to_string()).await?;
        let numbers = batches.iter().filter_map(|batch| batch.id.rsplit_once('.')?.1.parse::<usize>().ok());
        let next_record = numbers.max().map_or(0, |last| last + 1);
        Ok(MovedIds { ids: batches.into_iter().flat_map(|batch| batch.value.0).collect(), next_record })
    }
}

/// The ids of moved jobs, and the number of the next record for such ids.
struct MovedIds {
    ids: HashSet<JobId>,
    next_record: usize,
}

impl StoreMove {
    /// Moves the jobs that were not moved before. The target is open meanwhile, and its other jobs do not change.
    pub(super) async fn move_late_jobs(
        &self,
        seal: &Seal,
        on_progress: &mut dyn FnMut(&MoveProgress),
    ) -> Result<MoveResult, Error> {
        let mut known = self.moved_ids(seal).await?;
        let mut moved = MoveResult { repeated: true, ..MoveResult::default() };
        let total = self.from.backend.stats().await?.counts.values().sum();
        let (mut after, mut done) = (None, 0);
        loop {
            let exported = self.from.backend.export(after, BATCH).await?;
            let Some(last) = exported.last else { return Ok(moved) };
            after = Some(last);
            done += (exported.jobs.len() + exported.unreadable.len()) as u64;
            for row in exported.unreadable {
                let why = format!("cannot be read: {}", row.problem);
                moved.left_behind.push(UnmovedJob { id: row.lease.id, why });
            }
            let new = exported.jobs.into_iter().filter(|snapshot| !known.ids.contains(&snapshot.job.id));
            let new: Vec<JobSnapshot> = new.collect();
            if !new.is_empty() {
                moved.records += self.copy_new_policies().await?.written;
                let imported = self.import(new, &mut moved).await?;
                self.add_moved(seal, &mut known, imported).await?;
            }
            on_progress(&MoveProgress::Copying { done, total });
        }
    }

    async fn import(&self, new: Vec<JobSnapshot>, moved: &mut MoveResult) -> Result<Vec<JobId>, Error> {
        let results = self.to.backend.import(new.clone()).await?;
        let mut imported = Vec::new();
        for (JobSnapshot { job, .. }, result) in new.into_iter().zip(results) {
            match result {
                ImportResult::Created | ImportResult::Replaced => {
                    moved.jobs += 1;
                    *moved.counts.entry((job.queue, job.state)).or_default() += 1;
                    imported.push(job.id);
                }
                ImportResult::Kept => imported.push(job.id),
                ImportResult::Conflict(other) => moved.left_behind.push(conflict(job.id, other)),
            }
        }
        Ok(imported)
    }
}
