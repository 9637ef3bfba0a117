//! The reference model as a store that workers can run on.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Change, Record, Written};
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::{
    Cancelled, ClaimRequest, Claimed, Discarded, Enqueued, Extended, Filter, Looked, Page, PageRequest,
    ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Wake, look_by_lists,
};
use redrive_core::transfer::{Exported, Imported, Parcel, Promise, Slot};
use redrive_core::{
    Attempt, Clock, Invalid, Job, JobId, Lease, NewJob, Records, SignalName, Steps, Store, StoreError,
    Timestamp, Transfer,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::model::Model;

/// A [`Model`] behind a lock, with a clock and wake-ups. Clones share their content.
#[derive(Debug, Clone)]
pub struct ModelStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    model: Mutex<Model>,
    clock: Arc<dyn Clock>,
    /// Wakes in the order of arrival, so that a simulation replays exactly; a watch channel would roll dice.
    woken: Notify,
    /// The same for requests to end a running job.
    cancel_requested: Notify,
}

impl ModelStore {
    /// An empty store that lives by `clock`.
    pub fn new(clock: impl Clock + 'static) -> Self {
        Self(Arc::new(Shared {
            model: Mutex::new(Model::new()),
            clock: Arc::new(clock),
            woken: Notify::new(),
            cancel_requested: Notify::new(),
        }))
    }

    /// Looks at the whole content.
    pub fn inspect<T>(&self, look: impl FnOnce(&Model) -> T) -> T {
        look(&self.0.model.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does one verb, and wakes who waits if the verb says so.
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
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        self.step(|model, now| model.enqueue(jobs, now))
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        self.step(|model, now| model.claim(&request, now))
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.step(|model, now| model.settle(settlements, now))
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError> {
        self.step(|model, now| model.extend(&leases, lease, now))
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        self.step(|model, now| model.reclaim(&request, now))
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        self.step(|model, now| model.cancel(&ids, now))
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        self.step(|model, now| model.redrive(&ids, now))
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        self.step(|model, now| model.run_now(&ids, now))
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        self.step(|model, now| model.discard(&ids, now))
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        self.step(|model, _| model.find(&jobs))
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.step(|model, _| model.get(&ids))
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.step(|model, _| model.list(&filter, page))
    }

    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError> {
        look_by_lists(self, &filter, page, most).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.step(|model, _| model.attempts(id, page))
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.step(|model, now| Ok(model.prune(retention, limit, now)))
    }

    async fn wait(&self, seen: Wake) {
        loop {
            let mut woken = pin!(self.0.woken.notified());
            // Enlisted before the look, so that what comes between them wakes too.
            woken.as_mut().enable();
            if self.inspect(Model::wake) != seen {
                return;
            }
            woken.await;
        }
    }

    async fn wait_for_cancel(&self, seen: Wake) -> Wake {
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

    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError> {
        self.step(|model, now| model.remember(memories, now))
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
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

    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.step(|model, _| model.set_aside(lease, &signals))
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.step(|model, now| model.resume(&ids, now))
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
        self.step(|model, now| model.sweep(after, limit, now))
    }

    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.step(|model, _| model.hold(&ids))
    }

    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.step(|model, now| model.unhold(&ids, now))
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        self.step(|model, _| model.forget(&ids))
    }
}

#[async_trait]
impl Records for ModelStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.step(|model, _| Ok(model.read(kind, id)))
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        self.step(|model, _| model.write(change))
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.step(|model, _| Ok(model.scan(kind, after, limit)))
    }
}

#[async_trait]
impl Transfer for ModelStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        self.step(|model, _| model.export(after, limit))
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        self.step(|model, now| model.import(parcels, now))
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        self.step(|model, _| Ok(model.export_records(after, limit)))
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        self.step(|model, _| model.import_records(slots))
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        self.step(|model, now| Ok(model.export_promises(after, limit, now)))
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        self.step(|model, now| model.import_promises(promises, now))
    }
}
