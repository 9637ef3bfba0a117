//! The reference model as a store that workers can use.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Record, RecordWrite, WriteResult};
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
};
use redrive_core::store::{
    CancelResult, ClaimRequest, ClaimedJobs, DiscardResult, EnqueueResult, ExtendResult, Filter, Page,
    PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage, SettleResult,
    Settlement, Stats, WakeToken, search_by_listing,
};
use redrive_core::transfer::{ExportPage, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{
    Attempt, Clock, Invalid, Job, JobId, Lease, NewJob, RecordStore, SignalName, Steps, Store, StoreError,
    Timestamp, Transfer,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::model::Model;

/// A [`Model`] behind a lock, with a clock and wake-ups. Clones share the content.
#[derive(Debug, Clone)]
pub struct ModelStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    model: Mutex<Model>,
    clock: Arc<dyn Clock>,
    /// Wakes waiters in the order of their arrival, so that a simulation can be replayed; a watch channel wakes in
    /// random order.
    woken: Notify,
    /// Wakes waiters for requested cancels, in the same order.
    cancel_requested: Notify,
}

impl ModelStore {
    /// An empty store that uses `clock`.
    pub fn new(clock: impl Clock + 'static) -> Self {
        Self::with_model(Model::new(), clock)
    }

    /// An empty store that uses `clock` and puts the number of each claim into its epochs.
    pub fn with_claim_numbers(clock: impl Clock + 'static) -> Self {
        Self::with_model(Model::with_claim_numbers(), clock)
    }

    fn with_model(model: Model, clock: impl Clock + 'static) -> Self {
        Self(Arc::new(Shared {
            model: Mutex::new(model),
            clock: Arc::new(clock),
            woken: Notify::new(),
            cancel_requested: Notify::new(),
        }))
    }

    /// Reads the whole content.
    pub fn inspect<T>(&self, read: impl FnOnce(&Model) -> T) -> T {
        read(&self.0.model.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes one call, and wakes waiters if the call may have made a job claimable.
    pub(crate) fn step<T>(
        &self,
        verb: impl FnOnce(&mut Model, Timestamp) -> Result<T, Invalid>,
    ) -> Result<T, StoreError> {
        let mut model = self.0.model.lock().unwrap_or_else(PoisonError::into_inner);
        let (wake, cancels) = (model.wake(), model.cancels());
        let result = verb(&mut model, self.0.clock.now());
        if model.wake() != wake {
            self.0.woken.notify_waiters();
        }
        if model.cancels() != cancels {
            self.0.cancel_requested.notify_waiters();
        }
        Ok(result?)
    }
}

#[async_trait]
impl Store for ModelStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        self.step(|model, now| model.enqueue(jobs, now))
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.step(|model, now| model.claim(&request, now))
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.step(|model, now| model.settle(settlements, now))
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        self.step(|model, now| model.extend(&leases, lease, now))
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.step(|model, now| model.reclaim(&request, now))
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        self.step(|model, now| model.cancel(&ids, now))
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        self.step(|model, now| model.redrive(&ids, now))
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        self.step(|model, now| model.run_now(&ids, now))
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        self.step(|model, now| model.discard(&ids, now))
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        self.step(|model, _| model.find(&jobs))
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.step(|model, _| model.get(&ids))
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.step(|model, _| model.list(&filter, page))
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        search_by_listing(self, &filter, page, examined_max).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.step(|model, _| model.attempts(id, page))
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.step(|model, now| Ok(model.prune(retention, limit, now)))
    }

    async fn wait(&self, seen: WakeToken) {
        loop {
            let mut woken = pin!(self.0.woken.notified());
            // Registered before the check, so that a change between the two wakes this waiter.
            woken.as_mut().enable();
            if self.inspect(Model::wake) != seen {
                return;
            }
            woken.await;
        }
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        loop {
            let mut requested = pin!(self.0.cancel_requested.notified());
            requested.as_mut().enable();
            let cancels = self.inspect(Model::cancels);
            if cancels != seen {
                return cancels;
            }
            requested.await;
        }
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.step(|model, now| Ok(model.stats(now)))
    }
}

#[async_trait]
impl Steps for ModelStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.step(|model, _| Ok(model.recall(id, from, limit)))
    }

    async fn remember(&self, new_steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        self.step(|model, now| model.remember(new_steps, now))
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        self.step(|model, _| model.signal(signals))
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.step(|model, _| Ok(model.pending_signals(job, &names, limit)))
    }

    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.step(|model, _| model.skip_signals(lease, &signals))
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.step(|model, now| model.resume(&ids, now))
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        self.step(|model, now| model.sweep(after, limit, now))
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.step(|model, _| model.pause(&ids))
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.step(|model, now| model.unpause(&ids, now))
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        self.step(|model, _| model.forget(&ids))
    }
}

#[async_trait]
impl RecordStore for ModelStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.step(|model, _| Ok(model.read(kind, id)))
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        self.step(|model, _| model.write(change))
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.step(|model, _| Ok(model.scan(kind, after, limit)))
    }
}

#[async_trait]
impl Transfer for ModelStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        self.step(|model, _| model.export(after, limit))
    }

    async fn import(&self, snapshots: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        self.step(|model, now| model.import(snapshots, now))
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        self.step(|model, _| Ok(model.export_records(after, limit)))
    }

    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        self.step(|model, _| model.import_records(records))
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        self.step(|model, now| Ok(model.export_reserved_keys(after, limit, now)))
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        self.step(|model, now| model.import_reserved_keys(keys, now))
    }
}
