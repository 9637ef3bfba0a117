//! Ends jobs with everything below them.

use std::collections::VecDeque;

use redrive_core::lifecycle::Event;
use redrive_core::store::Cancelled;
use redrive_core::{Job, JobId, State, Timestamp};

use super::{Model, advance};

impl Model {
    /// Ends jobs or requests their end, then everything below those that had not ended.
    pub(super) fn cancel_trees(&mut self, ids: &[JobId], now: Timestamp) -> Vec<Cancelled> {
        let answers: Vec<Cancelled> = ids.iter().map(|id| self.cancel_one(*id, now)).collect();
        for (id, answer) in ids.iter().zip(&answers) {
            if matches!(answer, Cancelled::Done | Cancelled::Requested) {
                self.end_below(*id, now);
            }
        }
        answers
    }

    /// Ends everything below a job that is not detached.
    pub(super) fn end_below(&mut self, id: JobId, now: Timestamp) {
        let mut parents = VecDeque::from([id]);
        while let Some(parent) = parents.pop_front() {
            for child in self.live_children(parent, |_| true) {
                self.cancel_one(child, now);
                parents.push_back(child);
            }
        }
    }

    /// Ends the children of one fan-out that are not detached, with everything below them.
    pub(super) fn end_branch(&mut self, id: JobId, branch: u32, now: Timestamp) {
        let of_branch = |child: &Job| child.parent.is_some_and(|parent| parent.branch == branch);
        let children = self.live_children(id, of_branch);
        self.cancel_trees(&children, now);
    }

    fn live_children(&self, id: JobId, which: impl Fn(&Job) -> bool) -> Vec<JobId> {
        let children = self.children.get(&id).into_iter().flatten().filter_map(|child| self.job(*child));
        let attached = children.filter(|child| child.parent.is_some_and(|parent| !parent.detached));
        // What was requested before has been done below it, too.
        let live = attached.filter(|child| !child.state.is_final() && !child.cancel_requested);
        live.filter(|child| which(child)).map(|child| child.id).collect()
    }

    fn cancel_one(&mut self, id: JobId, now: Timestamp) -> Cancelled {
        let Some(state) = self.job(id).map(|job| job.state) else {
            return Cancelled::NotFound;
        };
        match state {
            State::Pending | State::Retrying | State::Waiting => {
                self.change(id, |row| {
                    advance(&mut row.job, Event::Cancel);
                    row.job.finished_at = Some(now);
                    row.job.awaits = None;
                });
                self.pass_on_after(id, now);
                Cancelled::Done
            }
            State::Running => {
                self.change(id, |row| row.job.cancel_requested = true);
                self.cancels.0 += 1;
                Cancelled::Requested
            }
            State::Succeeded | State::Dead | State::Cancelled => Cancelled::Ended(state),
        }
    }
}
