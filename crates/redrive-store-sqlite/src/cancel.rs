//! Ends jobs that no worker holds; requests the end of those that are running. What ends early ends everything below it in
//! the same write.

use std::collections::VecDeque;

use redrive_core::store::Cancelled;
use redrive_core::{JobId, State, StoreError};
use rusqlite::{OptionalExtension, Row};
use uuid::Uuid;

use crate::error::Sorted;
use crate::turns::pass_on;
use crate::writer::Tx;

pub(crate) fn cancel(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
    let answers: Vec<Cancelled> = ids.iter().map(|id| cancel_one(tx, *id)).collect::<Result<_, _>>()?;
    for (id, answer) in ids.iter().zip(&answers) {
        if matches!(answer, Cancelled::Done | Cancelled::Requested) {
            end_below(tx, *id)?;
        }
    }
    Ok(answers)
}

fn cancel_one(tx: &mut Tx<'_>, id: JobId) -> Result<Cancelled, StoreError> {
    let Some(target) = find(tx, id)? else { return Ok(Cancelled::NotFound) };
    if target.state.is_final() {
        return Ok(Cancelled::Ended(target.state));
    }
    end_or_request(tx, &target)?;
    Ok(if target.state == State::Running { Cancelled::Requested } else { Cancelled::Done })
}

/// Ends everything below a job that is not detached.
pub(crate) fn end_below(tx: &mut Tx<'_>, id: JobId) -> Result<(), StoreError> {
    end_children(tx, id, None)
}

/// Ends the children of one fan-out that are not detached, with everything below them.
pub(crate) fn end_branch(tx: &mut Tx<'_>, id: JobId, branch: u32) -> Result<(), StoreError> {
    end_children(tx, id, Some(branch))
}

fn end_children(tx: &mut Tx<'_>, id: JobId, mut branch: Option<u32>) -> Result<(), StoreError> {
    let mut parents = VecDeque::from([id]);
    while let Some(parent) = parents.pop_front() {
        for child in live_children(tx, parent, branch.take())? {
            end_or_request(tx, &child)?;
            parents.push_back(child.id);
        }
    }
    Ok(())
}

/// A job that is to end.
struct Target {
    seq: i64,
    id: JobId,
    lane: i64,
    state: State,
    partition: Option<String>,
}

fn find(tx: &Tx<'_>, id: JobId) -> Result<Option<Target>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/cancel_find.sql")).sorted()?;
    statement.query_row([id.0.as_bytes()], target).optional().sorted()?.map(checked).transpose()
}

fn live_children(tx: &Tx<'_>, parent: JobId, branch: Option<u32>) -> Result<Vec<Target>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/cancel_children.sql")).sorted()?;
    let rows = statement.query_map((parent.0.as_bytes(), branch), target).sorted()?;
    rows.map(|row| checked(row.sorted()?)).collect()
}

/// A row before its state was looked at.
type Unchecked = (i64, JobId, i64, u8, Option<String>);

fn target(row: &Row<'_>) -> rusqlite::Result<Unchecked> {
    Ok((row.get(0)?, JobId(Uuid::from_bytes(row.get(1)?)), row.get(2)?, row.get(3)?, row.get(4)?))
}

fn checked((seq, id, lane, code, partition): Unchecked) -> Result<Target, StoreError> {
    let state = State::from_code(code);
    let state = state.ok_or_else(|| StoreError::Corrupt(format!("job {id}: {code} is no state")))?;
    Ok(Target { seq, id, lane, state, partition })
}

/// Ends a job that has not ended, or requests its end if it runs.
fn end_or_request(tx: &mut Tx<'_>, target: &Target) -> Result<(), StoreError> {
    if target.state == State::Running {
        let mut request = tx.conn.prepare_cached(include_str!("../sql/cancel_running.sql")).sorted()?;
        request.execute([target.seq]).sorted()?;
        *tx.cancel_requested = true;
        return Ok(());
    }
    let mut end = tx.conn.prepare_cached(include_str!("../sql/cancel.sql")).sorted()?;
    end.execute((target.seq, tx.now.as_ms())).sorted()?;
    tx.tally.leave(target.lane, target.state, 1);
    tx.tally.enter(target.lane, State::Cancelled, 1);
    pass_on(tx, target.lane, target.partition.as_deref())
}
