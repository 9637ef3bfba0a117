//! Brings what was enqueued at the source after everything else was moved.

use redrive_core::transfer::{Imported, Parcel, Seal};

use super::copy::{BATCH, conflict};
use super::{LeftBehind, Move, Moved, Progress};
use crate::Error;

impl Move {
    /// Brings jobs that were not moved before; the target works meanwhile, and nothing else there is touched.
    pub(super) async fn bring_stragglers(
        &self,
        seal: &Seal,
        tell: &mut dyn FnMut(&Progress),
    ) -> Result<Moved, Error> {
        let mut known = self.moved_ids(seal).await?;
        let mut moved = Moved { again: true, ..Moved::default() };
        let total = self.from.backend.stats().await?.counts.values().sum();
        let (mut after, mut done) = (None, 0);
        loop {
            let exported = self.from.backend.export(after, BATCH).await?;
            let Some(last) = exported.last else { return Ok(moved) };
            after = Some(last);
            done += (exported.parcels.len() + exported.unreadable.len()) as u64;
            for row in exported.unreadable {
                let why = format!("cannot be read: {}", row.problem);
                moved.left_behind.push(LeftBehind { id: row.lease.id, why });
            }
            let new = exported.parcels.into_iter().filter(|parcel| !known.ids.contains(&parcel.job.id));
            let new: Vec<Parcel> = new.collect();
            if !new.is_empty() {
                moved.records += self.copy_new_policies().await?.written;
                let came = self.bring(new, &mut moved).await?;
                self.add_moved(seal, known.records, came).await?;
                known.records += 1;
            }
            tell(&Progress::Copying { done, total });
        }
    }

    async fn bring(&self, new: Vec<Parcel>, moved: &mut Moved) -> Result<Vec<redrive_core::JobId>, Error> {
        let answers = self.to.backend.import(new.clone()).await?;
        let mut came = Vec::new();
        for (Parcel { job, .. }, answer) in new.into_iter().zip(answers) {
            match answer {
                Imported::Created | Imported::Replaced => {
                    moved.jobs += 1;
                    *moved.counts.entry((job.queue, job.state)).or_default() += 1;
                    came.push(job.id);
                }
                Imported::Kept => came.push(job.id),
                Imported::Conflict(other) => moved.left_behind.push(conflict(job.id, other)),
            }
        }
        Ok(came)
    }
}
