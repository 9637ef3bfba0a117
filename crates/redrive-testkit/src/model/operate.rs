//! What an operator asks for: cancel, redrive, run now, discard.

use redrive_core::lifecycle::Event;
use redrive_core::store::{Cancelled, Discarded, Redriven, RunNow, check_batch};
use redrive_core::{Invalid, Job, JobId, State, Timestamp};

use super::{Model, advance};

impl Model {
    /// See [`redrive_core::Store::cancel`].
    pub fn cancel(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<Cancelled>, Invalid> {
        check_batch(ids.len())?;
        Ok(self.cancel_trees(ids, now))
    }

    /// See [`redrive_core::Store::redrive`].
    pub fn redrive(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<Redriven>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.redrive_one(*id, now)).collect())
    }

    /// See [`redrive_core::Store::run_now`].
    pub fn run_now(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<RunNow>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.run_one_now(*id, now)).collect())
    }

    /// See [`redrive_core::Store::discard`].
    pub fn discard(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<Discarded>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.discard_one(*id, now)).collect())
    }

    pub(super) fn pass_on_after(&mut self, id: JobId, now: Timestamp) {
        if let Some(job) = self.job(id).cloned() {
            self.pass_on(&job, now);
        }
    }

    fn redrive_one(&mut self, id: JobId, now: Timestamp) -> Redriven {
        match self.job(id).map(|job| job.state) {
            None => Redriven::NotFound,
            Some(State::Dead) => {
                self.change(id, |row| begin_again(&mut row.job, now));
                self.wake_up();
                Redriven::Done
            }
            Some(state) => Redriven::NotDead(state),
        }
    }

    fn run_one_now(&mut self, id: JobId, now: Timestamp) -> RunNow {
        match self.job(id).map(|job| job.state) {
            None => RunNow::NotFound,
            Some(State::Pending | State::Retrying) => {
                self.change(id, |row| {
                    row.job.next_run_at = row.job.next_run_at.min(now);
                    row.job.began_at = row.job.began_at.min(now);
                });
                self.wake_up();
                RunNow::Done
            }
            Some(state) => RunNow::NotWaiting(state),
        }
    }

    fn discard_one(&mut self, id: JobId, now: Timestamp) -> Discarded {
        match self.job(id).map(|job| job.state) {
            None => Discarded::NotFound,
            Some(State::Dead) => {
                self.remove(id, now);
                Discarded::Done
            }
            Some(state) => Discarded::NotDead(state),
        }
    }
}

fn begin_again(job: &mut Job, now: Timestamp) {
    advance(job, Event::Redrive);
    job.run += 1;
    job.attempt = 0;
    job.began_at = now;
    job.next_run_at = now;
    job.wait = None;
    job.reason = None;
    job.output = None;
    job.finished_at = None;
    job.cancel_requested = false;
}
