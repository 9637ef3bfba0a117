//! Remembers steps under their leases, with the signal they take and the children they bring.

use redrive_core::steps::{Memory, Remembered, Step};
use redrive_core::{JobId, Lease, SignalName, StoreError};
use rusqlite::OptionalExtension;

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
    if !held(tx, memory.lease)? {
        return Ok(Remembered::LeaseLost);
    }
    let mut step = memory.step.clone();
    if let Some(name) = &memory.takes {
        if let Some(before) = before(tx, id, step.place)? {
            return Ok(Remembered::Before(before));
        }
        match take(tx, id, name)? {
            Some(value) => step.value = value,
            None => return Ok(Remembered::NoSignal),
        }
    }
    if !add(tx, id, &step)? {
        let lost = || StoreError::Failed("a step met a conflict with no step behind it".into());
        return before(tx, id, step.place)?.map(Remembered::Before).ok_or_else(lost);
    }
    if !memory.children.is_empty() {
        enqueue::add_all(tx, &memory.children)?;
    }
    Ok(Remembered::Kept(step))
}

fn held(tx: &Tx<'_>, lease: Lease) -> Result<bool, StoreError> {
    let Some(place) = tx.leases.find(tx.conn, lease.id)? else { return Ok(false) };
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/remember_held.sql")).sorted()?;
    statement.exists((place.seq, lease.id.0.as_bytes(), lease.epoch as i64)).sorted()
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

/// What the oldest signal by a name says, which is taken by that.
fn take(tx: &Tx<'_>, id: JobId, name: &SignalName) -> Result<Option<Vec<u8>>, StoreError> {
    let mut oldest = tx.conn.prepare_cached(include_str!("../sql/remember_oldest.sql")).sorted()?;
    let found = oldest.query_row((id.0.as_bytes(), name.as_str()), |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((seq, value)) = found.optional().sorted()? else { return Ok(None) };
    let seq: i64 = seq;
    let mut take = tx.conn.prepare_cached(include_str!("../sql/remember_take.sql")).sorted()?;
    take.execute([seq]).sorted()?;
    Ok(Some(value))
}
