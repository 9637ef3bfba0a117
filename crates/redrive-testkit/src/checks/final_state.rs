//! The content of a store at the end of a test.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::records::{EVERY_QUEUE, PAUSED};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Epoch, Job, JobId, PolicyRef, Queue, StoreError, Timestamp, catalog};

use crate::history::{History, HistoryEvent};

/// The content of a store at the end of a test.
#[derive(Debug, Clone, Default)]
pub struct FinalState {
    /// The time of the store.
    pub now: Timestamp,
    /// Every job.
    pub jobs: BTreeMap<JobId, Job>,
    /// The epochs in the attempt log of each job.
    pub logs: BTreeMap<JobId, BTreeSet<Epoch>>,
    /// How many attempts each policy allows, for the policies that the store has.
    pub max_attempts: BTreeMap<PolicyRef, u32>,
    /// The ids of the records that pause queues.
    pub paused: BTreeSet<String>,
}

impl FinalState {
    /// Reads all of a store, with the policies that its jobs and `history` refer to.
    pub async fn read(store: &dyn Backend, history: &History) -> Result<Self, StoreError> {
        let mut end = Self { now: store.stats().await?.now, ..Self::default() };
        end.read_jobs(store).await?;
        let mut policies: BTreeSet<PolicyRef> = end.jobs.values().map(|job| job.policy.clone()).collect();
        policies.extend(history.all().into_iter().filter_map(|(_, event)| policy(event)));
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

fn policy(event: HistoryEvent) -> Option<PolicyRef> {
    match event {
        HistoryEvent::Leased(leased) => Some(leased.policy),
        HistoryEvent::Acknowledged(_)
        | HistoryEvent::Settled(_)
        | HistoryEvent::Started(_)
        | HistoryEvent::LeaseLost(_)
        | HistoryEvent::Cancelled(_)
        | HistoryEvent::CancelRequested(_)
        | HistoryEvent::Redriven(_)
        | HistoryEvent::Discarded(_)
        | HistoryEvent::Pruned(_) => None,
    }
}
