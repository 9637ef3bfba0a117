//! Makes sure that the target has what the source has before it opens.

use super::copy::Pass;
use super::{Move, Moved};
use crate::Error;

impl Move {
    /// Compares the target's counts with what the last pass found equal, job by job; says what was moved.
    pub(super) async fn verify(&self, pass: &Pass) -> Result<Moved, Error> {
        self.refuse_left_behind(pass)?;
        let there = self.to.backend.stats().await?.counts;
        for ((queue, state), count) in &pass.counts {
            let counted = there.get(&(queue.clone(), *state)).copied().unwrap_or(0);
            // More is fine: the target may have had jobs before, and takes new ones.
            if counted < *count && !self.merge {
                return Err(Error::Move(format!(
                    "{} counts {counted} {state} jobs of queue {queue} where the source has {count}; nothing runs there \
                     before they agree: run it again, and report this if it stays so",
                    self.to.shown
                )));
            }
        }
        let records = self.copy_records().await?;
        Ok(Moved {
            again: false,
            jobs: pass.moved.len() as u64,
            counts: pass.counts.clone(),
            records: self.records_there().await?,
            records_kept: records.kept,
            ahead: pass.ahead.clone(),
            left_behind: pass.left_behind.clone(),
        })
    }

    fn refuse_left_behind(&self, pass: &Pass) -> Result<(), Error> {
        let Some(first) = pass.left_behind.first().filter(|_| !self.leave_behind) else { return Ok(()) };
        let listed = pass.left_behind.iter().take(5).map(|left| format!("job {} {}", left.id, left.why));
        Err(Error::Move(format!(
            "{} of the jobs cannot be moved: {}; look at job {} and the like, or add --leave-behind to open the target \
             without them; everything else is copied",
            pass.left_behind.len(),
            listed.collect::<Vec<_>>().join("; "),
            first.id
        )))
    }
}
