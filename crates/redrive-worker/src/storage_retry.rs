//! A store that retries its calls: claims by the dequeue policy, the calls that follow a claim by the storage policy.

use std::borrow::Cow;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::policy::presets;
use redrive_core::records::{Record, RecordStore, RecordWrite, WriteResult};
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
};
use redrive_core::store::{
    Backend, CancelResult, ClaimRequest, ClaimedJobs, DiscardResult, EnqueueResult, ExtendResult, Filter,
    Page, PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage, SettleResult,
    Settlement, Stats, Store, StoreError, WakeToken,
};
use redrive_core::transfer::{ExportPage, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{Attempt, Job, JobId, Lease, NewJob, Policy, SignalName, Steps, Transfer};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::engine::lock;
use crate::handler::Settler;
use crate::observe::{Observer, Observers};
use crate::retry::retry;

/// How often a call is tried before its error is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryMode {
    /// As often as the storage policy allows.
    StoragePolicy,
    /// Once: the caller retries by itself.
    Once,
}

/// Wraps a store and hides transient failures from its caller.
///
/// The dequeue policy applies to claim. The storage policy applies to settle, extend, reclaim, prune, recall, remember, resume,
/// sweep, pending_signals and skip_signals. All other calls are passed on without retries. The policies of jobs play no part here.
pub struct RetryingStore {
    inner: Arc<dyn Backend>,
    storage: Policy,
    dequeue: Policy,
    cancel: CancellationToken,
    seeds: Mutex<fastrand::Rng>,
    observer: Arc<dyn Observer>,
}

impl RetryingStore {
    /// Wraps `inner` with these policies.
    pub fn new(inner: Arc<dyn Backend>, storage: Policy, dequeue: Policy) -> Self {
        Self {
            inner,
            storage,
            dequeue,
            cancel: CancellationToken::new(),
            seeds: Mutex::new(fastrand::Rng::new()),
            observer: Arc::new(Observers::default()),
        }
    }

    /// When `token` is cancelled, ends every wait at once and returns the last error.
    pub fn cancel_on(self, token: CancellationToken) -> Self {
        Self { cancel: token, ..self }
    }

    /// Draws jitter from `seed`.
    pub fn with_seed(self, seed: u64) -> Self {
        let seeds = Mutex::new(fastrand::Rng::with_seed(seed));
        Self { seeds, ..self }
    }

    /// Reports the duration of each call to `observer`, including its retries.
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Settles like [`Store::settle`], but borrows the settlements, for a caller that needs them after a failure.
    pub async fn settle_all(&self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        self.settle_with_mode(RetryMode::StoragePolicy, settlements).await
    }

    pub(crate) async fn settle_with_mode(
        &self,
        mode: RetryMode,
        settlements: &[Settlement],
    ) -> Result<Vec<SettleResult>, StoreError> {
        let op = || self.inner.settle(settlements.to_vec());
        self.call_with_retry("settle", Vec::len, &self.policy_for(mode), op).await
    }

    /// Settles through a handler's settler.
    pub(crate) async fn settle_with_settler(
        &self,
        settler: &dyn Settler,
        mode: RetryMode,
        jobs: &[Arc<Job>],
        settlements: &[Settlement],
    ) -> Result<Vec<SettleResult>, StoreError> {
        let op = || settler.settle(jobs, settlements);
        self.call_with_retry("settle", Vec::len, &self.policy_for(mode), op).await
    }

    fn policy_for(&self, mode: RetryMode) -> Cow<'_, Policy> {
        match mode {
            RetryMode::StoragePolicy => Cow::Borrowed(&self.storage),
            RetryMode::Once => Cow::Owned(presets::once()),
        }
    }

    /// Calls `op` with retries, and reports the call to the observer.
    async fn call_with_retry<Op, Fut, T>(
        &self,
        verb: &'static str,
        items: fn(&T) -> usize,
        policy: &Policy,
        op: Op,
    ) -> Result<T, StoreError>
    where
        Op: FnMut() -> Fut,
        Fut: Future<Output = Result<T, StoreError>>,
    {
        let seed = lock(&self.seeds).u64(..);
        let began = Instant::now();
        let result = retry(policy, op)
            .when(StoreError::is_transient)
            .notify(
                |error, wait| tracing::debug!(verb, ?wait, %error, "the store failed: the call is retried"),
            )
            .cancel_on(self.cancel.clone())
            .seed(seed)
            .await;
        let count = result.as_ref().map_or(0, items);
        self.observer.store_call(verb, count, began.elapsed(), result.is_ok());
        result
    }
}

fn count_jobs(claimed: &ClaimedJobs) -> usize {
    claimed.jobs.len() + claimed.unreadable.len()
}

#[async_trait]
impl Store for RetryingStore {
    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.call_with_retry("claim", count_jobs, &self.dequeue, || self.inner.claim(request.clone())).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.settle_all(&settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        self.call_with_retry("extend", Vec::len, &self.storage, || self.inner.extend(leases.clone(), lease))
            .await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.call_with_retry("reclaim", count_jobs, &self.storage, || self.inner.reclaim(request.clone()))
            .await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.call_with_retry("prune", |count| *count, &self.storage, || self.inner.prune(retention, limit))
            .await
    }

    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        self.inner.enqueue(jobs).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        self.inner.cancel(ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        self.inner.redrive(ids).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        self.inner.run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        self.inner.discard(ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        self.inner.find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.inner.get(ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.inner.list(filter, page).await
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        self.inner.search(filter, page, examined_max).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.inner.attempts(id, page).await
    }

    async fn wait(&self, seen: WakeToken) {
        self.inner.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.inner.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.inner.stats().await
    }
}

#[async_trait]
impl Steps for RetryingStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.call_with_retry("recall", Vec::len, &self.storage, || self.inner.recall(id, from, limit)).await
    }

    async fn remember(&self, steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        self.call_with_retry("remember", Vec::len, &self.storage, || self.inner.remember(steps.clone())).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.call_with_retry("resume", Vec::len, &self.storage, || self.inner.resume(ids.clone())).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        let resumed = |page: &SweepResult| page.resumed.len();
        self.call_with_retry("sweep", resumed, &self.storage, || self.inner.sweep(after, limit)).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        let call = || self.inner.pending_signals(job, names.clone(), limit);
        self.call_with_retry("pending_signals", Vec::len, &self.storage, call).await
    }

    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        let call = || self.inner.skip_signals(lease, signals.clone());
        self.call_with_retry("skip_signals", |_| 1, &self.storage, call).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        self.inner.signal(signals).await
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.inner.pause(ids).await
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.inner.unpause(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        self.inner.forget(ids).await
    }
}

#[async_trait]
impl RecordStore for RetryingStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.inner.read(kind, id).await
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        self.inner.write(change).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.inner.scan(kind, after, limit).await
    }
}

#[async_trait]
impl Transfer for RetryingStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        self.inner.export(after, limit).await
    }

    async fn import(&self, jobs: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        self.inner.import(jobs).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        self.inner.export_records(after, limit).await
    }

    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        self.inner.import_records(records).await
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        self.inner.export_reserved_keys(after, limit).await
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        self.inner.import_reserved_keys(keys).await
    }
}
