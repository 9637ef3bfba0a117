//! A store that fails on demand and remembers what it was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Change, Record, Written};
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::{
    Cancelled, ClaimRequest, Claimed, Discarded, Enqueued, Extended, Filter, Looked, Page, PageRequest,
    ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Unreadable, Wake,
};
use redrive_core::transfer::{Exported, Imported, Parcel, Promise, Slot};
use redrive_core::{
    Attempt, Invalid, Job, JobId, Lease, NewJob, Records, SignalName, Steps, Store, StoreError, Transfer,
};
use redrive_testkit::ModelStore;
use tokio::time::Instant;
use uuid::Uuid;

/// Makes an error.
pub(crate) type Fault = fn() -> StoreError;

/// A model with strings attached.
pub(crate) struct Rigged {
    /// The model behind, without strings.
    pub(crate) model: ModelStore,
    rig: Mutex<Rig>,
}

#[derive(Default)]
struct Rig {
    calls: Vec<Call>,
    faults: BTreeMap<&'static str, (usize, Fault)>,
    delays: BTreeMap<&'static str, Duration>,
    unreadable: BTreeSet<JobId>,
    illegal: BTreeSet<JobId>,
    locked: BTreeSet<JobId>,
}

/// One call of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The verb.
    pub(crate) verb: &'static str,
    /// When it came.
    pub(crate) at: Instant,
    /// How many items it brought or asked for.
    pub(crate) items: usize,
}

impl Rigged {
    pub(crate) fn new(model: ModelStore) -> Self {
        Self { model, rig: Mutex::default() }
    }

    /// Lets the next `times` calls of `verb` fail.
    pub(crate) fn fail(&self, verb: &'static str, times: usize, fault: Fault) {
        self.rig.lock().unwrap().faults.insert(verb, (times, fault));
    }

    /// Lets calls of `claim`, `settle` or `read` take this long; the first two have taken effect by then.
    pub(crate) fn delay(&self, verb: &'static str, delay: Duration) {
        self.rig.lock().unwrap().delays.insert(verb, delay);
    }

    /// Brings this job back as a row that cannot be read.
    pub(crate) fn garble(&self, id: JobId) {
        self.rig.lock().unwrap().unreadable.insert(id);
    }

    /// Refuses every batch in which this job is completed.
    pub(crate) fn forbid(&self, id: JobId) {
        self.rig.lock().unwrap().illegal.insert(id);
    }

    /// Lets every settlement of this job wait for a lock in vain.
    pub(crate) fn lock_row(&self, id: JobId) {
        self.rig.lock().unwrap().locked.insert(id);
    }

    /// Lets this job be settled again.
    pub(crate) fn unlock_row(&self, id: JobId) {
        self.rig.lock().unwrap().locked.remove(&id);
    }

    /// The calls of `verb` so far.
    pub(crate) fn calls(&self, verb: &str) -> Vec<Call> {
        let rig = self.rig.lock().unwrap();
        rig.calls.iter().filter(|call| call.verb == verb).copied().collect()
    }

    /// Every call so far.
    pub(crate) fn all_calls(&self) -> Vec<Call> {
        self.rig.lock().unwrap().calls.clone()
    }

    fn enter(&self, verb: &'static str, items: usize) -> Result<(), StoreError> {
        let mut rig = self.rig.lock().unwrap();
        rig.calls.push(Call { verb, at: Instant::now(), items });
        match rig.faults.get_mut(verb) {
            Some((times, fault)) if *times > 0 => {
                *times -= 1;
                Err(fault())
            }
            _ => Ok(()),
        }
    }

    async fn leave(&self, verb: &'static str) {
        let delay = self.rig.lock().unwrap().delays.get(verb).copied();
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
    }

    fn garbled(&self, mut claimed: Claimed) -> Claimed {
        let garbled = self.rig.lock().unwrap().unreadable.clone();
        let (bad, good) = claimed.jobs.into_iter().partition(|job| garbled.contains(&job.id));
        claimed.jobs = good;
        let bad: Vec<Job> = bad;
        let row = |job: Job| Unreadable {
            lease: job.lease(),
            run: job.run,
            attempt: job.attempt,
            problem: "column payload is not a blob".into(),
        };
        claimed.unreadable = bad.into_iter().map(row).collect();
        claimed
    }
}

#[async_trait]
impl Store for Rigged {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        self.enter("enqueue", jobs.len())?;
        self.model.enqueue(jobs).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        self.enter("claim", request.limit)?;
        let claimed = self.model.claim(request).await?;
        self.leave("claim").await;
        Ok(self.garbled(claimed))
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.enter("settle", settlements.len())?;
        let (illegal, locked) = {
            let rig = self.rig.lock().unwrap();
            (rig.illegal.clone(), rig.locked.clone())
        };
        if settlements.iter().any(|settlement| locked.contains(&settlement.lease.id)) {
            return Err(StoreError::Busy("lock timeout".into()));
        }
        let refused = |s: &Settlement| s.verdict.reason().is_none() && illegal.contains(&s.lease.id);
        if settlements.iter().any(refused) {
            return Err(Invalid::new("output", "is not to its liking").into());
        }
        let settled = self.model.settle(settlements).await;
        self.leave("settle").await;
        settled
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError> {
        self.enter("extend", leases.len())?;
        self.model.extend(leases, lease).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        self.enter("reclaim", request.limit)?;
        self.model.reclaim(request).await.map(|claimed| self.garbled(claimed))
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        self.enter("cancel", ids.len())?;
        self.model.cancel(ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        self.enter("redrive", ids.len())?;
        self.model.redrive(ids).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        self.enter("run_now", ids.len())?;
        self.model.run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        self.enter("discard", ids.len())?;
        self.model.discard(ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        self.enter("find", jobs.len())?;
        self.model.find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.enter("get", ids.len())?;
        self.model.get(ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.enter("list", page.limit)?;
        self.model.list(filter, page).await
    }

    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError> {
        self.enter("look", most)?;
        self.model.look(filter, page, most).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.enter("attempts", page.limit)?;
        self.model.attempts(id, page).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.enter("prune", limit)?;
        self.model.prune(retention, limit).await
    }

    async fn wait(&self, seen: Wake) {
        self.model.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        self.model.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.enter("stats", 0)?;
        self.model.stats().await
    }
}

#[async_trait]
impl Steps for Rigged {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.enter("recall", limit)?;
        self.model.recall(id, from, limit).await
    }

    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError> {
        self.enter("remember", memories.len())?;
        self.model.remember(memories).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
        self.enter("signal", signals.len())?;
        self.model.signal(signals).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.enter("pending_signals", limit)?;
        self.model.pending_signals(job, names, limit).await
    }

    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.enter("set_aside", signals.len())?;
        self.model.set_aside(lease, signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.enter("resume", ids.len())?;
        self.model.resume(ids).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
        self.enter("sweep", limit)?;
        self.model.sweep(after, limit).await
    }

    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.enter("hold", ids.len())?;
        self.model.hold(ids).await
    }

    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.enter("unhold", ids.len())?;
        self.model.unhold(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        self.enter("forget", ids.len())?;
        self.model.forget(ids).await
    }
}

#[async_trait]
impl Records for Rigged {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.leave("read").await;
        self.enter("read", 1)?;
        self.model.read(kind, id).await
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        self.enter("write", 1)?;
        self.model.write(change).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.enter("scan", limit)?;
        self.model.scan(kind, after, limit).await
    }
}

#[async_trait]
impl Transfer for Rigged {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        self.model.export(after, limit).await
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        self.model.import(parcels).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        self.model.export_records(after, limit).await
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        self.model.import_records(slots).await
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        self.model.export_promises(after, limit).await
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        self.model.import_promises(promises).await
    }
}
