//! Long operations on dead letters: records that survive a restart, driven step by step by whichever node holds them.
//!
//! Each dead letter is visited at most once: the cursor goes by id, and only what was dead when the operation began is
//! touched. A step acts first and saves then: after a crash between the two its letters are no longer dead, so the next
//! owner passes them over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::store::{Backend, Cursor, Discarded, Filter, Page, PageRequest, Redriven};
use redrive_core::{Job, JobId, State, StoreError, Tenant, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Api};
use crate::error::{Answer, Code, Problem};
use crate::wire::event::TaskEvent;
use crate::wire::listing::DeadLetterFilter;
use crate::wire::operation::{Operation, OperationKind, OperationState};
use crate::wire::status::Status;

/// The record kind of operations; the id is a UUID.
const KIND: &str = "operation";
/// How long a node that fell silent keeps an operation.
const OWNED: Duration = Duration::from_secs(15);
/// Time from one look at the operations to the next while one is under way.
const TICK: Duration = Duration::from_millis(500);
/// The same while none is: what begins here is looked at sooner, what begins elsewhere is driven there.
const REST: Duration = Duration::from_secs(5);
/// Letters in one step.
const STEP_ITEMS_MAX: usize = 500;
/// How much of a rate one step takes.
const STEP_OF_RATE: f64 = 0.2;
/// How long an operation that has ended is shown.
const SHOWN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Operations read at once.
const READ_ITEMS: usize = 100;

/// An operation as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Kept {
    kind: OperationKind,
    pub(crate) tenant: Option<Tenant>,
    filter: DeadLetterFilter,
    rate_per_second: Option<f64>,
    canary: Option<usize>,
    state: OperationState,
    matched: Option<u64>,
    done: u64,
    failed: u64,
    /// Where the next step goes on.
    cursor: Option<String>,
    /// Those that went first, until they have all succeeded.
    canaries: Vec<JobId>,
    canary_passed: bool,
    created_at: Timestamp,
    finished_at: Option<Timestamp>,
    owner: Option<String>,
    owned_until: Timestamp,
}

/// What an operation shall do.
#[derive(Debug)]
pub(crate) struct NewOperation {
    pub(crate) kind: OperationKind,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) filter: DeadLetterFilter,
    pub(crate) rate_per_second: Option<f64>,
    pub(crate) canary: Option<usize>,
}

/// Begins an operation; some node takes it up.
pub(crate) async fn begin(store: &dyn Backend, new: NewOperation) -> Answer<(String, Kept)> {
    // The store's clock, since it is the one that says when a letter died.
    let created_at = store.stats().await?.now;
    let kept = Kept {
        kind: new.kind,
        tenant: new.tenant,
        filter: new.filter,
        rate_per_second: new.rate_per_second,
        canary: new.canary,
        state: OperationState::Running,
        matched: None,
        done: 0,
        failed: 0,
        cursor: None,
        canaries: Vec::new(),
        canary_passed: false,
        created_at,
        finished_at: None,
        owner: None,
        owned_until: Timestamp::default(),
    };
    let id = uuid::Uuid::now_v7().to_string();
    match save(store, &id, Expect::Absent, &kept).await? {
        Some(_) => Ok((id, kept)),
        None => Err(Problem::internal(&"a random operation id was taken")),
    }
}

/// The operation with this id.
pub(crate) async fn find(store: &dyn Backend, id: &str) -> Answer<Option<Kept>> {
    Ok(store.read(KIND, id).await?.as_ref().map(decode).transpose()?)
}

/// Operations after `after`, oldest first.
pub(crate) async fn list(
    store: &dyn Backend,
    after: Option<&str>,
    limit: usize,
) -> Answer<Vec<(String, Kept)>> {
    let records = store.scan(KIND, after, limit).await?;
    let read = |record: &Record| Ok((record.id.clone(), decode(record)?));
    Ok(records.iter().map(read).collect::<Result<_, StoreError>>()?)
}

/// Stops an operation between two steps.
pub(crate) async fn stop(store: &dyn Backend, id: &str) -> Answer<Kept> {
    loop {
        let record = store.read(KIND, id).await?.ok_or_else(|| Problem::not_found("operation", id))?;
        let mut kept = decode(&record)?;
        if kept.state != OperationState::Running {
            return Err(Problem::new(Code::OperationEnded, "the operation has ended before"));
        }
        kept.end(OperationState::Stopped);
        if save(store, id, Expect::Version(record.version), &kept).await?.is_some() {
            return Ok(kept);
        }
    }
}

/// How many dead letters match.
pub(crate) async fn count(store: &dyn Backend, filter: Filter) -> Result<u64, StoreError> {
    let mut page = PageRequest::first(READ_ITEMS);
    let mut matched = 0;
    loop {
        let read = store.list(filter.clone(), page).await?;
        matched += read.items.len() as u64;
        match read.next {
            Some(next) => page.after = Some(next),
            None => return Ok(matched),
        }
    }
}

/// Drives operations until `closing` is cancelled.
pub(crate) async fn drive(api: Arc<Api>, closing: CancellationToken) {
    let me = uuid::Uuid::now_v7().to_string();
    let mut driver = Driver { api, me, due: HashMap::new(), busy: false };
    loop {
        let moved = driver.sweep().await.unwrap_or_else(|problem| {
            tracing::warn!(?problem, "operations could not be driven");
            false
        });
        let pause = if moved { Duration::ZERO } else { driver.pause(Instant::now()) };
        tokio::select! {
            biased;
            () = closing.cancelled() => return,
            () = driver.api.begun.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct Driver {
    api: Arc<Api>,
    me: String,
    /// When the next step of an operation with a rate may go.
    due: HashMap<String, Instant>,
    /// Whether an operation was under way at the last look.
    busy: bool,
}

impl Driver {
    /// One step of each operation; says whether any could go on at once.
    async fn sweep(&mut self) -> Answer<bool> {
        let (mut after, mut moved) = (None, false);
        self.busy = false;
        loop {
            let records = self.api.store.scan(KIND, after.as_deref(), READ_ITEMS).await?;
            for record in &records {
                moved |= self.visit(record).await?;
            }
            match records.last() {
                Some(last) if records.len() == READ_ITEMS => after = Some(last.id.clone()),
                Some(_) | None => return Ok(moved),
            }
        }
    }

    async fn visit(&mut self, record: &Record) -> Answer<bool> {
        let kept = match decode(record) {
            Ok(kept) => kept,
            Err(error) => {
                // One damaged record must not keep all the others.
                tracing::error!(%error, "an operation cannot be read");
                return Ok(false);
            }
        };
        match kept.state {
            OperationState::Running => {
                self.busy = true;
                self.step(record, kept).await
            }
            OperationState::Done | OperationState::CanaryFailed | OperationState::Stopped => {
                self.due.remove(&record.id);
                self.forget(record, &kept).await
            }
        }
    }

    async fn forget(&self, record: &Record, kept: &Kept) -> Answer<bool> {
        if kept.finished_at.is_some_and(|at| api::now().since(at) > SHOWN) {
            let (kind, id) = (KIND.to_owned(), record.id.clone());
            let change = Change { kind, id, expect: Expect::Version(record.version), value: None };
            self.api.store.write(change).await?;
        }
        Ok(false)
    }

    /// Takes the operation if nobody else has it, does a little of it, and saves how far it has come.
    async fn step(&mut self, record: &Record, mut kept: Kept) -> Answer<bool> {
        let Some(version) = self.own(record, &mut kept).await? else { return Ok(false) };
        if self.due.get(&record.id).is_some_and(|due| *due > Instant::now()) {
            return Ok(false);
        }
        let moved = match kept.phase() {
            Phase::Count => {
                kept.matched = Some(count(&*self.api.store, kept.as_filter()?).await?);
                true
            }
            Phase::Watch => watch(&*self.api.store, &mut kept).await?,
            Phase::Act => {
                let acted = self.act(&mut kept).await?;
                self.pace(&record.id, &kept, acted);
                true
            }
        };
        if moved {
            save(&*self.api.store, &record.id, Expect::Version(version), &kept).await?;
        }
        Ok(moved && kept.rate_per_second.is_none())
    }

    /// Makes this node the owner, or renews that; none means that another node has it.
    async fn own(&self, record: &Record, kept: &mut Kept) -> Answer<Option<u64>> {
        // The store's clock, on which all nodes agree.
        let now = self.api.store.stats().await?.now;
        let mine = kept.owner.as_ref() == Some(&self.me);
        if !mine && kept.owner.is_some() && kept.owned_until > now {
            return Ok(None);
        }
        if mine && kept.owned_until.since(now) > OWNED / 2 {
            return Ok(Some(record.version));
        }
        kept.owner = Some(self.me.clone());
        kept.owned_until = now.after(OWNED);
        Ok(save(&*self.api.store, &record.id, Expect::Version(record.version), kept).await?)
    }

    /// Drives or removes the next letters; says how many it looked at.
    async fn act(&self, kept: &mut Kept) -> Answer<usize> {
        let after = kept.cursor.as_deref().map(str::parse::<Cursor>).transpose()?;
        let page = PageRequest { after, limit: kept.step_items() };
        let Page { items, next } = self.api.store.list(kept.as_filter()?, page).await?;
        let done = match kept.kind {
            OperationKind::Redrive => self.redrive(&items).await?,
            OperationKind::Discard => self.discard(&items).await?,
        };
        kept.done += done.len() as u64;
        kept.failed += (items.len() - done.len()) as u64;
        if kept.canary.is_some() && !kept.canary_passed {
            kept.canaries = done;
        }
        kept.cursor = next.map(|cursor| cursor.to_string());
        if next.is_none() && kept.canaries.is_empty() {
            kept.end(OperationState::Done);
        }
        Ok(items.len())
    }

    async fn redrive(&self, jobs: &[Job]) -> Answer<Vec<JobId>> {
        let answers = self.api.store.redrive(jobs.iter().map(|job| job.id).collect()).await?;
        let driven = jobs.iter().zip(answers).filter(|(_, answer)| *answer == Redriven::Done);
        let tell = |job: &Job| {
            if self.api.is_task(job) {
                let event = || TaskEvent::new(job.id, Status::Pending, 0, api::now());
                self.api.events.tell(job.id, &job.tenant, event);
            }
            job.id
        };
        Ok(driven.map(|(job, _)| tell(job)).collect())
    }

    async fn discard(&self, jobs: &[Job]) -> Answer<Vec<JobId>> {
        let answers = self.api.store.discard(jobs.iter().map(|job| job.id).collect()).await?;
        let gone = jobs.iter().zip(answers).filter(|(_, answer)| *answer == Discarded::Done);
        Ok(gone.map(|(job, _)| job.id).collect())
    }

    /// The time to the next step that a rate allows; one that is overdue waits for something else.
    fn pause(&self, now: Instant) -> Duration {
        let next = self.due.values().filter(|due| **due > now).min();
        let tick = if self.busy { TICK } else { REST };
        next.map_or(tick, |due| tick.min(*due - now))
    }

    fn pace(&mut self, id: &str, kept: &Kept, acted: usize) {
        if let Some(rate) = kept.rate_per_second {
            let wait = Duration::try_from_secs_f64(acted as f64 / rate).unwrap_or(OWNED);
            self.due.insert(id.to_owned(), Instant::now() + wait);
        }
    }
}

/// What the next step is.
enum Phase {
    Count,
    Watch,
    Act,
}

impl Kept {
    /// How it is shown.
    pub(crate) fn show(&self, id: String) -> Operation {
        Operation {
            operation_id: id,
            kind: self.kind,
            state: self.state,
            filter: self.filter.clone(),
            matched: self.matched,
            done: self.done,
            failed: self.failed,
            rate_per_second: self.rate_per_second,
            canary: self.canary,
            created_at: self.created_at.as_ms(),
            finished_at: self.finished_at.map(|at| at.as_ms()),
        }
    }

    fn phase(&self) -> Phase {
        match (self.matched, self.canaries.is_empty()) {
            (None, _) => Phase::Count,
            (Some(_), false) => Phase::Watch,
            (Some(_), true) => Phase::Act,
        }
    }

    fn end(&mut self, state: OperationState) {
        self.state = state;
        self.finished_at = Some(api::now());
    }

    /// What was dead when the operation began.
    fn as_filter(&self) -> Answer<Filter> {
        let began = self.created_at.after(Duration::from_millis(1));
        let filter = self.filter.filter(self.tenant.as_ref())?;
        let before = filter.finished_before.map_or(began, |before| before.min(began));
        Ok(Filter { finished_before: Some(before), ..filter })
    }

    fn step_items(&self) -> usize {
        let paced = self.rate_per_second.map_or(STEP_ITEMS_MAX, |rate| (rate * STEP_OF_RATE) as usize);
        match self.canary {
            Some(canary) if !self.canary_passed => canary.min(STEP_ITEMS_MAX),
            Some(_) | None => paced.clamp(1, STEP_ITEMS_MAX),
        }
    }
}

/// Looks at those that went first; says whether they have come to an end.
async fn watch(store: &dyn Backend, kept: &mut Kept) -> Answer<bool> {
    let jobs = store.get(kept.canaries.clone()).await?;
    let failed = |job: &Option<Job>| {
        job.as_ref().is_none_or(|job| matches!(job.state, State::Dead | State::Cancelled))
    };
    if jobs.iter().any(failed) {
        kept.end(OperationState::CanaryFailed);
        return Ok(true);
    }
    let passed = jobs.iter().flatten().all(|job| job.state == State::Succeeded);
    if passed {
        kept.canary_passed = true;
        kept.canaries.clear();
        if kept.cursor.is_none() {
            kept.end(OperationState::Done);
        }
    }
    Ok(passed)
}

async fn save(store: &dyn Backend, id: &str, expect: Expect, kept: &Kept) -> Result<Option<u64>, StoreError> {
    let value = serde_json::to_vec(kept).unwrap_or_else(|e| unreachable!("plain data becomes JSON: {e}"));
    let change = Change { kind: KIND.to_owned(), id: id.to_owned(), expect, value: Some(value) };
    match store.write(change).await? {
        Written::Done(version) => Ok(Some(version)),
        Written::Conflict(_) => Ok(None),
    }
}

fn decode(record: &Record) -> Result<Kept, StoreError> {
    serde_json::from_slice(&record.value)
        .map_err(|e| StoreError::Corrupt(format!("record {KIND} {:?}: {e}", record.id)))
}
