//! The actions of operators on jobs (cancel, redrive, run now, discard), and prune.

use std::collections::VecDeque;

use redrive_core::lifecycle::Event;
use redrive_core::store::{CancelResult, DiscardResult, RedriveResult, Retention, RunNowResult, check_batch};
use redrive_core::{Invalid, Job, JobId, State, Timestamp};

use uuid::Uuid;

use super::{Model, advance};

impl Model {
    /// See [`redrive_core::Store::cancel`].
    pub fn cancel(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<CancelResult>, Invalid> {
        check_batch(ids.len())?;
        Ok(self.cancel_trees(ids, now))
    }

    /// See [`redrive_core::Store::redrive`].
    pub fn redrive(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<RedriveResult>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.redrive_one(*id, now)).collect())
    }

    /// See [`redrive_core::Store::run_now`].
    pub fn run_now(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<RunNowResult>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.run_one_now(*id, now)).collect())
    }

    /// See [`redrive_core::Store::discard`].
    pub fn discard(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<DiscardResult>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.discard_one(*id, now)).collect())
    }

    pub(super) fn offer_free_slots_after(&mut self, id: JobId, now: Timestamp) {
        if let Some(job) = self.job(id).cloned() {
            self.offer_free_slots(&job, now);
        }
    }

    fn redrive_one(&mut self, id: JobId, now: Timestamp) -> RedriveResult {
        match self.job(id).map(|job| job.state) {
            None => RedriveResult::NotFound,
            Some(State::Dead) => {
                self.change(id, |row| start_new_run(&mut row.job, now));
                self.wake_up();
                RedriveResult::Done
            }
            Some(state) => RedriveResult::NotDead(state),
        }
    }

    fn run_one_now(&mut self, id: JobId, now: Timestamp) -> RunNowResult {
        match self.job(id).map(|job| job.state) {
            None => RunNowResult::NotFound,
            Some(State::Pending | State::Retrying) => {
                self.change(id, |row| {
                    row.job.next_run_at = row.job.next_run_at.min(now);
                    row.job.began_at = row.job.began_at.min(now);
                });
                self.wake_up();
                RunNowResult::Done
            }
            Some(state) => RunNowResult::NotWaiting(state),
        }
    }

    fn discard_one(&mut self, id: JobId, now: Timestamp) -> DiscardResult {
        match self.job(id).map(|job| job.state) {
            None => DiscardResult::NotFound,
            Some(State::Dead) => {
                self.remove(id, now);
                DiscardResult::Done
            }
            Some(state) => DiscardResult::NotDead(state),
        }
    }
}

fn start_new_run(job: &mut Job, now: Timestamp) {
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

impl Model {
    /// Cancels jobs, and then the descendants of those that had not ended.
    pub(super) fn cancel_trees(&mut self, ids: &[JobId], now: Timestamp) -> Vec<CancelResult> {
        let answers: Vec<CancelResult> = ids.iter().map(|id| self.cancel_one(*id, now)).collect();
        for (id, answer) in ids.iter().zip(&answers) {
            if matches!(answer, CancelResult::Done | CancelResult::Requested) {
                self.end_children(*id, now);
            }
        }
        answers
    }

    /// Ends all descendants of a job, except detached ones.
    pub(super) fn end_children(&mut self, id: JobId, now: Timestamp) {
        let mut parents = VecDeque::from([id]);
        while let Some(parent) = parents.pop_front() {
            for child in self.live_children(parent, |_| true) {
                self.cancel_one(child, now);
                parents.push_back(child);
            }
        }
    }

    /// Ends the children of one fan-out with their descendants, except detached ones.
    pub(super) fn end_branch(&mut self, id: JobId, branch: u32, now: Timestamp) {
        let of_branch = |child: &Job| child.parent.is_some_and(|parent| parent.branch == branch);
        let children = self.live_children(id, of_branch);
        self.cancel_trees(&children, now);
    }

    fn live_children(&self, id: JobId, which: impl Fn(&Job) -> bool) -> Vec<JobId> {
        let children = self.children.get(&id).into_iter().flatten().filter_map(|child| self.job(*child));
        let attached = children.filter(|child| child.parent.is_some_and(|parent| !parent.detached));
        // If the cancel of a child was requested earlier, its own children were cancelled then.
        let live = attached.filter(|child| !child.state.is_final() && !child.cancel_requested);
        live.filter(|child| which(child)).map(|child| child.id).collect()
    }

    fn cancel_one(&mut self, id: JobId, now: Timestamp) -> CancelResult {
        let Some(state) = self.job(id).map(|job| job.state) else {
            return CancelResult::NotFound;
        };
        match state {
            State::Pending | State::Retrying | State::Waiting => {
                self.change(id, |row| {
                    advance(&mut row.job, Event::Cancel);
                    row.job.finished_at = Some(now);
                    row.job.awaits = None;
                });
                self.offer_free_slots_after(id, now);
                CancelResult::Done
            }
            State::Running => {
                self.change(id, |row| row.job.cancel_requested = true);
                self.cancels.0 += 1;
                CancelResult::Requested
            }
            State::Succeeded | State::Dead | State::Cancelled => CancelResult::Ended(state),
        }
    }
}

impl Model {
    /// See [`redrive_core::Store::prune`].
    pub fn prune(&mut self, retention: Retention, limit: usize, now: Timestamp) -> usize {
        let overdue: Vec<JobId> = retention
            .by_state()
            .into_iter()
            .flat_map(|(state, kept)| {
                let first = (state, Timestamp::from_ms(i64::MIN), JobId(Uuid::nil()));
                let ended = self.ended.range(first..);
                ended.take_while(move |(of, at, _)| *of == state && at.after(kept) <= now)
            })
            .map(|(_, _, id)| *id)
            .filter(|id| !self.has_live_parent(*id))
            .take(limit)
            .collect();
        for id in &overdue {
            self.remove(*id, now);
        }
        overdue.len()
    }

    /// Whether the parent of a job has not ended: it may still read the result.
    fn has_live_parent(&self, id: JobId) -> bool {
        let parent = self.job(id).and_then(|job| job.parent).and_then(|parent| self.job(parent.id));
        parent.is_some_and(|parent| !parent.state.is_final())
    }
}
