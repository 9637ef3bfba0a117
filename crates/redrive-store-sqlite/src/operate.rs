//! Actions of operators on jobs: cancel, redrive, run now, discard, pause.

use std::collections::VecDeque;

use redrive_core::steps::PauseResult;
use redrive_core::store::{CancelResult, DiscardResult, RedriveResult, RunNowResult};
use redrive_core::{JobId, State};
use redrive_sql::Statement;
use rusqlite::{OptionalExtension, Row};
use uuid::Uuid;

use crate::error::{Result, corrupt};
use crate::lifecycle::prune::delete_job;
use crate::limits::offer_free_slots;
use crate::read::get_state;
use crate::sql::OPERATE;
use crate::steps::resume_one;
use crate::writer::Tx;

static FIND_JOB: Statement = OPERATE.statement("find_job");
static LIVE_CHILDREN: Statement = OPERATE.statement("live_children");
static CANCEL: Statement = OPERATE.statement("cancel");
static REQUEST_CANCEL: Statement = OPERATE.statement("request_cancel");
static REDRIVE: Statement = OPERATE.statement("redrive");
static RUN_NOW: Statement = OPERATE.statement("run_now");
static DELETE_DEAD: Statement = OPERATE.statement("delete_dead");
static PAUSE: Statement = OPERATE.statement("pause");
static UNPAUSE: Statement = OPERATE.statement("unpause");

/// Ends jobs that no worker holds, and asks the workers of running jobs to stop. The children of each job end in the
/// same write.
pub(crate) fn cancel(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<CancelResult>> {
    let results: Vec<CancelResult> = ids.iter().map(|id| cancel_one(tx, *id)).collect::<Result<_>>()?;
    for (id, result) in ids.iter().zip(&results) {
        if matches!(result, CancelResult::Done | CancelResult::Requested) {
            end_children(tx, *id, None)?;
        }
    }
    Ok(results)
}

fn cancel_one(tx: &mut Tx<'_>, id: JobId) -> Result<CancelResult> {
    let Some(job) = find_job(tx, id)? else { return Ok(CancelResult::NotFound) };
    if job.state.is_final() {
        return Ok(CancelResult::Ended(job.state));
    }
    end_or_request(tx, &job)?;
    Ok(if job.state == State::Running { CancelResult::Requested } else { CancelResult::Done })
}

/// Ends the children of a job, or of one of its fan-outs, and all their descendants, except detached ones.
pub(crate) fn end_children(tx: &mut Tx<'_>, id: JobId, mut branch: Option<u32>) -> Result<()> {
    let mut parents = VecDeque::from([id]);
    while let Some(parent) = parents.pop_front() {
        for child in live_children(tx, parent, branch.take())? {
            end_or_request(tx, &child)?;
            parents.push_back(child.id);
        }
    }
    Ok(())
}

/// Ends a job that has not ended, or asks its worker to stop if it is running.
fn end_or_request(tx: &mut Tx<'_>, job: &JobToCancel) -> Result<()> {
    if job.state == State::Running {
        tx.conn.prepare_cached(&REQUEST_CANCEL)?.execute([job.seq])?;
        *tx.cancel_requested = true;
        return Ok(());
    }
    tx.conn.prepare_cached(&CANCEL)?.execute((job.seq, tx.now.as_ms()))?;
    tx.counts.transition(job.lane, job.state, State::Cancelled);
    offer_free_slots(tx, job.lane, job.partition.as_deref())
}

/// The columns of a job that a cancel needs.
struct JobToCancel {
    seq: i64,
    id: JobId,
    lane: i64,
    state: State,
    partition: Option<String>,
}

impl JobToCancel {
    fn read(row: &Row<'_>) -> Result<Self> {
        let id = JobId(Uuid::from_bytes(row.get(1)?));
        let code = row.get(3)?;
        let state = State::from_code(code);
        let state = state.ok_or_else(|| corrupt(format!("job {id}: {code} is not a state")))?;
        Ok(Self { seq: row.get(0)?, id, lane: row.get(2)?, state, partition: row.get(4)? })
    }
}

fn find_job(tx: &Tx<'_>, id: JobId) -> Result<Option<JobToCancel>> {
    let mut statement = tx.conn.prepare_cached(&FIND_JOB)?;
    let mut rows = statement.query([id.0.as_bytes()])?;
    rows.next()?.map(JobToCancel::read).transpose()
}

fn live_children(tx: &Tx<'_>, parent: JobId, branch: Option<u32>) -> Result<Vec<JobToCancel>> {
    let mut statement = tx.conn.prepare_cached(&LIVE_CHILDREN)?;
    let mut rows = statement.query((parent.0.as_bytes(), branch))?;
    let mut children = Vec::new();
    while let Some(row) = rows.next()? {
        children.push(JobToCancel::read(row)?);
    }
    Ok(children)
}

/// Gives dead jobs a new run.
pub(crate) fn redrive(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<RedriveResult>> {
    ids.iter().map(|id| redrive_one(tx, *id)).collect()
}

fn redrive_one(tx: &mut Tx<'_>, id: JobId) -> Result<RedriveResult> {
    match get_state(tx.conn, id)? {
        None => Ok(RedriveResult::NotFound),
        Some((lane, State::Dead)) => {
            tx.conn.prepare_cached(&REDRIVE)?.execute((id.0.as_bytes(), tx.now.as_ms()))?;
            tx.counts.transition(lane, State::Dead, State::Pending);
            *tx.wake = true;
            Ok(RedriveResult::Done)
        }
        Some((_, state)) => Ok(RedriveResult::NotDead(state)),
    }
}

/// Makes jobs that wait for their due time due now.
pub(crate) fn run_now(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<RunNowResult>> {
    ids.iter().map(|id| run_one_now(tx, *id)).collect()
}

fn run_one_now(tx: &mut Tx<'_>, id: JobId) -> Result<RunNowResult> {
    match get_state(tx.conn, id)? {
        None => Ok(RunNowResult::NotFound),
        Some((_, state)) if state.is_claimable() => {
            tx.conn.prepare_cached(&RUN_NOW)?.execute((id.0.as_bytes(), tx.now.as_ms()))?;
            *tx.wake = true;
            Ok(RunNowResult::Done)
        }
        Some((_, state)) => Ok(RunNowResult::NotWaiting(state)),
    }
}

/// Deletes dead jobs with everything that belongs to them.
pub(crate) fn discard(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<DiscardResult>> {
    ids.iter().map(|id| discard_one(tx, *id)).collect()
}

fn discard_one(tx: &mut Tx<'_>, id: JobId) -> Result<DiscardResult> {
    match get_state(tx.conn, id)? {
        None => Ok(DiscardResult::NotFound),
        Some((lane, State::Dead)) => {
            delete_job(tx, &DELETE_DEAD, id, lane, State::Dead)?;
            Ok(DiscardResult::Done)
        }
        Some((_, state)) => Ok(DiscardResult::NotDead(state)),
    }
}

/// Pauses jobs that have not ended.
pub(crate) fn pause(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<PauseResult>> {
    ids.iter().map(|id| pause_one(tx, *id)).collect()
}

fn pause_one(tx: &mut Tx<'_>, id: JobId) -> Result<PauseResult> {
    let (lane, before) = match get_live_state(tx, id)? {
        Ok(live) => live,
        Err(result) => return Ok(result),
    };
    let mut statement = tx.conn.prepare_cached(&PAUSE)?;
    let code = statement.query_row([id.0.as_bytes()], |row| row.get(0)).optional()?;
    let state = code.and_then(State::from_code).unwrap_or(before);
    tx.counts.transition(lane, before, state);
    Ok(PauseResult::Done(state))
}

/// Ends the pauses of jobs, and resumes those that waited for nothing else.
pub(crate) fn unpause(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<PauseResult>> {
    ids.iter().map(|id| unpause_one(tx, *id)).collect()
}

fn unpause_one(tx: &mut Tx<'_>, id: JobId) -> Result<PauseResult> {
    let before = match get_live_state(tx, id)? {
        Ok((_, before)) => before,
        Err(result) => return Ok(result),
    };
    tx.conn.prepare_cached(&UNPAUSE)?.execute([id.0.as_bytes()])?;
    let resumed = resume_one(tx, id)?;
    Ok(PauseResult::Done(if resumed { State::Pending } else { before }))
}

/// The lane and state of a job that has not ended, or the result for a job that has ended or does not exist.
fn get_live_state(tx: &Tx<'_>, id: JobId) -> Result<Result<(i64, State), PauseResult>> {
    Ok(match get_state(tx.conn, id)? {
        None => Err(PauseResult::NotFound),
        Some((_, state)) if state.is_final() => Err(PauseResult::Ended(state)),
        Some(live) => Ok(live),
    })
}
