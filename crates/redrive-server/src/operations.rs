//! Operations on many jobs. An operation is a record, so it survives a restart. The node that owns it runs it step by step.
//!
//! An operation acts on each job at most once. Its cursor follows the ids, and it selects only jobs that existed, or were dead, when
//! it was created. A step first acts and then saves its progress. After a crash between the two, the next owner repeats the step:
//! the jobs of that step no longer match, or a second action does not change them.

mod actions;
mod runner;

use std::time::Duration;

use redrive_core::records::{RecordEdit, RecordValue};
use redrive_core::store::{Backend, BoxError, Cursor, Filter};
use redrive_core::{JobId, Records, State, Tenant, Timestamp};
use redrive_delivery::KIND as DELIVERY;
use serde::{Deserialize, Serialize};

use crate::api;
use crate::error::{Answer, Problem};
use crate::job_search::JobCounter;
use crate::selection::JobSelection;
use redrive_wire::Code;
use redrive_wire::filter::JobFilter;
use redrive_wire::operation::{Operation, OperationKind, OperationState};
use redrive_wire::state::JobState;

pub(crate) use runner::run;

/// The maximum number of jobs in one step.
const STEP_ITEMS_MAX: usize = 500;
/// With a rate limit, one step acts on as many jobs as the rate allows in this many seconds.
const PACED_STEP_SECONDS: f64 = 0.2;

/// The stored form of an operation. The id of the record is a UUID.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredOperation {
    kind: OperationKind,
    pub(crate) tenant: Option<Tenant>,
    filter: JobFilter,
    rate_per_second: Option<f64>,
    canary: Option<usize>,
    state: OperationState,
    matched: Option<u64>,
    /// The jobs counted so far. The count continues at `count_cursor`.
    #[serde(default)]
    counted: u64,
    #[serde(default)]
    count_cursor: Option<String>,
    done: u64,
    failed: u64,
    /// Where the next step continues.
    cursor: Option<String>,
    /// The first jobs, until all of them have succeeded.
    canaries: Vec<JobId>,
    canary_passed: bool,
    created_at: Timestamp,
    finished_at: Option<Timestamp>,
    owner: Option<String>,
    owned_until: Timestamp,
}

/// A request for an operation.
#[derive(Debug)]
pub(crate) struct NewOperation {
    pub(crate) kind: OperationKind,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) filter: JobFilter,
    pub(crate) rate_per_second: Option<f64>,
    pub(crate) canary: Option<usize>,
}

/// Creates an operation. A node of the service will run it.
pub(crate) async fn begin(store: &dyn Backend, mut new: NewOperation) -> Answer<(String, StoredOperation)> {
    if let [only] = states(new.kind) {
        new.filter.state = Some((*only).into());
    }
    // The store's clock, because it also sets the times at which jobs are created and die.
    let created_at = store.stats().await?.now;
    let operation = StoredOperation {
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
    match operations(store).create(&id, &operation).await? {
        Some(_) => Ok((id, operation)),
        None => Err(Problem::internal(&"a random operation id is already in use")),
    }
}

/// The operation with this id.
pub(crate) async fn find(store: &dyn Backend, id: &str) -> Answer<Option<StoredOperation>> {
    Ok(operations(store).get(id).await?.map(|record| record.value))
}

/// All operations with their ids. They are removed a week after their end.
pub(crate) async fn all(store: &dyn Backend) -> Answer<Vec<(String, StoredOperation)>> {
    let records = operations(store).all("").await?;
    Ok(records.into_iter().map(|record| (record.id, record.value)).collect())
}

/// Cancels an operation. It ends after its current step.
pub(crate) async fn cancel(store: &dyn Backend, id: &str) -> Answer<StoredOperation> {
    let cancel = |stored: Option<StoredOperation>| {
        let mut operation = stored.ok_or_else(|| Problem::not_found("operation", id))?;
        if operation.state != OperationState::Running {
            return Err(Problem::new(Code::OperationEnded, "the operation has already ended"));
        }
        operation.end(OperationState::Cancelled);
        Ok(RecordEdit::Put(operation.clone(), operation))
    };
    operations(store).update(id, cancel).await
}

/// The phase that the next step belongs to.
enum Phase {
    /// Counts the jobs that match.
    Count,
    /// Waits for the canaries to succeed.
    Watch,
    /// Acts on the next jobs.
    Act,
}

impl RecordValue for StoredOperation {
    const KIND: &'static str = "operation";

    fn decode(bytes: &[u8]) -> Result<Self, BoxError> {
        Ok(serde_json::from_slice::<Self>(bytes)?.with_explicit_filter())
    }
}

impl StoredOperation {
    /// The operation as the API shows it.
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

    /// Completes the filter of an operation that an earlier version stored. There, a redrive or discard implied dead letters, and
    /// tasks unless the filter named a kind.
    fn with_explicit_filter(mut self) -> Self {
        let dead = states(self.kind) == [State::Dead];
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

    /// Selects the jobs that matched when the operation was created.
    fn selected_jobs(&self) -> Answer<JobSelection> {
        let began = self.created_at.after(Duration::from_millis(1));
        let mut selected_jobs = selection(self.kind, &self.filter, self.tenant.as_ref())?;
        let earlier = |before: Option<Timestamp>| Some(before.map_or(began, |before| before.min(began)));
        let filter = &mut selected_jobs.filter;
        match self.kind {
            OperationKind::Redrive | OperationKind::Discard => {
                filter.finished_before = earlier(filter.finished_before);
            }
            OperationKind::Cancel | OperationKind::RunNow => {
                filter.created_before = earlier(filter.created_before);
            }
        }
        Ok(selected_jobs)
    }

    fn counter(&self) -> Answer<JobCounter> {
        Ok(JobCounter::resume(self.counted, cursor(self.count_cursor.as_deref())?))
    }

    /// Stores the progress of the count.
    fn save_count(&mut self, counter: &JobCounter) {
        self.counted = counter.jobs;
        self.count_cursor = counter.after.map(|cursor| cursor.to_string());
        self.matched = counter.is_done().then_some(counter.jobs);
    }

    fn step_items(&self) -> usize {
        let paced = self.rate_per_second.map_or(STEP_ITEMS_MAX, |rate| (rate * PACED_STEP_SECONDS) as usize);
        match self.canary {
            Some(canary) if !self.canary_passed => canary.min(STEP_ITEMS_MAX),
            Some(_) | None => paced.clamp(1, STEP_ITEMS_MAX),
        }
    }
}

/// The states of the jobs that an operation can act on.
fn states(kind: OperationKind) -> &'static [State] {
    match kind {
        OperationKind::Redrive | OperationKind::Discard => &[State::Dead],
        OperationKind::Cancel => &[State::Pending, State::Retrying, State::Running, State::Waiting],
        OperationKind::RunNow => &[State::Pending, State::Retrying],
    }
}

/// The jobs that a filter selects for an operation. A filter that can never match is rejected.
pub(crate) fn selection(
    kind: OperationKind,
    filter: &JobFilter,
    own: Option<&Tenant>,
) -> Answer<JobSelection> {
    let selection = JobSelection::for_tenant(filter, own)?;
    let allowed = states(kind);
    let states: Vec<State> = match filter.state {
        None => allowed.to_vec(),
        Some(state) => state.stored_states().into_iter().filter(|state| allowed.contains(state)).collect(),
    };
    if states.is_empty() {
        let allowed: Vec<&str> = allowed.iter().map(|state| state.name()).collect();
        let detail = format!("must be {} for this kind of operation", allowed.join(" or "));
        return Err(Problem::invalid("state", detail));
    }
    Ok(JobSelection { filter: Filter { states, ..selection.filter }, ..selection })
}

fn cursor(text: Option<&str>) -> Answer<Option<Cursor>> {
    Ok(text.map(str::parse).transpose()?)
}

fn operations(store: &dyn Backend) -> Records<'_, StoredOperation> {
    Records::new(store)
}
