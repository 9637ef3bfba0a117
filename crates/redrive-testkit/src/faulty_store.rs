//! A store that injects faults: calls fail before or after they take effect, are delayed, or lose a wake-up.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
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

/// How often each fault occurs, as fractions from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultRates {
    /// Calls that fail without any effect.
    pub fail_before: f64,
    /// Calls that fail after they have taken effect. The caller cannot distinguish them from calls without any effect.
    pub fail_after: f64,
    /// Calls that are delayed, before or after they take effect.
    pub delayed: f64,
    /// The longest delay.
    pub delay_max: Duration,
    /// Waits that miss their wake-up.
    pub lost_wakes: f64,
}

impl FaultRates {
    /// No faults.
    pub const NONE: Self =
        Self { fail_before: 0.0, fail_after: 0.0, delayed: 0.0, delay_max: Duration::ZERO, lost_wakes: 0.0 };
}

/// Controls the faults of one store, for all its users, and counts them.
#[derive(Debug, Default)]
pub struct FaultSwitch {
    faults_over: AtomicBool,
    down: AtomicBool,
    read_only: AtomicBool,
    faults: AtomicU64,
}

impl FaultSwitch {
    /// Ends all random faults for good.
    pub fn stop_faults(&self) {
        self.faults_over.store(true, Ordering::SeqCst);
    }

    /// Makes every call fail until it is called with `false`.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Makes every write fail until it is called with `false`, as a full disk does. Reads still work.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::SeqCst);
    }

    /// The number of random faults so far: failed calls, delays and lost wake-ups.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::SeqCst)
    }
}

/// Wraps a store and injects faults for one of its users.
pub struct FaultyStore {
    store: Arc<dyn Backend>,
    faults: FaultRates,
    switch: Arc<FaultSwitch>,
    rng: Mutex<Rng>,
}

impl FaultyStore {
    /// Injects faults at these rates, as drawn from `rng`, until `switch` ends them.
    pub fn new(store: Arc<dyn Backend>, faults: FaultRates, switch: Arc<FaultSwitch>, rng: Rng) -> Self {
        Self { store, faults, switch, rng: Mutex::new(rng) }
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.delay_sometimes().await;
        if self.switch.down.load(Ordering::SeqCst) || self.occurs(self.faults.fail_before) {
            return Err(self.error("nothing was done"));
        }
        let answer = call.await;
        self.delay_sometimes().await;
        if self.occurs(self.faults.fail_after) {
            return Err(self.error("the answer was lost"));
        }
        answer
    }

    /// A call that changes the store.
    async fn change<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        if self.switch.read_only.load(Ordering::SeqCst) {
            return Err(StoreError::Full("no space is left".into()));
        }
        self.call(call).await
    }

    fn occurs(&self, rate: f64) -> bool {
        let occurs = !self.switch.faults_over.load(Ordering::SeqCst) && self.draw(Rng::f64) < rate;
        if occurs {
            self.switch.faults.fetch_add(1, Ordering::SeqCst);
        }
        occurs
    }

    async fn delay_sometimes(&self) {
        if self.occurs(self.faults.delayed) {
            let share = self.draw(Rng::f64);
            tokio::time::sleep(self.faults.delay_max.mul_f64(share)).await;
        }
    }

    fn error(&self, what: &'static str) -> StoreError {
        if self.draw(Rng::bool) {
            StoreError::Unavailable(what.into())
        } else {
            StoreError::Busy(what.into())
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        self.change(self.store.enqueue(jobs)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.change(self.store.claim(request)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.change(self.store.settle(settlements)).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        self.change(self.store.extend(leases, lease)).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.change(self.store.reclaim(request)).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        self.change(self.store.cancel(ids)).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        self.change(self.store.redrive(ids)).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        self.change(self.store.run_now(ids)).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        self.change(self.store.discard(ids)).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        self.call(self.store.find(jobs)).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.call(self.store.get(ids)).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.call(self.store.list(filter, page)).await
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        self.call(self.store.search(filter, page, examined_max)).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.call(self.store.attempts(id, page)).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.change(self.store.prune(retention, limit)).await
    }

    async fn wait(&self, seen: WakeToken) {
        if self.occurs(self.faults.lost_wakes) {
            return std::future::pending().await;
        }
        self.store.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        if self.occurs(self.faults.lost_wakes) {
            return std::future::pending().await;
        }
        self.store.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.call(self.store.stats()).await
    }
}

#[async_trait]
impl Steps for FaultyStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.call(self.store.recall(id, from, limit)).await
    }

    async fn remember(&self, new_steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        self.change(self.store.remember(new_steps)).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        self.change(self.store.signal(signals)).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.call(self.store.pending_signals(job, names, limit)).await
    }

    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.change(self.store.skip_signals(lease, signals)).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.change(self.store.resume(ids)).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        self.change(self.store.sweep(after, limit)).await
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.change(self.store.pause(ids)).await
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.change(self.store.unpause(ids)).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        self.change(self.store.forget(ids)).await
    }
}

#[async_trait]
impl RecordStore for FaultyStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.call(self.store.read(kind, id)).await
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        self.change(self.store.write(change)).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.call(self.store.scan(kind, after, limit)).await
    }
}

#[async_trait]
impl Transfer for FaultyStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        self.call(self.store.export(after, limit)).await
    }

    async fn import(&self, snapshots: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        self.change(self.store.import(snapshots)).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        self.call(self.store.export_records(after, limit)).await
    }

    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        self.change(self.store.import_records(records)).await
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        self.call(self.store.export_reserved_keys(after, limit)).await
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        self.change(self.store.import_reserved_keys(keys)).await
    }
}
