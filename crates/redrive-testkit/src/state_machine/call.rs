//! One call with its answer, on the model and on a store.

use std::time::Duration;

use redrive_core::limits::{BATCH_ITEMS_MAX, PAGE_ITEMS_MAX};
use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::{
    Backend, Cancelled, ClaimRequest, Claimed, Discarded, Enqueued, Extended, Filter, Page, PageRequest,
    ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Wake,
};
use redrive_core::transfer::{BEING_FILLED, Imported, Parcel, SEALED, Slot};
use redrive_core::{Attempt, Invalid, Job, JobId, Lease, NewJob, SignalName, StoreError, Timestamp};
use uuid::Uuid;

use crate::clock::START;
use crate::look_through::look_through;
use crate::model::Model;

/// A call on a store, or a move of its clock.
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
    /// Looks through everything, so many on a page out of so many.
    Look(Filter, usize, usize),
    Attempts(JobId, PageRequest),
    Prune(Retention, usize),
    Recall(JobId, u32, usize),
    Remember(Vec<Memory>),
    Signal(Vec<Signal>),
    PendingSignals(JobId, Vec<SignalName>, usize),
    SetAside(Lease, Vec<Uuid>),
    Resume(Vec<JobId>),
    Sweep(Option<JobId>, usize),
    Hold(Vec<JobId>),
    Unhold(Vec<JobId>),
    Forget(Vec<JobId>),
    Write(Change),
    Scan(String, Option<String>, usize),
    /// Fills the store anew with what is in it.
    Refill,
    /// Imports a job under another id.
    Copy(JobId, JobId),
    /// Imports records.
    ImportRecords(Vec<Slot>),
    Advance(Duration),
    SetBack(Duration),
}

/// What a call came to.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Enqueued(Vec<Enqueued>),
    Claimed(Claimed),
    Settled(Vec<Settled>),
    Extended(Vec<Extended>),
    Cancelled(Vec<Cancelled>),
    Redriven(Vec<Redriven>),
    MadeDue(Vec<RunNow>),
    Discarded(Vec<Discarded>),
    Found(Vec<Option<Enqueued>>),
    Got(Vec<Option<Job>>),
    Listed(Page<Job>),
    LookedThrough(Vec<Job>),
    Attempted(Page<Attempt>),
    Pruned(usize),
    Recalled(Vec<Step>),
    Remembered(Vec<Remembered>),
    Signalled(Vec<Signalled>),
    Pending(Vec<Signal>),
    SetAside(bool),
    Resumed(Vec<bool>),
    Swept(Swept),
    Held(Vec<Hold>),
    Forgotten(Vec<Forgotten>),
    Written(Written),
    Scanned(Vec<Record>),
    Imported(Vec<Imported>),
    ImportedRecords(Vec<bool>),
    TimeMoved,
    Refused(Invalid),
    Failed(String),
}

/// The model's side of a sequence: its content and its time.
#[derive(Debug, Clone)]
pub(super) struct Play {
    pub(super) model: Model,
    pub(super) now: Timestamp,
}

impl Play {
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
            Self::Look(filter, ..) => {
                Answer::LookedThrough(model.list(&filter, PageRequest::first(PAGE_ITEMS_MAX))?.items)
            }
            Self::Attempts(id, page) => Answer::Attempted(model.attempts(id, page)?),
            Self::Prune(retention, limit) => Answer::Pruned(model.prune(retention, limit, now)),
            Self::Recall(id, from, limit) => Answer::Recalled(model.recall(id, from, limit)),
            Self::Remember(memories) => Answer::Remembered(model.remember(memories, now)?),
            Self::Signal(signals) => Answer::Signalled(model.signal(signals)?),
            Self::PendingSignals(id, names, limit) => {
                Answer::Pending(model.pending_signals(id, &names, limit))
            }
            Self::SetAside(lease, signals) => Answer::SetAside(model.set_aside(lease, &signals)?),
            Self::Resume(ids) => Answer::Resumed(model.resume(&ids, now)?),
            Self::Sweep(after, limit) => Answer::Swept(model.sweep(after, limit, now)?),
            Self::Hold(ids) => Answer::Held(model.hold(&ids)?),
            Self::Unhold(ids) => Answer::Held(model.unhold(&ids, now)?),
            Self::Forget(ids) => Answer::Forgotten(model.forget(&ids)?),
            Self::Write(change) => Answer::Written(model.write(change)?),
            Self::Scan(kind, after, limit) => Answer::Scanned(model.scan(&kind, after.as_deref(), limit)),
            Self::Refill => {
                model.write(filling(true))?;
                let parcels = model.export(None, BATCH_ITEMS_MAX)?.parcels;
                let answers = model.import(parcels, now)?;
                model.write(filling(false))?;
                Answer::Imported(answers)
            }
            Self::Copy(from, to) => {
                let parcels = model.export(None, BATCH_ITEMS_MAX)?.parcels;
                Answer::Imported(model.import(copied(parcels, from, to), now)?)
            }
            Self::ImportRecords(slots) => Answer::ImportedRecords(model.import_records(slots)?),
            Self::Advance(_) | Self::SetBack(_) => Answer::TimeMoved,
        })
    }

    /// Makes the call on a store; the clock was moved by the caller.
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
            Self::Look(filter, limit, most) => {
                Answer::LookedThrough(look_through(store, &filter, limit, most).await?)
            }
            Self::Attempts(id, page) => Answer::Attempted(store.attempts(id, page).await?),
            Self::Prune(retention, limit) => Answer::Pruned(store.prune(retention, limit).await?),
            Self::Recall(id, from, limit) => Answer::Recalled(store.recall(id, from, limit).await?),
            Self::Remember(memories) => Answer::Remembered(store.remember(memories).await?),
            Self::Signal(signals) => Answer::Signalled(store.signal(signals).await?),
            Self::PendingSignals(id, names, limit) => {
                Answer::Pending(store.pending_signals(id, names, limit).await?)
            }
            Self::SetAside(lease, signals) => Answer::SetAside(store.set_aside(lease, signals).await?),
            Self::Resume(ids) => Answer::Resumed(store.resume(ids).await?),
            Self::Sweep(after, limit) => Answer::Swept(store.sweep(after, limit).await?),
            Self::Hold(ids) => Answer::Held(store.hold(ids).await?),
            Self::Unhold(ids) => Answer::Held(store.unhold(ids).await?),
            Self::Forget(ids) => Answer::Forgotten(store.forget(ids).await?),
            Self::Write(change) => Answer::Written(store.write(change).await?),
            Self::Scan(kind, after, limit) => {
                Answer::Scanned(store.scan(&kind, after.as_deref(), limit).await?)
            }
            Self::Refill => {
                store.write(filling(true)).await?;
                let parcels = store.export(None, BATCH_ITEMS_MAX).await?.parcels;
                let answers = store.import(parcels).await?;
                store.write(filling(false)).await?;
                Answer::Imported(answers)
            }
            Self::Copy(from, to) => {
                let parcels = store.export(None, BATCH_ITEMS_MAX).await?.parcels;
                Answer::Imported(store.import(copied(parcels, from, to)).await?)
            }
            Self::ImportRecords(slots) => Answer::ImportedRecords(store.import_records(slots).await?),
            Self::Advance(_) | Self::SetBack(_) => Answer::TimeMoved,
        })
    }
}

/// The record that lets imports replace jobs, or its removal.
fn filling(is: bool) -> Change {
    let (kind, id) = (SEALED.to_owned(), BEING_FILLED.to_owned());
    Change { kind, id, expect: Expect::Any, value: is.then(Vec::new) }
}

/// A job under another id, if it is among the parcels.
fn copied(parcels: Vec<Parcel>, from: JobId, to: JobId) -> Vec<Parcel> {
    let found = parcels.into_iter().find(|parcel| parcel.job.id == from);
    let copy = found.map(|parcel| Parcel { job: Job { id: to, ..parcel.job.clone() }, ..parcel });
    copy.into_iter().collect()
}

impl Answer {
    /// A claim without its wake-up, whose number is each store's own.
    fn claimed(claimed: Claimed) -> Self {
        Self::Claimed(Claimed { wake: Wake::default(), ..claimed })
    }
}
