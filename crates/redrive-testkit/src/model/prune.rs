//! Removes what has been kept for long enough.

use redrive_core::store::Retention;
use redrive_core::{JobId, Timestamp};
use uuid::Uuid;

use super::Model;

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

    /// Whether a parent may still ask what came of a job.
    fn has_live_parent(&self, id: JobId) -> bool {
        let parent = self.job(id).and_then(|job| job.parent).and_then(|parent| self.job(parent.id));
        parent.is_some_and(|parent| !parent.state.is_final())
    }
}
