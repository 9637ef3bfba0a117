//! A store that records its answers in a history.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Record, RecordWrite, WriteResult};
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
};
use redrive_core::store::{
    Backend, CancelResult, ClaimRequest, ClaimedJobs, DiscardResult, EnqueueResult, ExtendResult, Filter,
    Page, PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage, SettleResult,
    Settlement, Stats, WakeToken,
};
use redrive_core::transfer::{ExportPage, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{
    Attempt, Job, JobId, Lease, NewJob, RecordStore, SignalName, Steps, Store, StoreError, Transfer,
};
use uuid::Uuid;

use crate::history::{self, GrantedLease, History, HistoryEvent, LeaseSource};

/// Wraps a store and records its answers in a [`History`].
#[derive(Clone)]
pub struct RecordingStore {
    store: Arc<dyn Backend>,
    history: History,
}

impl RecordingStore {
    /// Records the answers of `store` in `history`.
    pub fn new(store: Arc<dyn Backend>, history: History) -> Self {
        Self { store, history }
    }

    fn record_leases(&self, jobs: &[Job], source: LeaseSource) {
        for job in jobs {
            self.history.add(HistoryEvent::Leased(GrantedLease {
                lease: job.lease(),
                source,
                worker: job.worker.clone(),
                run: job.run,
                attempt: job.attempt,
                policy: job.policy.clone(),
            }));
        }
    }
}

/// The facts of a settlement that the history needs: the lease, the refund, and whether it has a log entry.
fn settlement_facts(settlement: &Settlement) -> (Lease, u32, bool) {
    (settlement.lease, settlement.verdict.effect().refund, settlement.entry.is_some())
}

/// The jobs without a key. An enqueue with a key may return another job.
fn without_key(jobs: &[NewJob]) -> Vec<JobId> {
    jobs.iter().filter(|job| job.idempotency.is_none() && job.unique.is_none()).map(|job| job.id).collect()
}

#[async_trait]
impl Store for RecordingStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        let answers = self.store.enqueue(jobs).await?;
        for answer in &answers {
            match answer {
                EnqueueResult::Created(id) | EnqueueResult::Existing(id) | EnqueueResult::Replaced(id) => {
                    self.history.add(HistoryEvent::Acknowledged(*id))
                }
                EnqueueResult::Conflict(_) => {}
            }
        }
        Ok(answers)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        let claimed = self.store.claim(request).await?;
        self.record_leases(&claimed.jobs, LeaseSource::Claim);
        Ok(claimed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        let facts: Vec<_> = settlements.iter().map(settlement_facts).collect();
        let follow_ups: Vec<Vec<JobId>> =
            settlements.iter().map(|settlement| without_key(&settlement.follow_ups)).collect();
        let answers = self.store.settle(settlements).await?;
        for (ids, answer) in follow_ups.into_iter().zip(&answers) {
            if matches!(answer, SettleResult::Applied(_)) {
                ids.into_iter().for_each(|id| self.history.add(HistoryEvent::Acknowledged(id)));
            }
        }
        for ((lease, refund, logged), answer) in facts.into_iter().zip(&answers) {
            self.history.add(match answer {
                SettleResult::Applied(led_to) => {
                    HistoryEvent::Settled(history::SettledAttempt { lease, led_to: *led_to, refund, logged })
                }
                SettleResult::LeaseLost => HistoryEvent::LeaseLost(lease),
            });
        }
        Ok(answers)
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        self.store.extend(leases, lease).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        let claimed = self.store.reclaim(request).await?;
        self.record_leases(&claimed.jobs, LeaseSource::Reclaim);
        Ok(claimed)
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        let answers = self.store.cancel(ids.clone()).await?;
        for (id, answer) in ids.into_iter().zip(&answers) {
            match answer {
                CancelResult::Done => self.history.add(HistoryEvent::Cancelled(id)),
                CancelResult::Requested => self.history.add(HistoryEvent::CancelRequested(id)),
                CancelResult::Ended(_) | CancelResult::NotFound => {}
            }
        }
        Ok(answers)
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        let answers = self.store.redrive(ids.clone()).await?;
        for (id, answer) in ids.into_iter().zip(&answers) {
            match answer {
                RedriveResult::Done => self.history.add(HistoryEvent::Redriven(id)),
                RedriveResult::NotDead(_) | RedriveResult::NotFound => {}
            }
        }
        Ok(answers)
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        self.store.run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        let answers = self.store.discard(ids.clone()).await?;
        for (id, answer) in ids.into_iter().zip(&answers) {
            match answer {
                DiscardResult::Done => self.history.add(HistoryEvent::Discarded(id)),
                DiscardResult::NotDead(_) | DiscardResult::NotFound => {}
            }
        }
        Ok(answers)
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        self.store.find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.store.get(ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.store.list(filter, page).await
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        self.store.search(filter, page, examined_max).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.store.attempts(id, page).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        let count = self.store.prune(retention, limit).await?;
        if count > 0 {
            self.history.add(HistoryEvent::Pruned(count));
        }
        Ok(count)
    }

    async fn wait(&self, seen: WakeToken) {
        self.store.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.store.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats().await
    }
}

#[async_trait]
impl Steps for RecordingStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.store.recall(id, from, limit).await
    }

    async fn remember(&self, new_steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        let children: Vec<Vec<JobId>> =
            new_steps.iter().map(|new_step| without_key(&new_step.children)).collect();
        let answers = self.store.remember(new_steps).await?;
        for (ids, answer) in children.into_iter().zip(&answers) {
            if matches!(answer, RememberResult::Stored(_)) {
                ids.into_iter().for_each(|id| self.history.add(HistoryEvent::Acknowledged(id)));
            }
        }
        Ok(answers)
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        self.store.signal(signals).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.store.pending_signals(job, names, limit).await
    }

    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.store.skip_signals(lease, signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.store.resume(ids).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        self.store.sweep(after, limit).await
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.store.pause(ids).await
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.store.unpause(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        self.store.forget(ids).await
    }
}

#[async_trait]
impl RecordStore for RecordingStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.store.read(kind, id).await
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        self.store.write(change).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.store.scan(kind, after, limit).await
    }
}

#[async_trait]
impl Transfer for RecordingStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        self.store.export(after, limit).await
    }

    async fn import(&self, snapshots: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        self.store.import(snapshots).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        self.store.export_records(after, limit).await
    }

    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        self.store.import_records(records).await
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        self.store.export_reserved_keys(after, limit).await
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        self.store.import_reserved_keys(keys).await
    }
}
