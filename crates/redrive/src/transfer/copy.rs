//! Copies the jobs of the source to the target, in the order of their ids.

use std::collections::{BTreeMap, HashMap};

use redrive_core::store::UnreadableJob;
use redrive_core::transfer::{ImportResult, JobSnapshot};
use redrive_core::{JobId, Queue, State, Timestamp};

use super::seal::StartedMove;
use super::{MoveProgress, StoreMove, UnmovedJob};
use crate::Error;

/// Jobs in one batch. A store returns fewer if they are large.
pub(super) const BATCH: usize = 200;

/// The result of one pass over all jobs.
#[derive(Default)]
pub(super) struct CopyPass {
    /// Jobs that are now the same in both stores.
    pub(super) moved: Vec<JobId>,
    /// Their number, by queue and state.
    pub(super) counts: BTreeMap<(Queue, State), u64>,
    /// Jobs that are older than the move and had to be copied in this pass.
    changed: u64,
    /// Whether a job had a valid lease, because a claim was in progress when the source was sealed.
    running: bool,
    pub(super) ahead: Vec<JobId>,
    pub(super) left_behind: Vec<UnmovedJob>,
}

impl CopyPass {
    /// Whether no job that is older than the move has changed. Jobs that are enqueued meanwhile do not count:
    /// this run or the next one copies them.
    pub(super) fn is_unchanged(&self) -> bool {
        self.changed == 0 && !self.running
    }

    fn add_exported(&mut self, snapshot: &JobSnapshot, now: Timestamp) {
        self.running |= snapshot.job.state == State::Running && snapshot.job.lease_until > Some(now);
    }

    fn add_unreadable(&mut self, row: UnreadableJob) {
        self.left_behind
            .push(UnmovedJob { id: row.lease.id, why: format!("cannot be read: {}", row.problem) });
    }

    fn add_equal(&mut self, snapshot: &JobSnapshot) {
        self.moved.push(snapshot.job.id);
        *self.counts.entry((snapshot.job.queue.clone(), snapshot.job.state)).or_default() += 1;
    }

    fn add_imported(&mut self, snapshot: &JobSnapshot, result: ImportResult, sealed_at: Timestamp) {
        match result {
            ImportResult::Created | ImportResult::Replaced => {
                self.changed +=
                    u64::from(result == ImportResult::Replaced || snapshot.job.created_at < sealed_at);
                self.add_equal(snapshot);
            }
            ImportResult::Kept => {}
            ImportResult::Conflict(other) => self.left_behind.push(conflict(snapshot.job.id, other)),
        }
    }
}

/// A job that cannot be moved because another job has its key.
pub(super) fn conflict(id: JobId, other: JobId) -> UnmovedJob {
    UnmovedJob { id, why: format!("has a key that belongs to job {other} of the target") }
}

impl StoreMove {
    /// Copies the jobs after `after` that differ. A pass that `verifies` starts at the first job and is not resumed in the middle.
    pub(super) async fn copy(
        &self,
        mut after: Option<JobId>,
        started: &StartedMove,
        verifies: bool,
        on_progress: &mut dyn FnMut(&MoveProgress),
    ) -> Result<CopyPass, Error> {
        let stats = self.from.backend.stats().await?;
        let total: u64 = stats.counts.values().sum();
        let (mut pass, mut done) = (CopyPass::default(), 0);
        loop {
            let exported = self.from.backend.export(after, BATCH).await?;
            let Some(last) = exported.last else { break };
            done += (exported.jobs.len() + exported.unreadable.len()) as u64;
            exported.jobs.iter().for_each(|snapshot| pass.add_exported(snapshot, stats.now));
            exported.unreadable.into_iter().for_each(|row| pass.add_unreadable(row));
            self.copy_batch(after, last, exported.jobs, started, &mut pass).await?;
            after = Some(last);
            if !verifies {
                self.record_cursor(&started.seal, after).await?;
            }
            on_progress(&if verifies {
                MoveProgress::Verifying { done, total }
            } else {
                MoveProgress::Copying { done, total }
            });
        }
        // A move that is interrupted after this starts at the first job, and finds the copied jobs unchanged.
        self.record_cursor(&started.seal, None).await?;
        Ok(pass)
    }

    async fn copy_batch(
        &self,
        after: Option<JobId>,
        last: JobId,
        snapshots: Vec<JobSnapshot>,
        started: &StartedMove,
        pass: &mut CopyPass,
    ) -> Result<(), Error> {
        let target = self.target_jobs(after, last).await?;
        let mut differing = Vec::new();
        for snapshot in snapshots {
            match target.get(&snapshot.job.id) {
                Some(copy) if *copy == snapshot => pass.add_equal(&snapshot),
                // It has run at the target, so the older copy must not replace it. Epochs of two stores are not comparable,
                // but the numbers of leases are.
                Some(newer) if newer.job.lease_count() > snapshot.job.lease_count() => {
                    pass.ahead.push(snapshot.job.id)
                }
                Some(_) | None => differing.push(snapshot),
            }
        }
        if differing.is_empty() {
            return Ok(());
        }
        let results = self.to.backend.import(differing.clone()).await?;
        if results.contains(&ImportResult::Kept) {
            return Err(Error::Move(format!(
                "the seal of {} was lifted during the move; run the same command again to continue",
                self.to.address
            )));
        }
        for (snapshot, result) in differing.iter().zip(results) {
            pass.add_imported(snapshot, result, started.seal.at);
        }
        Ok(())
    }

    /// The jobs of the target after `after` and up to `last`.
    async fn target_jobs(
        &self,
        mut after: Option<JobId>,
        last: JobId,
    ) -> Result<HashMap<JobId, JobSnapshot>, Error> {
        let mut jobs = HashMap::new();
        loop {
            let exported = self.to.backend.export(after, BATCH).await?;
            let within = exported.jobs.into_iter().filter(|snapshot| snapshot.job.id <= last);
            jobs.extend(within.map(|snapshot| (snapshot.job.id, snapshot)));
            after = exported.last;
            if after.is_none_or(|after| after >= last) {
                return Ok(jobs);
            }
        }
    }
}
