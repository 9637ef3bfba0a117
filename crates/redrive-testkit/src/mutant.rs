//! Stores that each break one guarantee, to prove that the suites can fail.

mod claim;
mod enqueue;
mod operate;
mod read;
mod settle;
mod steps;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::{
    Cancelled, ClaimRequest, Claimed, Discarded, Enqueued, Extended, Filter, Looked, Page, PageRequest,
    ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Wake,
};
use redrive_core::transfer::{Exported, Imported, Parcel, Promise, Slot};
use redrive_core::{
    Attempt, Job, JobId, Lease, NewJob, Records, SignalName, Steps, Store, StoreError, Transfer,
};
use uuid::Uuid;

use crate::model_store::ModelStore;

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Every fifth enqueue is acknowledged and forgotten.
    EnqueueForgets,
    /// Keys mean nothing.
    KeyIgnored,
    /// Unique keys mean nothing.
    UniqueIgnored,
    /// A key means the same whatever is asked for under it.
    FingerprintIgnored,
    /// A look for the holder of a key never finds one.
    FindBlind,
    /// What stands before an illegal job is added.
    BatchHalfApplied,
    /// A claim charges no attempt.
    ClaimFree,
    /// A claim raises no epoch.
    ClaimKeepsEpoch,
    /// A claim takes jobs a millisecond before they are due.
    ClaimEarly,
    /// A job's own lease is ignored.
    OwnLeaseIgnored,
    /// A claim takes the least urgent first.
    ClaimUnordered,
    /// A claim takes one more than it may.
    ClaimOverLimit,
    /// Every third claim leaves its jobs where they were.
    ClaimShared,
    /// Paused queues are claimed from.
    PauseIgnored,
    /// Quotas mean nothing.
    QuotaIgnored,
    /// Strict order means nothing.
    OrderIgnored,
    /// Nobody gets a turn that has become free.
    TurnLost,
    /// A claim does not say when the next job is due.
    NextDueForgotten,
    /// Any lease may settle.
    SettleUnfenced,
    /// A lease that has ended its job may end it again.
    SettleAgain,
    /// A lease that has run out may not settle.
    SettleRefusesLate,
    /// A lost lease leaves its error on the row.
    LostLeaseLeavesError,
    /// Log entries are dropped.
    LogLost,
    /// A lost lease leaves its log entry.
    LostLeaseLeavesLog,
    /// Attempts are never given back.
    RefundForgotten,
    /// Follow-ups are dropped.
    FollowUpsLost,
    /// A lost lease still enqueues its follow-ups.
    LostLeaseFollowsUp,
    /// The number of the answer is dropped.
    StatusLost,
    /// Any lease may be renewed.
    ExtendUnfenced,
    /// A heartbeat does not hear of a cancel.
    ExtendHidesCancel,
    /// A reclaim raises no epoch.
    ReclaimKeepsEpoch,
    /// A reclaim charges an attempt.
    ReclaimCharges,
    /// A reclaim takes over leases a millisecond before they run out.
    ReclaimEarly,
    /// A reclaim takes kinds that it was not asked for.
    ReclaimAnyKind,
    /// A reclaim takes leases that its caller holds.
    ReclaimTakesOwn,
    /// A lease that its caller has lost keeps a reclaim from the job.
    ReclaimSparesLost,
    /// Orphans stay orphans.
    ReclaimNever,
    /// A cancel says that it is done and does nothing.
    CancelPretends,
    /// A cancel of a running job is forgotten.
    CancelForgotten,
    /// A cancel leaves what is below the job alone.
    CancelLeavesChildren,
    /// Two redrives at once drive twice.
    RedriveTwice,
    /// A redrive goes on counting attempts.
    RedriveKeepsAttempts,
    /// A redrive loses the earlier runs' log.
    RedriveForgetsLog,
    /// A run-now says that it is done and changes nothing.
    RunNowPretends,
    /// A run-now leaves the budget to count from later.
    RunNowKeepsBudget,
    /// A discard removes jobs that are not dead.
    DiscardAnything,
    /// The second page of a list misses a job.
    ListSkips,
    /// A list is not narrowed by what jobs are about, nor by their end.
    ListIgnoresSubject,
    /// A look sees as much as it likes.
    LookUnbounded,
    /// A look that has seen as much as it may says that there is no more.
    LookEndsEarly,
    /// A prune comes a millisecond early.
    PruneEarly,
    /// A prune takes children whose parent still waits.
    PruneTakesChildren,
    /// Any lease may remember.
    StepUnfenced,
    /// A step is remembered anew.
    StepOverwritten,
    /// A step's children are dropped.
    ChildrenLost,
    /// A job gets children after its end was requested.
    ChildrenDespiteCancel,
    /// The death of a job leaves what is below it.
    DeathLeavesChildren,
    /// A cancel ends detached children.
    DetachedEnded,
    /// A fan-out of which too many children have failed leaves the others.
    FailureLeavesSiblings,
    /// A parent is due after its children.
    ParentBehindChildren,
    /// Of several things a job waits for the first alone.
    OnlyFirstAwaited,
    /// Any lease may set signals aside.
    SetAsideUnfenced,
    /// Workers are not woken when the end of a job is requested.
    CancelUnheard,
    /// A reclaim forgets which worker was lost.
    ReclaimRenames,
    /// A signal that was taken is there again.
    SignalTakenTwice,
    /// A repeated signal counts twice.
    SignalRepeats,
    /// What waits goes on whether it has come or not.
    ResumeEarly,
    /// What waits never goes on.
    ResumeNever,
    /// A hold says that it is done and changes nothing.
    HoldPretends,
    /// Steps are never forgotten.
    ForgetPretends,
    /// Sleepers are never woken.
    WakeLost,
    /// Sleepers never sleep.
    WakeAlways,
    /// Counts leave out what is due.
    StatsHideDue,
    /// Compare-and-set does not compare.
    RecordsUnfenced,
    /// A record's versions start again after its removal.
    VersionsRestart,
    /// A sealed store is claimed from.
    SealIgnored,
    /// Leases of a sealed store are taken over.
    SealLetsReclaim,
    /// An export leaves out what a job has remembered.
    ExportDropsSteps,
    /// An export leaves out signals that were taken.
    ExportDropsTaken,
    /// An import forgets which unique key a job holds.
    ImportDropsUnique,
    /// An import replaces jobs of an open store.
    ImportOverwrites,
    /// An import leaves jobs alone although the store is being filled.
    ImportNeverReplaces,
    /// An import adds jobs whose key another job has.
    ImportIgnoresKeys,
    /// Removed records are not exported.
    RemovedRecordsLost,
    /// An import of records takes older versions.
    RecordsGoBack,
}

/// A [`ModelStore`] with one [`Flaw`].
#[derive(Debug, Clone)]
pub struct Mutant {
    store: ModelStore,
    flaw: Flaw,
    ticks: Arc<AtomicU64>,
}

impl Mutant {
    /// Breaks `store` by `flaw`.
    pub fn new(store: ModelStore, flaw: Flaw) -> Self {
        Self { store, flaw, ticks: Arc::default() }
    }

    /// Counts the calls of a flaw that shows only now and then.
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }
}

#[async_trait]
impl Store for Mutant {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        self.flawed_enqueue(jobs).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        self.flawed_claim(request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.flawed_settle(settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError> {
        self.flawed_extend(leases, lease).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        self.flawed_reclaim(request).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        self.flawed_cancel(ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        self.flawed_redrive(ids).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        self.flawed_run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        self.flawed_discard(ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        self.flawed_find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.store.get(ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.flawed_list(filter, page).await
    }

    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError> {
        self.flawed_look(filter, page, most).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.store.attempts(id, page).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.flawed_prune(retention, limit).await
    }

    async fn wait(&self, seen: Wake) {
        self.flawed_wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        self.flawed_wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.flawed_stats().await
    }
}

#[async_trait]
impl Steps for Mutant {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.store.recall(id, from, limit).await
    }

    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError> {
        self.flawed_remember(memories).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
        self.flawed_signal(signals).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.store.pending_signals(job, names, limit).await
    }

    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.flawed_set_aside(lease, signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.flawed_resume(ids).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
        self.store.sweep(after, limit).await
    }

    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.flawed_hold(ids).await
    }

    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.store.unhold(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        self.flawed_forget(ids).await
    }
}

#[async_trait]
impl Records for Mutant {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.store.read(kind, id).await
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        if self.flaw == Flaw::RecordsUnfenced {
            return self.store.write(Change { expect: Expect::Any, ..change }).await;
        }
        let (kind, id, removes) = (change.kind.clone(), change.id.clone(), change.value.is_none());
        let written = self.store.write(change).await?;
        if self.flaw == Flaw::VersionsRestart && removes && matches!(written, Written::Done(_)) {
            self.store.step(|model, _| {
                model.forget_record(&kind, &id);
                Ok(())
            })?;
        }
        Ok(written)
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.store.scan(kind, after, limit).await
    }
}

#[async_trait]
impl Transfer for Mutant {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        self.flawed_export(after, limit).await
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        self.flawed_import(parcels).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        self.flawed_export_records(after, limit).await
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        self.flawed_import_records(slots).await
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        self.store.export_promises(after, limit).await
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        self.store.import_promises(promises).await
    }
}
