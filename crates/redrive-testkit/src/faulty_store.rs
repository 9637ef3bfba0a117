//! A store that fails now and then: before it has done what it was asked, after it, late, or without a wake-up.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use redrive_core::records::{Change, Record, Written};
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::{
    Backend, Cancelled, ClaimRequest, Claimed, Discarded, Enqueued, Extended, Filter, Looked, Page,
    PageRequest, ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Wake,
};
use redrive_core::transfer::{Exported, Imported, Parcel, Promise, Slot};
use redrive_core::{
    Attempt, Job, JobId, Lease, NewJob, Records, SignalName, Steps, Store, StoreError, Transfer,
};
use uuid::Uuid;

/// How often calls go wrong, as shares from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// Calls that fail and have done nothing.
    pub before: f64,
    /// Calls that fail although they have done all: the caller cannot know.
    pub after: f64,
    /// Calls that are late, on the way there or back.
    pub late: f64,
    /// How late at most.
    pub late_by: Duration,
    /// Sleepers that are never woken.
    pub wakes_lost: f64,
}

impl Faults {
    /// None at all.
    pub const NONE: Self =
        Self { before: 0.0, after: 0.0, late: 0.0, late_by: Duration::ZERO, wakes_lost: 0.0 };
}

/// What all users of one store share: whether it is down, whether faults are over, and how many there were.
#[derive(Debug, Default)]
pub struct Weather {
    calm: AtomicBool,
    down: AtomicBool,
    read_only: AtomicBool,
    faults: AtomicU64,
}

impl Weather {
    /// Ends all faults for good.
    pub fn calm_down(&self) {
        self.calm.store(true, Ordering::SeqCst);
    }

    /// Makes every call fail until it is called with `false`.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Makes every write fail until it is called with `false`, as a full disk does: reads go on.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::SeqCst);
    }

    /// How many calls have failed or were late.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::SeqCst)
    }
}

/// Any store, as one user of it sees it in bad weather.
pub struct FaultyStore {
    store: Arc<dyn Backend>,
    faults: Faults,
    weather: Arc<Weather>,
    rng: Mutex<Rng>,
}

impl FaultyStore {
    /// Lets `faults` strike as `rng` draws them, unless `weather` is calm.
    pub fn new(store: Arc<dyn Backend>, faults: Faults, weather: Arc<Weather>, rng: Rng) -> Self {
        Self { store, faults, weather, rng: Mutex::new(rng) }
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.dawdle().await;
        if self.weather.down.load(Ordering::SeqCst) || self.strikes(self.faults.before) {
            return Err(self.error("nothing was done"));
        }
        let answer = call.await;
        self.dawdle().await;
        if self.strikes(self.faults.after) {
            return Err(self.error("the answer was lost"));
        }
        answer
    }

    /// A call that changes the store.
    async fn change<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        if self.weather.read_only.load(Ordering::SeqCst) {
            return Err(StoreError::Full("no space is left".into()));
        }
        self.call(call).await
    }

    fn strikes(&self, share: f64) -> bool {
        let strikes = !self.weather.calm.load(Ordering::SeqCst) && self.draw(Rng::f64) < share;
        if strikes {
            self.weather.faults.fetch_add(1, Ordering::SeqCst);
        }
        strikes
    }

    async fn dawdle(&self) {
        if self.strikes(self.faults.late) {
            let share = self.draw(Rng::f64);
            tokio::time::sleep(self.faults.late_by.mul_f64(share)).await;
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
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        self.change(self.store.enqueue(jobs)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        self.change(self.store.claim(request)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.change(self.store.settle(settlements)).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError> {
        self.change(self.store.extend(leases, lease)).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        self.change(self.store.reclaim(request)).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        self.change(self.store.cancel(ids)).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        self.change(self.store.redrive(ids)).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        self.change(self.store.run_now(ids)).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        self.change(self.store.discard(ids)).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        self.call(self.store.find(jobs)).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.call(self.store.get(ids)).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.call(self.store.list(filter, page)).await
    }

    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError> {
        self.call(self.store.look(filter, page, most)).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.call(self.store.attempts(id, page)).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.change(self.store.prune(retention, limit)).await
    }

    async fn wait(&self, seen: Wake) {
        if self.strikes(self.faults.wakes_lost) {
            return std::future::pending().await;
        }
        self.store.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        if self.strikes(self.faults.wakes_lost) {
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

    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError> {
        self.change(self.store.remember(memories)).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
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

    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.change(self.store.set_aside(lease, signals)).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.change(self.store.resume(ids)).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
        self.change(self.store.sweep(after, limit)).await
    }

    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.change(self.store.hold(ids)).await
    }

    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.change(self.store.unhold(ids)).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        self.change(self.store.forget(ids)).await
    }
}

#[async_trait]
impl Records for FaultyStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.call(self.store.read(kind, id)).await
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        self.change(self.store.write(change)).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.call(self.store.scan(kind, after, limit)).await
    }
}

#[async_trait]
impl Transfer for FaultyStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        self.call(self.store.export(after, limit)).await
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        self.change(self.store.import(parcels)).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        self.call(self.store.export_records(after, limit)).await
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        self.change(self.store.import_records(slots)).await
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        self.call(self.store.export_promises(after, limit)).await
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        self.change(self.store.import_promises(promises)).await
    }
}
