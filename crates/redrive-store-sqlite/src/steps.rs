//! Durable jobs: steps, signals, and the end of waits.

use redrive_core::steps::{
    ForgetResult, NewStep, RememberResult, Signal, SignalResult, Step, StepKind, SweepResult,
};
use redrive_core::{JobId, Lease, SignalName, State, StepName, StoreError, Timestamp, WaitCondition};
use redrive_sql::Statement;
use rusqlite::{Connection, OptionalExtension, Row};
use uuid::Uuid;

use crate::error::{Result, corrupt};
use crate::lifecycle::enqueue;
use crate::limits::has_free_slot;
use crate::operate::end_children;
use crate::read::get_state;
use crate::row::{id_bytes, read_wait_condition};
use crate::sql::STEPS;
use crate::writer::Tx;

static RECALL: Statement = STEPS.statement("recall");
static READ_LEASE: Statement = STEPS.statement("read_lease");
static INSERT_STEP: Statement = STEPS.statement("insert_step");
static DELETE_STEPS: Statement = STEPS.statement("delete_steps");
static INSERT_SIGNAL: Statement = STEPS.statement("insert_signal");
static TAKE_SIGNAL: Statement = STEPS.statement("take_signal");
static PENDING_SIGNALS: Statement = STEPS.statement("pending_signals");
static HAS_SIGNAL: Statement = STEPS.statement("has_signal");
static WAITING_JOBS: Statement = STEPS.statement("waiting_jobs");
static FIND_WAITING: Statement = STEPS.statement("find_waiting");
static HAS_LIVE_CHILD: Statement = STEPS.statement("has_live_child");
static COUNT_FAILED_CHILDREN: Statement = STEPS.statement("count_failed_children");
static RESUME: Statement = STEPS.statement("resume");

/// The steps of a job from the place `from` on.
pub(crate) fn recall(conn: &Connection, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>> {
    let mut statement = conn.prepare_cached(&RECALL)?;
    let mut rows = statement.query((id.0.as_bytes(), from, limit as i64))?;
    let mut steps = Vec::new();
    while let Some(row) = rows.next()? {
        let code: u8 = row.get(2)?;
        let kind = StepKind::from_code(code);
        steps.push(Step {
            place: row.get(0)?,
            name: StepName::new(row.get::<_, String>(1)?)?,
            kind: kind.ok_or_else(|| corrupt(format!("{code} is not a kind of step")))?,
            value: row.get(3)?,
        });
    }
    Ok(steps)
}

/// Stores steps under the leases of their jobs. Each takes its signal and adds its children in the same write.
pub(crate) fn remember(tx: &mut Tx<'_>, steps: &[NewStep]) -> Result<Vec<RememberResult>> {
    for step in steps {
        enqueue::start_times(tx, &step.children)?;
    }
    steps.iter().map(|step| remember_one(tx, step)).collect()
}

fn remember_one(tx: &mut Tx<'_>, new: &NewStep) -> Result<RememberResult> {
    let id = new.lease.id;
    let Some(cancel_requested) = read_lease(tx, new.lease)? else { return Ok(RememberResult::LeaseLost) };
    let step = &new.step;
    if new.takes.is_some() || cancel_requested {
        if let Some(existing) = find_step(tx, id, step.place)? {
            return Ok(RememberResult::AlreadyStored(existing));
        }
        if cancel_requested && !new.children.is_empty() {
            return Ok(RememberResult::CancelRequested);
        }
    }
    if let Some(signal) = new.takes
        && !take_signal(tx, id, signal)?
    {
        return Ok(RememberResult::NoSignal);
    }
    if !insert_step(tx, id, step)? {
        let missing = || StoreError::Failed("a step conflicted with a step that does not exist".into());
        let existing = find_step(tx, id, step.place)?;
        return Ok(existing.map(RememberResult::AlreadyStored).ok_or_else(missing)?);
    }
    if !new.children.is_empty() {
        enqueue::insert_all(tx, &new.children)?;
    }
    Ok(RememberResult::Stored(step.clone()))
}

/// Whether a cancel of the job was requested, or `None` if the lease is lost.
fn read_lease(tx: &Tx<'_>, lease: Lease) -> Result<Option<bool>> {
    let Some(row) = tx.leased.find(tx.conn, lease.id)? else { return Ok(None) };
    let mut statement = tx.conn.prepare_cached(&READ_LEASE)?;
    let parameters = (row.seq, lease.id.0.as_bytes(), lease.epoch as i64);
    Ok(statement.query_row(parameters, |row| row.get(0)).optional()?)
}

/// Stores a step; false if its place has one already.
pub(crate) fn insert_step(tx: &Tx<'_>, id: JobId, step: &Step) -> Result<bool> {
    let mut statement = tx.conn.prepare_cached(&INSERT_STEP)?;
    let parameters = (id.0.as_bytes(), step.place, step.kind.code(), step.name.as_str(), &step.value);
    Ok(statement.execute(parameters)? == 1)
}

fn find_step(tx: &Tx<'_>, id: JobId, place: u32) -> Result<Option<Step>> {
    let first = recall(tx.conn, id, place, 1)?.pop();
    Ok(first.filter(|step| step.place == place))
}

/// Deletes the steps of dead jobs.
pub(crate) fn forget(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<ForgetResult>> {
    ids.iter().map(|id| forget_one(tx, *id)).collect()
}

fn forget_one(tx: &Tx<'_>, id: JobId) -> Result<ForgetResult> {
    match get_state(tx.conn, id)? {
        None => Ok(ForgetResult::NotFound),
        Some((_, State::Dead)) => {
            tx.conn.prepare_cached(&DELETE_STEPS)?.execute([id.0.as_bytes()])?;
            Ok(ForgetResult::Done)
        }
        Some((_, state)) => Ok(ForgetResult::NotDead(state)),
    }
}

/// Stores signals for jobs that have not ended.
pub(crate) fn signal(tx: &mut Tx<'_>, signals: &[Signal]) -> Result<Vec<SignalResult>> {
    signals.iter().map(|signal| signal_one(tx, signal)).collect()
}

fn signal_one(tx: &Tx<'_>, signal: &Signal) -> Result<SignalResult> {
    match get_state(tx.conn, signal.job)? {
        None => Ok(SignalResult::NotFound),
        Some((_, state)) if state.is_final() => Ok(SignalResult::Ended(state)),
        Some(_) => {
            let mut statement = tx.conn.prepare_cached(&INSERT_SIGNAL)?;
            let (job, id) = (signal.job.0.as_bytes(), signal.id.as_bytes());
            statement.execute((job, id, signal.name.as_str(), &signal.value))?;
            Ok(SignalResult::Stored)
        }
    }
}

/// The signals with any of these names that no step has taken, in the order of their arrival.
pub(crate) fn pending_signals(
    conn: &Connection,
    job: JobId,
    names: &[SignalName],
    limit: usize,
) -> Result<Vec<Signal>> {
    let names: Vec<&str> = names.iter().map(SignalName::as_str).collect();
    let names = serde_json::Value::from(names).to_string();
    let mut statement = conn.prepare_cached(&PENDING_SIGNALS)?;
    let mut rows = statement.query((job.0.as_bytes(), names, limit as i64))?;
    let mut signals = Vec::new();
    while let Some(row) = rows.next()? {
        signals.push(Signal {
            job,
            id: Uuid::from_bytes(row.get(0)?),
            name: SignalName::new(row.get::<_, String>(1)?)?,
            value: row.get(2)?,
        });
    }
    Ok(signals)
}

/// Marks signals as taken; false, with nothing changed, if the lease is lost.
pub(crate) fn skip_signals(tx: &mut Tx<'_>, lease: Lease, signals: &[Uuid]) -> Result<bool> {
    if read_lease(tx, lease)?.is_none() {
        return Ok(false);
    }
    for signal in signals {
        take_signal(tx, lease.id, *signal)?;
    }
    Ok(true)
}

/// Marks a signal as taken; false if it does not exist or was taken before.
fn take_signal(tx: &Tx<'_>, id: JobId, signal: Uuid) -> Result<bool> {
    let mut statement = tx.conn.prepare_cached(&TAKE_SIGNAL)?;
    Ok(statement.execute((id.0.as_bytes(), signal.as_bytes()))? == 1)
}

/// Resumes those of the jobs whose wait is over.
pub(crate) fn resume(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<bool>> {
    ids.iter().map(|id| resume_one(tx, *id)).collect()
}

/// Resumes those of the next waiting jobs after `after` whose wait is over.
pub(crate) fn sweep(tx: &mut Tx<'_>, after: Option<JobId>, limit: usize) -> Result<SweepResult> {
    let waiting: Vec<JobId> = {
        let mut statement = tx.conn.prepare_cached(&WAITING_JOBS)?;
        let parameters = (id_bytes(after), limit as i64);
        let ids = statement.query_map(parameters, |row| Ok(JobId(Uuid::from_bytes(row.get(0)?))))?;
        ids.collect::<rusqlite::Result<_>>()?
    };
    let mut result = SweepResult { resumed: Vec::new(), last: waiting.last().copied() };
    for id in waiting {
        if resume_one(tx, id)? {
            result.resumed.push(id);
        }
    }
    Ok(result)
}

/// Resumes a job if its wait is over. Returns whether it was.
pub(crate) fn resume_one(tx: &mut Tx<'_>, id: JobId) -> Result<bool> {
    let Some(job) = find_waiting(tx, id)? else { return Ok(false) };
    let mut progress = WaitProgress::default();
    for part in job.condition.parts() {
        progress.check(tx, id, &job, part)?;
    }
    if !progress.is_over {
        return Ok(false);
    }
    for branch in &progress.failed_branches {
        end_children(tx, id, Some(*branch))?;
    }
    let before_children = progress.has_live_children(tx, id)?;
    let waited_ms = job.waited_ms(tx.now);
    let due = job.due_after(waited_ms, before_children);
    tx.conn.prepare_cached(&RESUME)?.execute((job.seq, due, waited_ms))?;
    tx.counts.transition(job.lane, job.state, State::Pending);
    *tx.wake = true;
    Ok(true)
}

/// A job that has a wait condition.
struct WaitingJob {
    seq: i64,
    lane: i64,
    state: State,
    condition: WaitCondition,
    paused: bool,
    partition: Option<String>,
    strict: bool,
    next_run_at: i64,
    started_at: Option<i64>,
}

impl WaitingJob {
    /// The time that the job waited by choice. A wait for a slot is not by choice, and the end of a pause does not
    /// bring forward a later due time.
    fn waited_ms(&self, now: Timestamp) -> i64 {
        let waited = now.as_ms() - self.next_run_at;
        match self.condition {
            WaitCondition::Signal(_) | WaitCondition::Children { .. } | WaitCondition::Any(_) => waited,
            WaitCondition::Unpaused => waited.max(0),
            WaitCondition::FreeSlot => 0,
        }
    }

    /// When the job is due after its wait. A parent with live children is due before them, so that they do not delay
    /// it.
    fn due_after(&self, waited_ms: i64, before_children: bool) -> i64 {
        let due = self.next_run_at + waited_ms;
        self.started_at.filter(|_| before_children).map_or(due, |started| due.min(started - 1))
    }
}

fn find_waiting(tx: &Tx<'_>, id: JobId) -> Result<Option<WaitingJob>> {
    let mut statement = tx.conn.prepare_cached(&FIND_WAITING)?;
    let mut rows = statement.query([id.0.as_bytes()])?;
    rows.next()?.map(|row| read_waiting(row, id)).transpose()
}

fn read_waiting(row: &Row<'_>, id: JobId) -> Result<WaitingJob> {
    let damaged = |column: &str| corrupt(format!("job {id}: {column} cannot be read"));
    Ok(WaitingJob {
        seq: row.get(0)?,
        lane: row.get(1)?,
        state: State::from_code(row.get(2)?).ok_or_else(|| damaged("state"))?,
        condition: read_wait_condition(row, [3, 4, 5, 6])?.ok_or_else(|| damaged("awaits"))?,
        paused: row.get(7)?,
        partition: row.get(8)?,
        strict: row.get(9)?,
        next_run_at: row.get(10)?,
        started_at: row.get(11)?,
    })
}

/// The state of a wait, after each part of its condition was checked.
#[derive(Default)]
struct WaitProgress {
    /// One part of the condition holds.
    is_over: bool,
    /// The fan-outs that the job waits for.
    branches: Vec<u32>,
    /// The fan-outs in which too many children have failed.
    failed_branches: Vec<u32>,
}

impl WaitProgress {
    fn check(&mut self, tx: &Tx<'_>, id: JobId, job: &WaitingJob, part: &WaitCondition) -> Result<()> {
        self.is_over |= match part {
            WaitCondition::Signal(name) => {
                tx.conn.prepare_cached(&HAS_SIGNAL)?.exists((id.0.as_bytes(), name.as_str()))?
            }
            WaitCondition::Children { branch, failures_max } => {
                self.branches.push(*branch);
                let has_failed = has_failed_children(tx, id, *branch, i64::from(*failures_max) + 1)?;
                self.failed_branches.extend(has_failed.then_some(*branch));
                has_failed || !has_live_child(tx, id, *branch)?
            }
            WaitCondition::Unpaused => !job.paused,
            WaitCondition::FreeSlot => has_free_slot(tx, id, job.lane, job.partition.as_deref(), job.strict)?,
            // The parts of a condition never contain `Any`.
            WaitCondition::Any(_) => false,
        };
        Ok(())
    }

    fn has_live_children(&self, tx: &Tx<'_>, id: JobId) -> Result<bool> {
        for branch in &self.branches {
            if has_live_child(tx, id, *branch)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn has_live_child(tx: &Tx<'_>, id: JobId, branch: u32) -> Result<bool> {
    Ok(tx.conn.prepare_cached(&HAS_LIVE_CHILD)?.exists((id.0.as_bytes(), branch))?)
}

/// Whether at least `failures` children of a fan-out are dead or cancelled.
fn has_failed_children(tx: &Tx<'_>, id: JobId, branch: u32, failures: i64) -> Result<bool> {
    let mut statement = tx.conn.prepare_cached(&COUNT_FAILED_CHILDREN)?;
    let failed: i64 = statement.query_row((id.0.as_bytes(), branch, failures), |row| row.get(0))?;
    Ok(failed == failures)
}
