//! Stores that break one guarantee each. They prove that the test suites can fail.

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
use redrive_core::records::{Precondition, Record, RecordWrite, WriteResult};
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
};
use redrive_core::store::{
    CancelResult, ClaimRequest, ClaimedJobs, DiscardResult, EnqueueResult, ExtendResult, Filter, Page,
    PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage, SettleResult,
    Settlement, Stats, WakeToken,
};
use redrive_core::transfer::{ExportPage, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{
    Attempt, Job, JobId, Lease, NewJob, RecordStore, SignalName, Steps, Store, StoreError, Transfer,
};
use uuid::Uuid;

use crate::model_store::ModelStore;

/// The guarantee that a mutant breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Every fifth enqueue is acknowledged and not stored.
    EnqueueForgets,
    /// Idempotency keys have no effect.
    KeyIgnored,
    /// Unique keys have no effect.
    UniqueIgnored,
    /// The fingerprint of a key is not compared.
    FingerprintIgnored,
    /// A find never returns the job that has a key.
    FindNeverFinds,
    /// The jobs before an invalid one in a batch are added.
    BatchHalfApplied,
    /// A claim charges no attempt.
    ClaimFree,
    /// A claim does not increase the epoch.
    ClaimKeepsEpoch,
    /// A claim takes jobs a millisecond before they are due.
    ClaimEarly,
    /// A job's own lease duration is ignored.
    OwnLeaseIgnored,
    /// A claim takes the lowest priority first.
    ClaimUnordered,
    /// A claim takes one job more than its limit.
    ClaimOverLimit,
    /// Every third claim leaves its jobs claimable.
    ClaimShared,
    /// Claims take jobs of paused queues.
    PauseIgnored,
    /// Limits have no effect.
    LimitsIgnored,
    /// Strict order has no effect.
    OrderIgnored,
    /// A free slot is not offered to waiting jobs.
    FreeSlotLost,
    /// A claim does not return when the next job is due.
    NextDueForgotten,
    /// Any lease may settle.
    SettleUnfenced,
    /// A lease may settle twice.
    SettleAgain,
    /// An expired lease may not settle, although nobody reclaimed it.
    SettleRefusesLate,
    /// A settlement under a lost lease writes its error.
    LostLeaseLeavesError,
    /// Log entries are dropped.
    LogLost,
    /// A settlement under a lost lease writes its log entry.
    LostLeaseLeavesLog,
    /// Attempts are never refunded.
    RefundForgotten,
    /// Follow-ups are dropped.
    FollowUpsLost,
    /// A settlement under a lost lease enqueues its follow-ups.
    LostLeaseFollowsUp,
    /// The status of the last attempt is dropped.
    StatusLost,
    /// Any lease may be renewed.
    ExtendUnfenced,
    /// An extend does not report a requested cancel.
    ExtendHidesCancel,
    /// A reclaim does not increase the epoch.
    ReclaimKeepsEpoch,
    /// A reclaim charges an attempt.
    ReclaimCharges,
    /// A reclaim takes leases a millisecond before they expire.
    ReclaimEarly,
    /// A reclaim takes jobs of other kinds than requested.
    ReclaimAnyKind,
    /// A reclaim takes the leases of its caller.
    ReclaimTakesOwn,
    /// A reclaim skips a job whose lease its caller held before and has lost.
    ReclaimSparesLost,
    /// A reclaim takes nothing.
    ReclaimNever,
    /// A cancel reports success and does nothing.
    CancelPretends,
    /// A cancel of a running job is not stored.
    CancelForgotten,
    /// A cancel does not end the children of the job.
    CancelLeavesChildren,
    /// Two concurrent redrives start two runs.
    RedriveTwice,
    /// A redrive does not reset the attempts.
    RedriveKeepsAttempts,
    /// A redrive deletes the log of earlier runs.
    RedriveForgetsLog,
    /// A run-now reports success and does nothing.
    RunNowPretends,
    /// A run-now does not move the start of the time budget.
    RunNowKeepsBudget,
    /// A discard deletes jobs that are not dead.
    DiscardAnything,
    /// The second page of a list misses a job.
    ListSkips,
    /// A list ignores the filter's target and end time.
    ListIgnoresTarget,
    /// A search examines more jobs than it may.
    SearchUnbounded,
    /// A search that has examined as many jobs as it may reports that it is complete.
    SearchEndsEarly,
    /// A prune deletes jobs a millisecond early.
    PruneEarly,
    /// A prune deletes children whose parent has not ended.
    PruneTakesChildren,
    /// Any lease may store a step.
    StepUnfenced,
    /// A step replaces the one at its place.
    StepOverwritten,
    /// A step's children are dropped.
    ChildrenLost,
    /// A job gets children after its cancel was requested.
    ChildrenDespiteCancel,
    /// A job that dies does not end its children.
    DeathLeavesChildren,
    /// A cancel ends detached children.
    DetachedEnded,
    /// A failed fan-out does not end its remaining children.
    FailureLeavesSiblings,
    /// A parent is due after its children.
    ParentBehindChildren,
    /// Only the first part of a wait condition is checked.
    OnlyFirstAwaited,
    /// Any lease may skip signals.
    SkipSignalsUnfenced,
    /// A requested cancel wakes no worker.
    CancelWakesNobody,
    /// A reclaim replaces the name of the old worker.
    ReclaimRenames,
    /// A taken signal is pending again.
    SignalTakenTwice,
    /// A repeated signal counts twice.
    SignalRepeats,
    /// Waiting jobs are resumed although their condition does not hold.
    ResumeEarly,
    /// Waiting jobs are never resumed.
    ResumeNever,
    /// A pause reports success and does nothing.
    PausePretends,
    /// A forget reports success and does nothing.
    ForgetPretends,
    /// Waiters are never woken.
    WakeLost,
    /// Waiters return at once.
    WakeAlways,
    /// Stats do not report the oldest due job.
    StatsHideDue,
    /// Compare-and-set does not compare.
    RecordsUnfenced,
    /// The versions of a record start again after its removal.
    VersionsRestart,
    /// Claims take jobs of a sealed store.
    SealIgnored,
    /// Reclaims take jobs of a sealed store.
    SealLetsReclaim,
    /// An export leaves out steps.
    ExportDropsSteps,
    /// An export leaves out taken signals.
    ExportDropsTaken,
    /// An import drops unique keys.
    ImportDropsUnique,
    /// An import replaces jobs although the store is not being filled.
    ImportOverwrites,
    /// An import keeps existing jobs although the store is being filled.
    ImportNeverReplaces,
    /// An import ignores key conflicts.
    ImportIgnoresKeys,
    /// Removed records are not exported.
    RemovedRecordsLost,
    /// An import of records accepts older versions.
    RecordsGoBack,
}

/// A [`ModelStore`] with one [`Mutation`].
#[derive(Debug, Clone)]
pub struct MutantStore {
    store: ModelStore,
    mutation: Mutation,
    ticks: Arc<AtomicU64>,
}

impl MutantStore {
    /// Applies `mutation` to `store`.
    pub fn new(store: ModelStore, mutation: Mutation) -> Self {
        Self { store, mutation, ticks: Arc::default() }
    }

    /// Counts the calls, for mutations that affect only some of them.
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }
}

#[async_trait]
impl Store for MutantStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        self.mutated_enqueue(jobs).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.mutated_claim(request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.mutated_settle(settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        self.mutated_extend(leases, lease).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.mutated_reclaim(request).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        self.mutated_cancel(ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        self.mutated_redrive(ids).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        self.mutated_run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        self.mutated_discard(ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        self.mutated_find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.store.get(ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.mutated_list(filter, page).await
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        self.mutated_search(filter, page, examined_max).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.store.attempts(id, page).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.mutated_prune(retention, limit).await
    }

    async fn wait(&self, seen: WakeToken) {
        self.mutated_wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.mutated_wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.mutated_stats().await
    }
}

#[async_trait]
impl Steps for MutantStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.store.recall(id, from, limit).await
    }

    async fn remember(&self, new_steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        self.mutated_remember(new_steps).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        self.mutated_signal(signals).await
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
        self.mutated_skip_signals(lease, signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.mutated_resume(ids).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        self.store.sweep(after, limit).await
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.mutated_pause(ids).await
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.store.unpause(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        self.mutated_forget(ids).await
    }
}

#[async_trait]
impl RecordStore for MutantStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.store.read(kind, id).await
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        if self.mutation == Mutation::RecordsUnfenced {
            return self.store.write(RecordWrite { expect: Precondition::Any, ..change }).await;
        }
        let (kind, id, removes) = (change.kind.clone(), change.id.clone(), change.value.is_none());
        let written = self.store.write(change).await?;
        if self.mutation == Mutation::VersionsRestart && removes && matches!(written, WriteResult::Done(_)) {
            self.store.step(|model, _| {
                model.forget_record(&kind, &id);
                model.forget_record(&kind, "");
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
impl Transfer for MutantStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        self.mutated_export(after, limit).await
    }

    async fn import(&self, snapshots: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        self.mutated_import(snapshots).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        self.mutated_export_records(after, limit).await
    }

    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        self.mutated_import_records(records).await
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
