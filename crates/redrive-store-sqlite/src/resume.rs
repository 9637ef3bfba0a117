//! Makes jobs due whose wait has come to an end.

use redrive_core::steps::Swept;
use redrive_core::{Await, JobId, State, StoreError, Timestamp};
use rusqlite::{OptionalExtension, Row, ToSql};
use uuid::Uuid;

use crate::awaits::{self, Number};
use crate::cancel::end_branch;
use crate::error::Sorted;
use crate::row::column;
use crate::turns::is_its_turn;
use crate::writer::Tx;

pub(crate) fn resume(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    ids.iter().map(|id| resume_one(tx, *id)).collect()
}

pub(crate) fn sweep(tx: &mut Tx<'_>, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
    let after = after.map_or(Vec::new(), |id| id.0.as_bytes().to_vec());
    let waiting: Vec<JobId> = {
        let mut statement = tx.conn.prepare_cached(include_str!("../sql/sweep.sql")).sorted()?;
        let ids = statement.query_map((after, limit as i64), |row| Ok(JobId(Uuid::from_bytes(row.get(0)?))));
        ids.sorted()?.collect::<rusqlite::Result<_>>().sorted()?
    };
    let mut swept = Swept { resumed: Vec::new(), last: waiting.last().copied() };
    for id in waiting {
        if resume_one(tx, id)? {
            swept.resumed.push(id);
        }
    }
    Ok(swept)
}

/// Resumes a job if what it waits for has come.
pub(crate) fn resume_one(tx: &mut Tx<'_>, id: JobId) -> Result<bool, StoreError> {
    let Some(waiting) = find(tx, id)? else { return Ok(false) };
    let mut wait = WaitState::default();
    for part in waiting.awaits.parts() {
        wait.look_at(tx, id, &waiting, part)?;
    }
    if !wait.is_over {
        return Ok(false);
    }
    for branch in &wait.failed {
        end_branch(tx, id, *branch)?;
    }
    let ahead = wait.any_child_is_live(tx, id)?;
    let waited = waiting.waited(tx.now);
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/resume.sql")).sorted()?;
    statement.execute((waiting.seq, waiting.due_after(waited, ahead), waited)).sorted()?;
    tx.tally.leave(waiting.lane, waiting.state, 1);
    tx.tally.enter(waiting.lane, State::Pending, 1);
    *tx.wake = true;
    Ok(true)
}

/// A job that waits for something.
struct Waiting {
    seq: i64,
    lane: i64,
    state: State,
    awaits: Await,
    held: bool,
    next_run_at: i64,
    started_at: Option<i64>,
    partition: Option<String>,
    strict: bool,
}

impl Waiting {
    /// The time it has waited by choice: a wait for its turn is none, and a hold does not bring forward what is due later.
    fn waited(&self, now: Timestamp) -> i64 {
        let waited = now.as_ms() - self.next_run_at;
        match self.awaits {
            Await::Signal(_) | Await::Children { .. } | Await::Any(_) => waited,
            Await::Unhold => waited.max(0),
            Await::Turn => 0,
        }
    }

    /// When it is due after a wait of that length; before its children if one of those has not ended.
    fn due_after(&self, waited: i64, ahead: bool) -> i64 {
        let due = self.next_run_at + waited;
        self.started_at.filter(|_| ahead).map_or(due, |started| due.min(started - 1))
    }
}

fn find(tx: &Tx<'_>, id: JobId) -> Result<Option<Waiting>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/resume_awaits.sql")).sorted()?;
    let mut rows = statement.query([id.0.as_bytes()]).sorted()?;
    rows.next().sorted()?.map(|row| waiting(row, id)).transpose()
}

fn waiting(row: &Row<'_>, id: JobId) -> Result<Waiting, StoreError> {
    let damaged = |what: &str| StoreError::Corrupt(format!("job {id}: {what} cannot be read"));
    let number = |which| match which {
        Number::Branch => column(row, 5),
        Number::Failures => column(row, 6),
    };
    let awaits = awaits::read(row.get(3).sorted()?, || column(row, 4), number)?;
    Ok(Waiting {
        seq: row.get(0).sorted()?,
        lane: row.get(1).sorted()?,
        state: State::from_code(row.get(2).sorted()?).ok_or_else(|| damaged("state"))?,
        awaits: awaits.ok_or_else(|| damaged("awaits"))?,
        held: row.get(7).sorted()?,
        partition: row.get(8).sorted()?,
        strict: row.get(9).sorted()?,
        next_run_at: row.get(10).sorted()?,
        started_at: row.get(11).sorted()?,
    })
}

/// What is known of a wait, part by part.
#[derive(Default)]
struct WaitState {
    /// One of its parts has come.
    is_over: bool,
    /// The fan-outs it waits for.
    branches: Vec<u32>,
    /// Those of them of which too many children have failed.
    failed: Vec<u32>,
}

impl WaitState {
    fn look_at(&mut self, tx: &Tx<'_>, id: JobId, waiting: &Waiting, part: &Await) -> Result<(), StoreError> {
        self.is_over |= match part {
            Await::Signal(name) => {
                exists(tx, include_str!("../sql/resume_signal.sql"), &[id.0.as_bytes(), &name.as_str()])?
            }
            Await::Children { branch, failures_max } => {
                self.branches.push(*branch);
                let most = i64::from(*failures_max) + 1;
                let has_failed = failed(tx, id, *branch, most)? == most;
                self.failed.extend(has_failed.then_some(*branch));
                has_failed || !has_live_children(tx, id, *branch)?
            }
            Await::Unhold => !waiting.held,
            Await::Turn => is_its_turn(tx, id, waiting.lane, waiting.partition.as_deref(), waiting.strict)?,
            // A wait for several things has no wait for several things in it.
            Await::Any(_) => false,
        };
        Ok(())
    }

    fn any_child_is_live(&self, tx: &Tx<'_>, id: JobId) -> Result<bool, StoreError> {
        for branch in &self.branches {
            if has_live_children(tx, id, *branch)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn has_live_children(tx: &Tx<'_>, id: JobId, branch: u32) -> Result<bool, StoreError> {
    exists(tx, include_str!("../sql/resume_live.sql"), &[id.0.as_bytes(), &branch])
}

fn exists(tx: &Tx<'_>, sql: &str, parameters: &[&dyn ToSql]) -> Result<bool, StoreError> {
    let mut statement = tx.conn.prepare_cached(sql).sorted()?;
    Ok(statement.query_row(parameters, |_| Ok(())).optional().sorted()?.is_some())
}

fn failed(tx: &Tx<'_>, id: JobId, branch: u32, most: i64) -> Result<i64, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/resume_failed.sql")).sorted()?;
    statement.query_row((id.0.as_bytes(), branch, most), |row| row.get(0)).sorted()
}
