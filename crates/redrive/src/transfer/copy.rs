//! Goes through all jobs of the source in the order of their ids and makes the target the same.

use std::collections::{BTreeMap, HashMap};

use redrive_core::store::Unreadable;
use redrive_core::transfer::{Imported, Parcel};
use redrive_core::{JobId, Queue, State, Timestamp};

use super::seal::Open;
use super::{LeftBehind, Move, Progress};
use crate::Error;

/// Jobs in one batch; large ones make it smaller.
pub(super) const BATCH: usize = 200;

/// What going through everything came to.
#[derive(Default)]
pub(super) struct Pass {
    /// Jobs that are the same on both sides now.
    pub(super) moved: Vec<JobId>,
    /// By queue and state.
    pub(super) counts: BTreeMap<(Queue, State), u64>,
    /// Jobs that were there before the move and had to be copied.
    changed: u64,
    /// A lease was in force: a claim was under way when the source was sealed.
    running: bool,
    pub(super) ahead: Vec<JobId>,
    pub(super) left_behind: Vec<LeftBehind>,
}

impl Pass {
    /// Whether nothing of what was there when the move began has changed any more. What is enqueued meanwhile is copied too,
    /// or brought by the next run.
    pub(super) fn is_settled(&self) -> bool {
        self.changed == 0 && !self.running
    }

    fn read(&mut self, parcel: &Parcel, now: Timestamp) {
        self.running |= parcel.job.state == State::Running && parcel.job.lease_until > Some(now);
    }

    fn unreadable(&mut self, row: Unreadable) {
        self.left_behind
            .push(LeftBehind { id: row.lease.id, why: format!("cannot be read: {}", row.problem) });
    }

    fn same(&mut self, parcel: &Parcel) {
        self.moved.push(parcel.job.id);
        *self.counts.entry((parcel.job.queue.clone(), parcel.job.state)).or_default() += 1;
    }

    fn imported(&mut self, parcel: &Parcel, answer: Imported, sealed_at: Timestamp) {
        match answer {
            Imported::Created | Imported::Replaced => {
                self.changed += u64::from(answer == Imported::Replaced || parcel.job.created_at < sealed_at);
                self.same(parcel);
            }
            Imported::Kept => {}
            Imported::Conflict(other) => self.left_behind.push(conflict(parcel.job.id, other)),
        }
    }
}

/// A job that cannot come because of another.
pub(super) fn conflict(id: JobId, other: JobId) -> LeftBehind {
    LeftBehind { id, why: format!("its key belongs to job {other} of the target") }
}

impl Move {
    /// Copies what differs, from after `after` on. A `whole` pass is one that verifies.
    pub(super) async fn copy(
        &self,
        mut after: Option<JobId>,
        begun: &Open,
        whole: bool,
        tell: &mut dyn FnMut(&Progress),
    ) -> Result<Pass, Error> {
        let stats = self.from.backend.stats().await?;
        let total: u64 = stats.counts.values().sum();
        let (mut pass, mut done) = (Pass::default(), 0);
        loop {
            let exported = self.from.backend.export(after, BATCH).await?;
            let Some(last) = exported.last else { break };
            done += (exported.parcels.len() + exported.unreadable.len()) as u64;
            exported.parcels.iter().for_each(|parcel| pass.read(parcel, stats.now));
            exported.unreadable.into_iter().for_each(|row| pass.unreadable(row));
            self.copy_batch(after, last, exported.parcels, begun, &mut pass).await?;
            after = Some(last);
            if !whole {
                self.note(&begun.seal, after).await?;
            }
            tell(&if whole {
                Progress::Verifying { done, total }
            } else {
                Progress::Copying { done, total }
            });
        }
        // From here on a run that is cut off begins anew and finds everything the same.
        self.note(&begun.seal, None).await?;
        Ok(pass)
    }

    async fn copy_batch(
        &self,
        after: Option<JobId>,
        last: JobId,
        parcels: Vec<Parcel>,
        begun: &Open,
        pass: &mut Pass,
    ) -> Result<(), Error> {
        let there = self.there(after, last).await?;
        let mut wanted = Vec::new();
        for parcel in parcels {
            match there.get(&parcel.job.id) {
                Some(same) if *same == parcel => pass.same(&parcel),
                // It has run there: what it has come to is never put back.
                Some(further) if further.job.epoch > parcel.job.epoch => pass.ahead.push(parcel.job.id),
                Some(_) | None => wanted.push(parcel),
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let answers = self.to.backend.import(wanted.clone()).await?;
        if answers.contains(&Imported::Kept) {
            return Err(Error::Move(format!(
                "the seal of {} was lifted while it was being filled; run it again to go on",
                self.to.shown
            )));
        }
        for (parcel, answer) in wanted.iter().zip(answers) {
            pass.imported(parcel, answer, begun.seal.at);
        }
        Ok(())
    }

    /// What the target has between two ids.
    async fn there(&self, mut after: Option<JobId>, last: JobId) -> Result<HashMap<JobId, Parcel>, Error> {
        let mut there = HashMap::new();
        loop {
            let exported = self.to.backend.export(after, BATCH).await?;
            let within = exported.parcels.into_iter().filter(|parcel| parcel.job.id <= last);
            there.extend(within.map(|parcel| (parcel.job.id, parcel)));
            after = exported.last;
            if after.is_none_or(|after| after >= last) {
                return Ok(there);
            }
        }
    }
}
