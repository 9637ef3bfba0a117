//! Long operations on many jobs: records that survive a restart, driven step by step by whichever node holds them.
//!
//! Each job is visited at most once: the cursor goes by id, and only what was there, or dead, when the operation began is
//! touched. A step acts first and saves then: after a crash between the two its jobs are no longer what the operation is
//! about, or it changes nothing to act on them again, so the next owner passes them over.

mod act;
mod drive;

use std::time::Duration;

use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::store::{Backend, Cursor, Filter};
use redrive_core::{JobId, State, StoreError, Tenant, Timestamp};
use redrive_delivery::KIND as DELIVERY;
use serde::{Deserialize, Serialize};

use crate::api;
use crate::error::{Answer, Code, Problem};
use crate::walk::Counting;
use crate::wire::filter::{JobFilter, Wanted};
use crate::wire::job::JobState;
use crate::wire::operation::{Operation, OperationKind, OperationState};

pub(crate) use drive::drive;

/// The record kind of operations; the id is a UUID.
const KIND: &str = "operation";
/// Jobs in one step.
const STEP_ITEMS_MAX: usize = 500;
/// How much of a rate one step takes.
const STEP_OF_RATE: f64 = 0.2;

/// An operation as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Kept {
    kind: OperationKind,
    pub(crate) tenant: Option<Tenant>,
    filter: JobFilter,
    rate_per_second: Option<f64>,
    canary: Option<usize>,
    state: OperationState,
    matched: Option<u64>,
    /// How many were counted so far, and where the count goes on.
    #[serde(default)]
    counted: u64,
    #[serde(default)]
    count_cursor: Option<String>,
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
    pub(crate) filter: JobFilter,
    pub(crate) rate_per_second: Option<f64>,
    pub(crate) canary: Option<usize>,
}

/// Begins an operation; some node takes it up.
pub(crate) async fn begin(store: &dyn Backend, mut new: NewOperation) -> Answer<(String, Kept)> {
    if let [only] = new.kind.states() {
        new.filter.state = Some((*only).into());
    }
    // The store's clock, since it is the one that says when a job came or died.
    let created_at = store.stats().await?.now;
    let kept = Kept {
        kind: new.kind,
        tenant: new.tenant,
        filter: new.filter,
        rate_per_second: new.rate_per_second,
        canary: new.canary,
        state: OperationState::Running,
        matched: None,
        counted: 0,
        count_cursor: None,
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

    /// One of an earlier version did not say that it was about dead letters, and about tasks unless it named a kind.
    fn explicit(mut self) -> Self {
        let dead = self.kind.states() == [State::Dead];
        if dead && self.filter.state.is_none() {
            self.filter.state = Some(JobState::Dead);
            self.filter.kind.get_or_insert_with(|| DELIVERY.to_owned());
        }
        self
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

    /// The jobs that it is about, as they were when it began.
    fn wanted(&self) -> Answer<Wanted> {
        let began = self.created_at.after(Duration::from_millis(1));
        let mut wanted = self.kind.wanted(&self.filter, self.tenant.as_ref())?;
        let earlier = |before: Option<Timestamp>| Some(before.map_or(began, |before| before.min(began)));
        let filter = &mut wanted.filter;
        match self.kind {
            OperationKind::Redrive | OperationKind::Discard => {
                filter.finished_before = earlier(filter.finished_before);
            }
            OperationKind::Cancel | OperationKind::RunNow => {
                filter.created_before = earlier(filter.created_before);
            }
        }
        Ok(wanted)
    }

    fn counting(&self) -> Answer<Counting> {
        Ok(Counting::from(self.counted, cursor(self.count_cursor.as_deref())?))
    }

    /// Notes how far the count has come.
    fn note(&mut self, counting: &Counting) {
        self.counted = counting.jobs;
        self.count_cursor = counting.after.map(|cursor| cursor.to_string());
        self.matched = counting.is_done().then_some(counting.jobs);
    }

    fn step_items(&self) -> usize {
        let paced = self.rate_per_second.map_or(STEP_ITEMS_MAX, |rate| (rate * STEP_OF_RATE) as usize);
        match self.canary {
            Some(canary) if !self.canary_passed => canary.min(STEP_ITEMS_MAX),
            Some(_) | None => paced.clamp(1, STEP_ITEMS_MAX),
        }
    }
}

impl OperationKind {
    /// The states whose jobs it is for.
    fn states(self) -> &'static [State] {
        match self {
            Self::Redrive | Self::Discard => &[State::Dead],
            Self::Cancel => &[State::Pending, State::Retrying, State::Running, State::Waiting],
            Self::RunNow => &[State::Pending, State::Retrying],
        }
    }

    /// The jobs that a filter means for it; one that could never match is refused.
    pub(crate) fn wanted(self, filter: &JobFilter, own: Option<&Tenant>) -> Answer<Wanted> {
        let wanted = filter.wanted(own)?;
        let states = match filter.state.map(State::from) {
            None => self.states().to_vec(),
            Some(state) if self.states().contains(&state) => vec![state],
            Some(_) => {
                let allowed: Vec<&str> = self.states().iter().map(|state| state.name()).collect();
                let detail = format!("must be {} for this kind of operation", allowed.join(" or "));
                return Err(Problem::invalid("state", detail));
            }
        };
        Ok(Wanted { filter: Filter { states, ..wanted.filter }, ..wanted })
    }
}

fn cursor(text: Option<&str>) -> Answer<Option<Cursor>> {
    Ok(text.map(str::parse).transpose()?)
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
    let kept: Kept = serde_json::from_slice(&record.value)
        .map_err(|e| StoreError::Corrupt(format!("record {KIND} {:?}: {e}", record.id)))?;
    Ok(kept.explicit())
}
