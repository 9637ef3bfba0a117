//! Operator actions: cancel, redrive, run now, discard, pause, forget.

use std::collections::HashMap;

use redrive_core::steps::{ForgetResult, PauseResult};
use redrive_core::store::{CancelResult, DiscardResult, RedriveResult, RunNowResult};
use redrive_core::{JobId, State};
use redrive_sql::Statement;
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Result;
use crate::lifecycle::job_tree::{self, JobTree};
use crate::open::Inner;
use crate::pool::Parameter;
use crate::steps::resume;
use crate::{row, sql};

static REDRIVE: Statement = sql::OPERATE.statement("redrive");
static RUN_NOW: Statement = sql::OPERATE.statement("run_now");
static DISCARD: Statement = sql::RETENTION.statement("discard");
static PAUSE: Statement = sql::OPERATE.statement("pause");
static UNPAUSE: Statement = sql::OPERATE.statement("unpause");
static FORGET: Statement = sql::OPERATE.statement("forget");

/// Cancels jobs with all their descendants. Also reports whether another job got a slot that these freed.
pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<(Vec<CancelResult>, bool)> {
    let mut tree = JobTree::new(inner.manual_now());
    let distinct = distinct(ids);
    let previous = inner.pool.transaction(async |client| tree.cancel_in(client, &distinct).await).await?;
    Ok((cancel_results(ids, previous), job_tree::finish(inner, tree).await))
}

/// Cancels in a transaction of the caller, who commits it and then calls [`job_tree::after_commit`].
pub(crate) async fn cancel_in(
    client: &Client,
    now: Option<i64>,
    ids: &[JobId],
) -> Result<(Vec<CancelResult>, JobTree)> {
    let mut tree = JobTree::new(now);
    let previous = tree.cancel_in(client, &distinct(ids)).await?;
    tree.cancel_descendants_in(client).await?;
    Ok((cancel_results(ids, previous), tree))
}

/// The results as if the jobs were cancelled one after the other: a repeated id finds a job that has ended.
fn cancel_results(ids: &[JobId], mut previous: HashMap<Uuid, State>) -> Vec<CancelResult> {
    let result = |id: &JobId| match previous.get_mut(&id.0) {
        None => CancelResult::NotFound,
        Some(state) if state.is_final() => CancelResult::Ended(*state),
        Some(State::Running) => CancelResult::Requested,
        Some(state) => {
            *state = State::Cancelled;
            CancelResult::Done
        }
    };
    ids.iter().map(result).collect()
}

pub(crate) async fn redrive(inner: &Inner, ids: &[JobId]) -> Result<Vec<RedriveResult>> {
    let mut previous = change_at_now(inner, &REDRIVE, ids).await?;
    let result = |id: &JobId| match previous.get(&id.0).copied() {
        None => RedriveResult::NotFound,
        Some(State::Dead) => {
            previous.insert(id.0, State::Pending);
            RedriveResult::Done
        }
        Some(state) => RedriveResult::NotDead(state),
    };
    Ok(ids.iter().map(result).collect())
}

pub(crate) async fn run_now(inner: &Inner, ids: &[JobId]) -> Result<Vec<RunNowResult>> {
    let previous = change_at_now(inner, &RUN_NOW, ids).await?;
    let result = |id: &JobId| match previous.get(&id.0).copied() {
        None => RunNowResult::NotFound,
        Some(state) if state.is_claimable() => RunNowResult::Done,
        Some(state) => RunNowResult::NotWaiting(state),
    };
    Ok(ids.iter().map(result).collect())
}

pub(crate) async fn discard(inner: &Inner, ids: &[JobId]) -> Result<Vec<DiscardResult>> {
    let mut previous = change_at_now(inner, &DISCARD, ids).await?;
    let result = |id: &JobId| match previous.get(&id.0).copied() {
        None => DiscardResult::NotFound,
        Some(State::Dead) => {
            previous.remove(&id.0);
            DiscardResult::Done
        }
        Some(state) => DiscardResult::NotDead(state),
    };
    Ok(ids.iter().map(result).collect())
}

pub(crate) async fn pause(inner: &Inner, ids: &[JobId]) -> Result<Vec<PauseResult>> {
    Ok(pause_results(ids, &change(inner, &PAUSE, ids).await?))
}

/// Ends the pause of jobs, resumes those that waited for it, and reports whether there were any. If the node fails after
/// the first statement, a sweep resumes them.
pub(crate) async fn unpause(inner: &Inner, ids: &[JobId]) -> Result<(Vec<PauseResult>, bool)> {
    let mut states = change(inner, &UNPAUSE, ids).await?;
    let resumed = resume::resume(inner, ids).await?;
    for (id, _) in ids.iter().zip(&resumed).filter(|(_, resumed)| **resumed) {
        if let Some(state) = states.get_mut(&id.0)
            && *state == State::Waiting
        {
            *state = State::Pending;
        }
    }
    Ok((pause_results(ids, &states), resumed.contains(&true)))
}

fn pause_results(ids: &[JobId], states: &HashMap<Uuid, State>) -> Vec<PauseResult> {
    let result = |id: &JobId| match states.get(&id.0).copied() {
        None => PauseResult::NotFound,
        Some(state) if state.is_final() => PauseResult::Ended(state),
        Some(state) => PauseResult::Done(state),
    };
    ids.iter().map(result).collect()
}

pub(crate) async fn forget(inner: &Inner, ids: &[JobId]) -> Result<Vec<ForgetResult>> {
    let states = change(inner, &FORGET, ids).await?;
    let result = |id: &JobId| match states.get(&id.0).copied() {
        None => ForgetResult::NotFound,
        Some(State::Dead) => ForgetResult::Done,
        Some(state) => ForgetResult::NotDead(state),
    };
    Ok(ids.iter().map(result).collect())
}

/// The ids without repetitions, in order, so that concurrent calls lock rows in the same order.
fn distinct(ids: &[JobId]) -> Vec<Uuid> {
    let mut ids = row::uuids(ids);
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Runs a statement that changes jobs by their states, and returns these states.
async fn change(inner: &Inner, sql: &str, ids: &[JobId]) -> Result<HashMap<Uuid, State>> {
    repeat(inner, sql, &[], ids).await
}

/// The same for a statement whose first parameter is the current time.
async fn change_at_now(inner: &Inner, sql: &str, ids: &[JobId]) -> Result<HashMap<Uuid, State>> {
    repeat(inner, sql, &[(&inner.manual_now(), Type::INT8)], ids).await
}

/// Runs a statement again for the jobs that moved meanwhile. Each time has a new snapshot, where they are elsewhere.
async fn repeat(
    inner: &Inner,
    sql: &str,
    first_parameters: &[Parameter<'_>],
    ids: &[JobId],
) -> Result<HashMap<Uuid, State>> {
    let mut states = HashMap::with_capacity(ids.len());
    let mut left = distinct(ids);
    while !left.is_empty() {
        let mut parameters = first_parameters.to_vec();
        parameters.push((&left, Type::UUID_ARRAY));
        let rows = inner.pool.query(sql, &parameters).await?;
        let mut moved = Vec::new();
        for row in &rows {
            let (id, state) = row::id_and_state(row)?;
            if row.try_get("moved")? {
                moved.push(id);
            } else {
                states.insert(id, state);
            }
        }
        left = moved;
    }
    Ok(states)
}
