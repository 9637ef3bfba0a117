//! Remembers steps under their leases, with the signal they take and the children they bring.

use redrive_core::steps::{Memory, Remembered, Step};
use redrive_core::{JobId, Lease, StoreError};
use rusqlite::OptionalExtension;
use uuid::Uuid;

use crate::enqueue;
use crate::error::Sorted;
use crate::recall::recall;
use crate::writer::Tx;

pub(crate) fn remember(tx: &mut Tx<'_>, memories: &[Memory]) -> Result<Vec<Remembered>, StoreError> {
    for memory in memories {
        enqueue::starts(tx, &memory.children)?;
    }
    memories.iter().map(|memory| remember_one(tx, memory)).collect()
}

fn remember_one(tx: &mut Tx<'_>, memory: &Memory) -> Result<Remembered, StoreError> {
    let id = memory.lease.id;
    let Some(cancel_requested) = held(tx, memory.lease)? else { return Ok(Remembered::LeaseLost) };
    let step = &memory.step;
    if memory.takes.is_some() || cancel_requested {
        if let Some(before) = before(tx, id, step.place)? {
            return Ok(Remembered::Before(before));
        }
        if cancel_requested && !memory.children.is_empty() {
            return Ok(Remembered::CancelRequested);
        }
    }
    if let Some(signal) = memory.takes
        && !take(tx, id, signal)?
    {
        return Ok(Remembered::NoSignal);
    }
    if !add(tx, id, step)? {
        let lost = || StoreError::Failed("a step met a conflict with no step behind it".into());
        return before(tx, id, step.place)?.map(Remembered::Before).ok_or_else(lost);
    }
    if !memory.children.is_empty() {
        enqueue::add_all(tx, &memory.children)?;
    }
    Ok(Remembered::Kept(step.clone()))
}

/// Marks signals as taken; false, with nothing changed, if the lease is lost.
pub(crate) fn set_aside(tx: &mut Tx<'_>, lease: Lease, signals: &[Uuid]) -> Result<bool, StoreError> {
    if held(tx, lease)?.is_none() {
        return Ok(false);
    }
    for signal in signals {
        take(tx, lease.id, *signal)?;
    }
    Ok(true)
}

/// Whether the job's end was requested; none if the lease is lost.
fn held(tx: &Tx<'_>, lease: Lease) -> Result<Option<bool>, StoreError> {
    let Some(place) = tx.leases.find(tx.conn, lease.id)? else { return Ok(None) };
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/remember_held.sql")).sorted()?;
    let parameters = (place.seq, lease.id.0.as_bytes(), lease.epoch as i64);
    statement.query_row(parameters, |row| row.get(0)).optional().sorted()
}

/// Adds a step; says whether its place was free.
pub(crate) fn add(tx: &Tx<'_>, id: JobId, step: &Step) -> Result<bool, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/remember.sql")).sorted()?;
    let parameters = (id.0.as_bytes(), step.place, step.kind.code(), step.name.as_str(), &step.value);
    Ok(statement.execute(parameters).sorted()? == 1)
}

fn before(tx: &Tx<'_>, id: JobId, place: u32) -> Result<Option<Step>, StoreError> {
    let first = recall(tx.conn, id, place, 1)?.pop();
    Ok(first.filter(|step| step.place == place))
}

/// Marks a signal as taken; false if it is gone or was taken before.
fn take(tx: &Tx<'_>, id: JobId, signal: Uuid) -> Result<bool, StoreError> {
    let mut take = tx.conn.prepare_cached(include_str!("../sql/remember_take.sql")).sorted()?;
    Ok(take.execute((id.0.as_bytes(), signal.as_bytes())).sorted()? == 1)
}
