//! A store that fails on demand and records its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Record, RecordWrite, WriteResult};
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
};
use redrive_core::store::{
    CancelResult, ClaimRequest, ClaimedJobs, DiscardResult, EnqueueResult, ExtendResult, Filter, Page,
    PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage, SettleResult,
    Settlement, Stats, UnreadableJob, WakeToken,
};
use redrive_core::transfer::{ExportPage, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{
    Attempt, Invalid, Job, JobId, Lease, NewJob, RecordStore, SignalName, Steps, Store, StoreError, Transfer,
};
use redrive_testkit::ModelStore;
use tokio::time::Instant;
use uuid::Uuid;

/// Creates an error.
pub(crate) type Fault = fn() -> StoreError;

/// A model store with injected faults and delays.
pub(crate) struct FaultyStore {
    /// The model behind it. Calls to it are neither recorded nor disturbed.
    pub(crate) model: ModelStore,
    state: Mutex<FaultState>,
}

#[derive(Default)]
struct FaultState {
    calls: Vec<Call>,
    faults: BTreeMap<&'static str, (usize, Fault)>,
    delays: BTreeMap<&'static str, Duration>,
    unreadable: BTreeSet<JobId>,
    invalid: BTreeSet<JobId>,
    locked: BTreeSet<JobId>,
}

/// One recorded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The name of the method.
    pub(crate) verb: &'static str,
    /// When the call arrived.
    pub(crate) at: Instant,
    /// The number of items in the request, or its limit.
    pub(crate) items: usize,
}

impl FaultyStore {
    pub(crate) fn new(model: ModelStore) -> Self {
        Self { model, state: Mutex::default() }
    }

    /// Makes the next `times` calls of `verb` fail.
    pub(crate) fn fail(&self, verb: &'static str, times: usize, fault: Fault) {
        self.state.lock().unwrap().faults.insert(verb, (times, fault));
    }

    /// Delays the answers of `claim`, `settle` or `read`. A delayed claim or settle has taken effect before the delay.
    pub(crate) fn delay(&self, verb: &'static str, delay: Duration) {
        self.state.lock().unwrap().delays.insert(verb, delay);
    }

    /// Makes claims return this job as a damaged row.
    pub(crate) fn damage(&self, id: JobId) {
        self.state.lock().unwrap().unreadable.insert(id);
    }

    /// Rejects every batch that completes this job as invalid.
    pub(crate) fn reject_completion(&self, id: JobId) {
        self.state.lock().unwrap().invalid.insert(id);
    }

    /// Makes every settlement of this job fail with a lock timeout.
    pub(crate) fn lock_row(&self, id: JobId) {
        self.state.lock().unwrap().locked.insert(id);
    }

    /// Allows settlements of this job again.
    pub(crate) fn unlock_row(&self, id: JobId) {
        self.state.lock().unwrap().locked.remove(&id);
    }

    /// Returns the calls of `verb` so far.
    pub(crate) fn calls(&self, verb: &str) -> Vec<Call> {
        let state = self.state.lock().unwrap();
        state.calls.iter().filter(|call| call.verb == verb).copied().collect()
    }

    /// Returns all calls so far.
    pub(crate) fn all_calls(&self) -> Vec<Call> {
        self.state.lock().unwrap().calls.clone()
    }

    /// Records a call, and fails it if a fault is set.
    fn record_call(&self, verb: &'static str, items: usize) -> Result<(), StoreError> {
        let mut state = self.state.lock().unwrap();
        state.calls.push(Call { verb, at: Instant::now(), items });
        match state.faults.get_mut(verb) {
            Some((times, fault)) if *times > 0 => {
                *times -= 1;
                Err(fault())
            }
            _ => Ok(()),
        }
    }

    async fn sleep_for_delay(&self, verb: &'static str) {
        let delay = self.state.lock().unwrap().delays.get(verb).copied();
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
    }

    fn damage_rows(&self, mut claimed: ClaimedJobs) -> ClaimedJobs {
        let damaged_ids = self.state.lock().unwrap().unreadable.clone();
        let (damaged, intact): (Vec<Job>, Vec<Job>) =
            claimed.jobs.into_iter().partition(|job| damaged_ids.contains(&job.id));
        claimed.jobs = intact;
        let row = |job: Job| UnreadableJob {
            lease: job.lease(),
            run: job.run,
            attempt: job.attempt,
            problem: "column payload is not a blob".into(),
        };
        claimed.unreadable = damaged.into_iter().map(row).collect();
        claimed
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        self.record_call("enqueue", jobs.len())?;
        self.model.enqueue(jobs).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.record_call("claim", request.limit)?;
        let claimed = self.model.claim(request).await?;
        self.sleep_for_delay("claim").await;
        Ok(self.damage_rows(claimed))
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.record_call("settle", settlements.len())?;
        let (invalid, locked) = {
            let state = self.state.lock().unwrap();
            (state.invalid.clone(), state.locked.clone())
        };
        if settlements.iter().any(|settlement| locked.contains(&settlement.lease.id)) {
            return Err(StoreError::Busy("lock timeout".into()));
        }
        let refused = |s: &Settlement| s.verdict.reason().is_none() && invalid.contains(&s.lease.id);
        if settlements.iter().any(refused) {
            return Err(Invalid::new("output", "is not accepted").into());
        }
        let settled = self.model.settle(settlements).await;
        self.sleep_for_delay("settle").await;
        settled
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        self.record_call("extend", leases.len())?;
        self.model.extend(leases, lease).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.record_call("reclaim", request.limit)?;
        self.model.reclaim(request).await.map(|claimed| self.damage_rows(claimed))
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        self.record_call("cancel", ids.len())?;
        self.model.cancel(ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        self.record_call("redrive", ids.len())?;
        self.model.redrive(ids).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        self.record_call("run_now", ids.len())?;
        self.model.run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        self.record_call("discard", ids.len())?;
        self.model.discard(ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        self.record_call("find", jobs.len())?;
        self.model.find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.record_call("get", ids.len())?;
        self.model.get(ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.record_call("list", page.limit)?;
        self.model.list(filter, page).await
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        self.record_call("search", examined_max)?;
        self.model.search(filter, page, examined_max).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.record_call("attempts", page.limit)?;
        self.model.attempts(id, page).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.record_call("prune", limit)?;
        self.model.prune(retention, limit).await
    }

    async fn wait(&self, seen: WakeToken) {
        self.model.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.model.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.record_call("stats", 0)?;
        self.model.stats().await
    }
}

#[async_trait]
impl Steps for FaultyStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.record_call("recall", limit)?;
        self.model.recall(id, from, limit).await
    }

    async fn remember(&self, steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        self.record_call("remember", steps.len())?;
        self.model.remember(steps).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        self.record_call("signal", signals.len())?;
        self.model.signal(signals).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.record_call("pending_signals", limit)?;
        self.model.pending_signals(job, names, limit).await
    }

    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.record_call("skip_signals", signals.len())?;
        self.model.skip_signals(lease, signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.record_call("resume", ids.len())?;
        self.model.resume(ids).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        self.record_call("sweep", limit)?;
        self.model.sweep(after, limit).await
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.record_call("pause", ids.len())?;
        self.model.pause(ids).await
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.record_call("unpause", ids.len())?;
        self.model.unpause(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        self.record_call("forget", ids.len())?;
        self.model.forget(ids).await
    }
}

#[async_trait]
impl RecordStore for FaultyStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.sleep_for_delay("read").await;
        self.record_call("read", 1)?;
        self.model.read(kind, id).await
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        self.record_call("write", 1)?;
        self.model.write(change).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.record_call("scan", limit)?;
        self.model.scan(kind, after, limit).await
    }
}

#[async_trait]
impl Transfer for FaultyStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        self.model.export(after, limit).await
    }

    async fn import(&self, jobs: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        self.model.import(jobs).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        self.model.export_records(after, limit).await
    }

    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        self.model.import_records(records).await
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        self.model.export_reserved_keys(after, limit).await
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        self.model.import_reserved_keys(keys).await
    }
}
