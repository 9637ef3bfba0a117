//! Calls and their results, on the model and on a store.

use std::time::Duration;

use redrive_core::limits::{BATCH_ITEMS_MAX, PAGE_ITEMS_MAX};
use redrive_core::records::{Precondition, Record, RecordWrite, WriteResult};
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
};
use redrive_core::store::{
    Backend, CancelResult, ClaimRequest, ClaimedJobs, DiscardResult, EnqueueResult, ExtendResult, Filter,
    Page, PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SettleResult, Settlement,
    WakeToken,
};
use redrive_core::transfer::{BEING_FILLED, ImportResult, JobSnapshot, RecordSnapshot, SEALED};
use redrive_core::{Attempt, Invalid, Job, JobId, Lease, NewJob, SignalName, StoreError, Timestamp};
use uuid::Uuid;

use crate::clock::START;
use crate::model::Model;
use crate::pages::search_all;

/// A call on a store, or a change of its clock.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Enqueue(Vec<NewJob>),
    Claim(ClaimRequest),
    Settle(Vec<Settlement>),
    Extend(Vec<Lease>, Duration),
    Reclaim(ReclaimRequest),
    Cancel(Vec<JobId>),
    Redrive(Vec<JobId>),
    RunNow(Vec<JobId>),
    Discard(Vec<JobId>),
    Find(Vec<NewJob>),
    Get(Vec<JobId>),
    List(Filter, PageRequest),
    /// Searches to the end, with this page limit and this many examined jobs per page.
    Search(Filter, usize, usize),
    Attempts(JobId, PageRequest),
    Prune(Retention, usize),
    Recall(JobId, u32, usize),
    Remember(Vec<NewStep>),
    Signal(Vec<Signal>),
    PendingSignals(JobId, Vec<SignalName>, usize),
    SkipSignals(Lease, Vec<Uuid>),
    Resume(Vec<JobId>),
    Sweep(Option<JobId>, usize),
    Pause(Vec<JobId>),
    Unpause(Vec<JobId>),
    Forget(Vec<JobId>),
    Write(RecordWrite),
    Scan(String, Option<String>, usize),
    /// Exports all jobs and imports them again.
    Refill,
    /// Imports a job under another id.
    Copy(JobId, JobId),
    ImportRecords(Vec<RecordSnapshot>),
    Advance(Duration),
    SetBack(Duration),
}

/// The result of a call.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Enqueued(Vec<EnqueueResult>),
    Claimed(ClaimedJobs),
    Settled(Vec<SettleResult>),
    Extended(Vec<ExtendResult>),
    Cancelled(Vec<CancelResult>),
    Redriven(Vec<RedriveResult>),
    MadeDue(Vec<RunNowResult>),
    Discarded(Vec<DiscardResult>),
    Found(Vec<Option<EnqueueResult>>),
    Got(Vec<Option<Job>>),
    Listed(Page<Job>),
    SearchedAll(Vec<Job>),
    Attempted(Page<Attempt>),
    Pruned(usize),
    Recalled(Vec<Step>),
    Remembered(Vec<RememberResult>),
    Signalled(Vec<SignalResult>),
    Pending(Vec<Signal>),
    SkipSignals(bool),
    Resumed(Vec<bool>),
    Swept(SweepResult),
    Paused(Vec<PauseResult>),
    Forgotten(Vec<ForgetResult>),
    Written(WriteResult),
    Scanned(Vec<Record>),
    Imported(Vec<ImportResult>),
    ImportedRecords(Vec<bool>),
    TimeMoved,
    Refused(Invalid),
    Failed(String),
}

/// The model and its time, during a sequence of calls.
#[derive(Debug, Clone)]
pub(super) struct ModelRun {
    pub(super) model: Model,
    pub(super) now: Timestamp,
}

impl ModelRun {
    pub(super) fn new() -> Self {
        Self { model: Model::new(), now: START }
    }

    /// Makes the call on the model.
    pub(super) fn make(&mut self, call: &Call) -> Answer {
        if let Call::Advance(span) = call {
            self.now = self.now.after(*span);
        }
        if let Call::SetBack(span) = call {
            self.now = self.now.before(*span);
        }
        call.on_model(&mut self.model, self.now).unwrap_or_else(Answer::Refused)
    }
}

impl Call {
    /// The jobs that the call creates, unless they exist already.
    pub(super) fn new_jobs(&self) -> Box<dyn Iterator<Item = &NewJob> + '_> {
        match self {
            Self::Enqueue(jobs) => Box::new(jobs.iter()),
            Self::Settle(settlements) => {
                Box::new(settlements.iter().flat_map(|settlement| &settlement.follow_ups))
            }
            Self::Remember(steps) => Box::new(steps.iter().flat_map(|step| &step.children)),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// The calls that the model and a store must answer alike. Which jobs of a batch get free slots is not promised, so a batch with
    /// several partition keys becomes one call for each item. What is promised for batches is in the chapter on limits.
    pub(super) fn split_by_partition(&self, model: &Model) -> Vec<Self> {
        let has_partition = |id: &JobId| model.job(*id).is_some_and(|job| job.partition.is_some());
        let has_several = |ids: &mut dyn Iterator<Item = JobId>| ids.filter(has_partition).count() > 1;
        match self {
            Self::Settle(settlements)
                if has_several(&mut settlements.iter().map(|settlement| settlement.lease.id)) =>
            {
                settlements.iter().map(|settlement| Self::Settle(vec![settlement.clone()])).collect()
            }
            Self::Cancel(ids) if has_several(&mut ids.iter().copied()) => {
                ids.iter().map(|id| Self::Cancel(vec![*id])).collect()
            }
            Self::Resume(ids) if has_several(&mut ids.iter().copied()) => {
                ids.iter().map(|id| Self::Resume(vec![*id])).collect()
            }
            Self::Sweep(after, _) if has_several(&mut model.jobs().map(|job| job.id)) => {
                vec![Self::Sweep(*after, 1)]
            }
            _ => vec![self.clone()],
        }
    }

    fn on_model(&self, model: &mut Model, now: Timestamp) -> Result<Answer, Invalid> {
        Ok(match self.clone() {
            Self::Enqueue(jobs) => Answer::Enqueued(model.enqueue(jobs, now)?),
            Self::Claim(request) => Answer::claimed(model.claim(&request, now)?),
            Self::Settle(settlements) => Answer::Settled(model.settle(settlements, now)?),
            Self::Extend(leases, lease) => Answer::Extended(model.extend(&leases, lease, now)?),
            Self::Reclaim(request) => Answer::claimed(model.reclaim(&request, now)?),
            Self::Cancel(ids) => Answer::Cancelled(model.cancel(&ids, now)?),
            Self::Redrive(ids) => Answer::Redriven(model.redrive(&ids, now)?),
            Self::RunNow(ids) => Answer::MadeDue(model.run_now(&ids, now)?),
            Self::Discard(ids) => Answer::Discarded(model.discard(&ids, now)?),
            Self::Find(jobs) => Answer::Found(model.find(&jobs)?),
            Self::Get(ids) => Answer::Got(model.get(&ids)?),
            Self::List(filter, page) => Answer::Listed(model.list(&filter, page)?),
            Self::Search(filter, ..) => {
                Answer::SearchedAll(model.list(&filter, PageRequest::first(PAGE_ITEMS_MAX))?.items)
            }
            Self::Attempts(id, page) => Answer::Attempted(model.attempts(id, page)?),
            Self::Prune(retention, limit) => Answer::Pruned(model.prune(retention, limit, now)),
            Self::Recall(id, from, limit) => Answer::Recalled(model.recall(id, from, limit)),
            Self::Remember(new_steps) => Answer::Remembered(model.remember(new_steps, now)?),
            Self::Signal(signals) => Answer::Signalled(model.signal(signals)?),
            Self::PendingSignals(id, names, limit) => {
                Answer::Pending(model.pending_signals(id, &names, limit))
            }
            Self::SkipSignals(lease, signals) => Answer::SkipSignals(model.skip_signals(lease, &signals)?),
            Self::Resume(ids) => Answer::Resumed(model.resume(&ids, now)?),
            Self::Sweep(after, limit) => Answer::Swept(model.sweep(after, limit, now)?),
            Self::Pause(ids) => Answer::Paused(model.pause(&ids)?),
            Self::Unpause(ids) => Answer::Paused(model.unpause(&ids, now)?),
            Self::Forget(ids) => Answer::Forgotten(model.forget(&ids)?),
            Self::Write(change) => Answer::Written(model.write(change)?),
            Self::Scan(kind, after, limit) => Answer::Scanned(model.scan(&kind, after.as_deref(), limit)),
            Self::Refill => {
                model.write(set_being_filled(true))?;
                let snapshots = model.export(None, BATCH_ITEMS_MAX)?.jobs;
                let answers = model.import(snapshots, now)?;
                model.write(set_being_filled(false))?;
                Answer::Imported(answers)
            }
            Self::Copy(from, to) => {
                let snapshots = model.export(None, BATCH_ITEMS_MAX)?.jobs;
                Answer::Imported(model.import(copy_under_id(snapshots, from, to), now)?)
            }
            Self::ImportRecords(records) => Answer::ImportedRecords(model.import_records(records)?),
            Self::Advance(_) | Self::SetBack(_) => Answer::TimeMoved,
        })
    }

    /// Makes the call on a store. The caller changes the clock.
    pub(super) async fn on_store(&self, store: &dyn Backend) -> Answer {
        match self.try_on_store(store).await {
            Ok(answer) => answer,
            Err(StoreError::Invalid(invalid)) => Answer::Refused(invalid),
            Err(other) => Answer::Failed(format!("{other:?}")),
        }
    }

    async fn try_on_store(&self, store: &dyn Backend) -> Result<Answer, StoreError> {
        Ok(match self.clone() {
            Self::Enqueue(jobs) => Answer::Enqueued(store.enqueue(jobs).await?),
            Self::Claim(request) => Answer::claimed(store.claim(request).await?),
            Self::Settle(settlements) => Answer::Settled(store.settle(settlements).await?),
            Self::Extend(leases, lease) => Answer::Extended(store.extend(leases, lease).await?),
            Self::Reclaim(request) => Answer::claimed(store.reclaim(request).await?),
            Self::Cancel(ids) => Answer::Cancelled(store.cancel(ids).await?),
            Self::Redrive(ids) => Answer::Redriven(store.redrive(ids).await?),
            Self::RunNow(ids) => Answer::MadeDue(store.run_now(ids).await?),
            Self::Discard(ids) => Answer::Discarded(store.discard(ids).await?),
            Self::Find(jobs) => Answer::Found(store.find(jobs).await?),
            Self::Get(ids) => Answer::Got(store.get(ids).await?),
            Self::List(filter, page) => Answer::Listed(store.list(filter, page).await?),
            Self::Search(filter, limit, most) => {
                Answer::SearchedAll(search_all(store, &filter, limit, most).await?)
            }
            Self::Attempts(id, page) => Answer::Attempted(store.attempts(id, page).await?),
            Self::Prune(retention, limit) => Answer::Pruned(store.prune(retention, limit).await?),
            Self::Recall(id, from, limit) => Answer::Recalled(store.recall(id, from, limit).await?),
            Self::Remember(new_steps) => Answer::Remembered(store.remember(new_steps).await?),
            Self::Signal(signals) => Answer::Signalled(store.signal(signals).await?),
            Self::PendingSignals(id, names, limit) => {
                Answer::Pending(store.pending_signals(id, names, limit).await?)
            }
            Self::SkipSignals(lease, signals) => {
                Answer::SkipSignals(store.skip_signals(lease, signals).await?)
            }
            Self::Resume(ids) => Answer::Resumed(store.resume(ids).await?),
            Self::Sweep(after, limit) => Answer::Swept(store.sweep(after, limit).await?),
            Self::Pause(ids) => Answer::Paused(store.pause(ids).await?),
            Self::Unpause(ids) => Answer::Paused(store.unpause(ids).await?),
            Self::Forget(ids) => Answer::Forgotten(store.forget(ids).await?),
            Self::Write(change) => Answer::Written(store.write(change).await?),
            Self::Scan(kind, after, limit) => {
                Answer::Scanned(store.scan(&kind, after.as_deref(), limit).await?)
            }
            Self::Refill => {
                store.write(set_being_filled(true)).await?;
                let snapshots = store.export(None, BATCH_ITEMS_MAX).await?.jobs;
                let answers = store.import(snapshots).await?;
                store.write(set_being_filled(false)).await?;
                Answer::Imported(answers)
            }
            Self::Copy(from, to) => {
                let snapshots = store.export(None, BATCH_ITEMS_MAX).await?.jobs;
                Answer::Imported(store.import(copy_under_id(snapshots, from, to)).await?)
            }
            Self::ImportRecords(records) => Answer::ImportedRecords(store.import_records(records).await?),
            Self::Advance(_) | Self::SetBack(_) => Answer::TimeMoved,
        })
    }
}

/// The write that creates or removes the record that lets imports replace jobs.
fn set_being_filled(being_filled: bool) -> RecordWrite {
    let (kind, id) = (SEALED.to_owned(), BEING_FILLED.to_owned());
    RecordWrite { kind, id, expect: Precondition::Any, value: being_filled.then(Vec::new) }
}

/// A copy of a job under another id, if the job is among the snapshots.
fn copy_under_id(snapshots: Vec<JobSnapshot>, from: JobId, to: JobId) -> Vec<JobSnapshot> {
    let found = snapshots.into_iter().find(|snapshot| snapshot.job.id == from);
    let copy = found.map(|snapshot| JobSnapshot { job: Job { id: to, ..snapshot.job.clone() }, ..snapshot });
    copy.into_iter().collect()
}

impl Answer {
    /// A claim without its wake token, which each store numbers on its own.
    fn claimed(claimed: ClaimedJobs) -> Self {
        Self::Claimed(ClaimedJobs { wake: WakeToken::default(), ..claimed })
    }
}
