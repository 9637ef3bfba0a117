//! A store that is asked again: storage retry for what follows a claim, dequeue retry for the claim itself.

use std::borrow::Cow;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::policy::presets;
use redrive_core::records::{Change, Record, Records, Written};
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::{
    Backend, Cancelled, ClaimRequest, Claimed, Discarded, Enqueued, Extended, Filter, Looked, Page,
    PageRequest, ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Store, StoreError,
    Wake,
};
use redrive_core::transfer::{Exported, Imported, Parcel, Promise, Slot};
use redrive_core::{Attempt, Job, JobId, Lease, NewJob, Policy, SignalName, Steps, Transfer};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::handler::Settler;
use crate::hold::lock;
use crate::observe::{Observer, Observers};
use crate::retry::retry;

/// How often the store is asked before a failure is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tries {
    /// As often as the storage policy says.
    ByPolicy,
    /// Once: the caller has a wait of its own.
    One,
}

/// Wraps a store so that failures that may pass are not seen by its caller.
///
/// Settle, extend, reclaim, prune, recall, remember, resume and sweep are retried by the storage policy, claim by the
/// dequeue policy; everything else is passed on. It knows nothing of the jobs' own policies.
pub struct RetryingStore {
    inner: Arc<dyn Backend>,
    storage: Policy,
    dequeue: Policy,
    cancel: CancellationToken,
    seeds: Mutex<fastrand::Rng>,
    observer: Arc<dyn Observer>,
}

impl RetryingStore {
    /// Wraps `inner`.
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

    /// Ends every wait at once when `token` is cancelled, with the last error.
    pub fn cancel_on(self, token: CancellationToken) -> Self {
        Self { cancel: token, ..self }
    }

    /// Draws jitter from `seed`.
    pub fn with_seed(self, seed: u64) -> Self {
        let seeds = Mutex::new(fastrand::Rng::with_seed(seed));
        Self { seeds, ..self }
    }

    /// Tells `observer` how long each verb took, its retries included.
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Settles without taking the settlements away, for a caller that must look at them again when it fails.
    pub async fn settle_all(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.settle_by(Tries::ByPolicy, settlements).await
    }

    /// The same, with as many tries as asked for.
    pub(crate) async fn settle_by(
        &self,
        tries: Tries,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        let op = || self.inner.settle(settlements.to_vec());
        self.again("settle", Vec::len, &self.storage_tries(tries), op).await
    }

    /// Settles through what settles in the store's place.
    pub(crate) async fn settle_through(
        &self,
        settler: &dyn Settler,
        tries: Tries,
        jobs: &[Arc<Job>],
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        let op = || settler.settle(jobs, settlements);
        self.again("settle", Vec::len, &self.storage_tries(tries), op).await
    }

    fn storage_tries(&self, tries: Tries) -> Cow<'_, Policy> {
        match tries {
            Tries::ByPolicy => Cow::Borrowed(&self.storage),
            Tries::One => Cow::Owned(presets::once()),
        }
    }

    async fn again<Op, Fut, T>(
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
        let answer = retry(policy, op)
            .when(StoreError::may_pass)
            .notify(|error, wait| tracing::debug!(verb, ?wait, %error, "store failed, trying again"))
            .cancel_on(self.cancel.clone())
            .seed(seed)
            .await;
        let count = answer.as_ref().map_or(0, items);
        self.observer.store_call(verb, count, began.elapsed(), answer.is_ok());
        answer
    }
}

fn leased(claimed: &Claimed) -> usize {
    claimed.jobs.len() + claimed.unreadable.len()
}

#[async_trait]
impl Store for RetryingStore {
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        self.again("claim", leased, &self.dequeue, || self.inner.claim(request.clone())).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.settle_all(&settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError> {
        self.again("extend", Vec::len, &self.storage, || self.inner.extend(leases.clone(), lease)).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        self.again("reclaim", leased, &self.storage, || self.inner.reclaim(request.clone())).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.again("prune", |count| *count, &self.storage, || self.inner.prune(retention, limit)).await
    }

    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        self.inner.enqueue(jobs).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        self.inner.cancel(ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        self.inner.redrive(ids).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        self.inner.run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        self.inner.discard(ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        self.inner.find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.inner.get(ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.inner.list(filter, page).await
    }

    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError> {
        self.inner.look(filter, page, most).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.inner.attempts(id, page).await
    }

    async fn wait(&self, seen: Wake) {
        self.inner.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        self.inner.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.inner.stats().await
    }
}

#[async_trait]
impl Steps for RetryingStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.again("recall", Vec::len, &self.storage, || self.inner.recall(id, from, limit)).await
    }

    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError> {
        self.again("remember", Vec::len, &self.storage, || self.inner.remember(memories.clone())).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.again("resume", Vec::len, &self.storage, || self.inner.resume(ids.clone())).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
        let resumed = |swept: &Swept| swept.resumed.len();
        self.again("sweep", resumed, &self.storage, || self.inner.sweep(after, limit)).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        let call = || self.inner.pending_signals(job, names.clone(), limit);
        self.again("pending_signals", Vec::len, &self.storage, call).await
    }

    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        let call = || self.inner.set_aside(lease, signals.clone());
        self.again("set_aside", |_| 1, &self.storage, call).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
        self.inner.signal(signals).await
    }

    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.inner.hold(ids).await
    }

    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.inner.unhold(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        self.inner.forget(ids).await
    }
}

#[async_trait]
impl Records for RetryingStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.inner.read(kind, id).await
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        self.inner.write(change).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.inner.scan(kind, after, limit).await
    }
}

#[async_trait]
impl Transfer for RetryingStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        self.inner.export(after, limit).await
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        self.inner.import(parcels).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        self.inner.export_records(after, limit).await
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        self.inner.import_records(slots).await
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        self.inner.export_promises(after, limit).await
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        self.inner.import_promises(promises).await
    }
}
