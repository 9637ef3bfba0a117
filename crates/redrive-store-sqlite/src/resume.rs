//! Makes jobs due whose wait has come to an end.

use redrive_core::steps::Swept;
use redrive_core::{Await, JobId, State, StoreError, Timestamp};
use rusqlite::{OptionalExtension, Row, ToSql};
use uuid::Uuid;

use crate::awaits::{self, Number};
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
    if !has_come(tx, id, &waiting)? {
        return Ok(false);
    }
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/resume.sql")).sorted()?;
    statement.execute((waiting.seq, waiting.waited(tx.now))).sorted()?;
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
    partition: Option<String>,
    strict: bool,
}

impl Waiting {
    /// The time it has waited by choice: a wait for its turn is none, and a hold does not bring forward what is due later.
    fn waited(&self, now: Timestamp) -> i64 {
        let waited = now.as_ms() - self.next_run_at;
        match self.awaits {
            Await::Signal(_) | Await::Children { .. } => waited,
            Await::Unhold => waited.max(0),
            Await::Turn => 0,
        }
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
    })
}

fn has_come(tx: &Tx<'_>, id: JobId, waiting: &Waiting) -> Result<bool, StoreError> {
    let job = id.0.as_bytes();
    match &waiting.awaits {
        Await::Signal(name) => exists(tx, include_str!("../sql/resume_signal.sql"), &[job, &name.as_str()]),
        Await::Children { branch, failures_max } => {
            let live = exists(tx, include_str!("../sql/resume_live.sql"), &[job, branch])?;
            Ok(!live || failed(tx, id, *branch, i64::from(*failures_max) + 1)? > i64::from(*failures_max))
        }
        Await::Unhold => Ok(!waiting.held),
        Await::Turn => is_its_turn(tx, id, waiting.lane, waiting.partition.as_deref(), waiting.strict),
    }
}

fn exists(tx: &Tx<'_>, sql: &str, parameters: &[&dyn ToSql]) -> Result<bool, StoreError> {
    let mut statement = tx.conn.prepare_cached(sql).sorted()?;
    Ok(statement.query_row(parameters, |_| Ok(())).optional().sorted()?.is_some())
}

fn failed(tx: &Tx<'_>, id: JobId, branch: u32, most: i64) -> Result<i64, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/resume_failed.sql")).sorted()?;
    statement.query_row((id.0.as_bytes(), branch, most), |row| row.get(0)).sorted()
}
