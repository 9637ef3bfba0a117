//! Reads: get, list, attempts, stats.

use redrive_core::store::{Cursor, Filter, Page, PageRequest, Stats, check_batch};
use redrive_core::{Attempt, Invalid, Job, JobId, Timestamp};

use super::Model;

impl Model {
    /// See [`redrive_core::Store::get`].
    pub fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.job(*id).cloned()).collect())
    }

    /// See [`redrive_core::Store::list`].
    pub fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page<Job>, Invalid> {
        page.check()?;
        let after = page.after.map(Cursor::job).transpose()?;
        let items = self
            .jobs()
            .rev()
            .filter(|job| after.is_none_or(|after| job.id < after) && filter.matches(job))
            .take(page.limit + 1)
            .cloned();
        Ok(Page::from_items(items.collect(), page.limit, |job| Cursor::Job(job.id)))
    }

    /// See [`redrive_core::Store::attempts`].
    pub fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, Invalid> {
        page.check()?;
        let after = page.after.map(Cursor::attempt).transpose()?;
        let items = self
            .log(id)
            .rev()
            .filter(|attempt| after.is_none_or(|after| attempt.epoch < after))
            .take(page.limit + 1)
            .cloned();
        Ok(Page::from_items(items.collect(), page.limit, |attempt| Cursor::Attempt(attempt.epoch)))
    }

    /// See [`redrive_core::Store::stats`].
    pub fn stats(&self, now: Timestamp) -> Stats {
        let mut stats = Stats { now, ..Stats::default() };
        for job in self.jobs() {
            *stats.counts.entry((job.queue.clone(), job.state)).or_default() += 1;
        }
        let due = self.claimable.values().flatten().map(|(_, at, _)| *at);
        stats.oldest_due = due.min().filter(|at| *at <= now);
        stats
    }
}
