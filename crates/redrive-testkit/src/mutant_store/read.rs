//! Mutations of list, search, prune, wait and stats.

use std::time::Duration;

use redrive_core::store::{
    Filter, Page, PageRequest, Retention, SearchPage, Stats, WakeToken, search_by_listing,
};
use redrive_core::{Job, JobId, Store, StoreError};

use super::{MutantStore, Mutation};

impl MutantStore {
    pub(super) async fn mutated_list(
        &self,
        filter: Filter,
        page: PageRequest,
    ) -> Result<Page<Job>, StoreError> {
        let filter = if self.mutation == Mutation::ListIgnoresTarget {
            Filter { target: None, finished_from: None, finished_before: None, ..filter }
        } else {
            filter
        };
        let mut listed = self.store.list(filter, page).await?;
        if self.mutation == Mutation::ListSkips && page.after.is_some() && !listed.items.is_empty() {
            listed.items.remove(0);
        }
        Ok(listed)
    }

    pub(super) async fn mutated_search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        let examined_max = if self.mutation == Mutation::SearchUnbounded { usize::MAX } else { examined_max };
        let mut found = search_by_listing(self, &filter, page, examined_max).await?;
        if self.mutation == Mutation::SearchEndsEarly && found.examined == examined_max {
            found.page.next = None;
        }
        Ok(found)
    }

    pub(super) async fn mutated_prune(
        &self,
        retention: Retention,
        limit: usize,
    ) -> Result<usize, StoreError> {
        if self.mutation == Mutation::PruneEarly {
            let early = Duration::from_millis(1);
            return self.store.step(|model, now| Ok(model.prune(retention, limit, now.after(early))));
        }
        if self.mutation == Mutation::PruneTakesChildren {
            self.store.step(|model, _| {
                let ids: Vec<JobId> = model.jobs().map(|job| job.id).collect();
                ids.into_iter().for_each(|id| model.tamper(id, |job| job.parent = None));
                Ok(())
            })?;
        }
        self.store.prune(retention, limit).await
    }

    pub(super) async fn mutated_wait(&self, seen: WakeToken) {
        if self.mutation == Mutation::WakeLost {
            return std::future::pending().await;
        }
        if self.mutation != Mutation::WakeAlways {
            self.store.wait(seen).await;
        }
    }

    pub(super) async fn mutated_wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        if self.mutation == Mutation::CancelWakesNobody && seen != WakeToken(u64::MAX) {
            return std::future::pending().await;
        }
        self.store.wait_for_cancel(seen).await
    }

    pub(super) async fn mutated_stats(&self) -> Result<Stats, StoreError> {
        let stats = self.store.stats().await?;
        if self.mutation == Mutation::StatsHideDue {
            return Ok(Stats { oldest_due: None, ..stats });
        }
        Ok(stats)
    }
}
