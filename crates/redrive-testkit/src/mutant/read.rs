//! Flaws of list, look, prune, wait and stats.

use std::time::Duration;

use redrive_core::store::{Filter, Looked, Page, PageRequest, Retention, Stats, Wake, look_by_lists};
use redrive_core::{Job, JobId, Store, StoreError};

use super::{Flaw, Mutant};

impl Mutant {
    pub(super) async fn flawed_list(
        &self,
        filter: Filter,
        page: PageRequest,
    ) -> Result<Page<Job>, StoreError> {
        let filter = if self.flaw == Flaw::ListIgnoresSubject {
            Filter { subject: None, finished_from: None, finished_before: None, ..filter }
        } else {
            filter
        };
        let mut listed = self.store.list(filter, page).await?;
        if self.flaw == Flaw::ListSkips && page.after.is_some() && !listed.items.is_empty() {
            listed.items.remove(0);
        }
        Ok(listed)
    }

    pub(super) async fn flawed_look(
        &self,
        filter: Filter,
        page: PageRequest,
        most: usize,
    ) -> Result<Looked, StoreError> {
        let most = if self.flaw == Flaw::LookUnbounded { usize::MAX } else { most };
        let mut looked = look_by_lists(self, &filter, page, most).await?;
        if self.flaw == Flaw::LookEndsEarly && looked.looked_at == most {
            looked.page.next = None;
        }
        Ok(looked)
    }

    pub(super) async fn flawed_prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        if self.flaw == Flaw::PruneEarly {
            let early = Duration::from_millis(1);
            return self.store.step(|model, now| Ok(model.prune(retention, limit, now.after(early))));
        }
        if self.flaw == Flaw::PruneTakesChildren {
            self.store.step(|model, _| {
                let ids: Vec<JobId> = model.jobs().map(|job| job.id).collect();
                ids.into_iter().for_each(|id| model.tamper(id, |job| job.parent = None));
                Ok(())
            })?;
        }
        self.store.prune(retention, limit).await
    }

    pub(super) async fn flawed_wait(&self, seen: Wake) {
        if self.flaw == Flaw::WakeLost {
            return std::future::pending().await;
        }
        if self.flaw != Flaw::WakeAlways {
            self.store.wait(seen).await;
        }
    }

    pub(super) async fn flawed_wait_for_cancel(&self, seen: Wake) -> Wake {
        if self.flaw == Flaw::CancelUnheard && seen != Wake(u64::MAX) {
            return std::future::pending().await;
        }
        self.store.wait_for_cancel(seen).await
    }

    pub(super) async fn flawed_stats(&self) -> Result<Stats, StoreError> {
        let stats = self.store.stats().await?;
        if self.flaw == Flaw::StatsHideDue {
            return Ok(Stats { oldest_due: None, ..stats });
        }
        Ok(stats)
    }
}
