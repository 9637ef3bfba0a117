//! What a store holds when all is over.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Epoch, Job, JobId, PolicyRef, Queue, StoreError, Timestamp, catalog};

use crate::history::{Happening, History};

/// What a store holds when all is over.
#[derive(Debug, Clone, Default)]
pub struct End {
    /// Its time.
    pub now: Timestamp,
    /// Every job.
    pub jobs: BTreeMap<JobId, Job>,
    /// The epochs in each job's log.
    pub logs: BTreeMap<JobId, BTreeSet<Epoch>>,
    /// How many attempts each policy allows, as far as the store knows it.
    pub max_attempts: BTreeMap<PolicyRef, u32>,
    /// The ids of the records that pause queues.
    pub paused: BTreeSet<String>,
}

impl End {
    /// Reads a store to its end, with the policies that its jobs and `history` name.
    pub async fn of(store: &dyn Backend, history: &History) -> Result<Self, StoreError> {
        let mut end = Self { now: store.stats().await?.now, ..Self::default() };
        end.read_jobs(store).await?;
        let mut policies: BTreeSet<PolicyRef> = end.jobs.values().map(|job| job.policy.clone()).collect();
        policies.extend(history.all().into_iter().filter_map(|(_, happening)| policy(happening)));
        for reference in policies {
            if let Some(policy) = catalog::content(store, &reference).await? {
                end.max_attempts.insert(reference, policy.max_attempts.get());
            }
        }
        let paused = store.scan(PAUSED, None, PAGE_ITEMS_MAX).await?;
        end.paused = paused.into_iter().map(|record| record.id).collect();
        Ok(end)
    }

    pub(super) fn is_paused(&self, queue: &Queue) -> bool {
        self.paused.contains(EVERY_QUEUE) || self.paused.contains(queue.as_str())
    }

    async fn read_jobs(&mut self, store: &dyn Backend) -> Result<(), StoreError> {
        let mut page = PageRequest::first(PAGE_ITEMS_MAX);
        loop {
            let jobs = store.list(Filter::default(), page).await?;
            for job in jobs.items {
                self.read_log(store, job.id).await?;
                self.jobs.insert(job.id, job);
            }
            match jobs.next {
                Some(next) => page.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn read_log(&mut self, store: &dyn Backend, id: JobId) -> Result<(), StoreError> {
        let mut page = PageRequest::first(PAGE_ITEMS_MAX);
        loop {
            let attempts = store.attempts(id, page).await?;
            self.logs.entry(id).or_default().extend(attempts.items.iter().map(|attempt| attempt.epoch));
            match attempts.next {
                Some(next) => page.after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

fn policy(happening: Happening) -> Option<PolicyRef> {
    match happening {
        Happening::Leased(leased) => Some(leased.policy),
        Happening::Acknowledged(_)
        | Happening::Settled(_)
        | Happening::Started(_)
        | Happening::ShutOut(_)
        | Happening::Cancelled(_)
        | Happening::CancelRequested(_)
        | Happening::Redriven(_)
        | Happening::Discarded(_)
        | Happening::Pruned(_) => None,
    }
}
