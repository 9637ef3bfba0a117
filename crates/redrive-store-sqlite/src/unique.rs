//! Unique keys: looked at when a job is enqueued, and never again.

use redrive_core::store::Enqueued;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, NewJob, State, StoreError, Timestamp, Unique, UniqueRule};
use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

use crate::enqueue::exists;
use crate::error::Sorted;
use crate::writer::Tx;

/// What becomes of a job whose unique key is taken; nothing when it may be added.
pub(crate) fn meet(tx: &mut Tx<'_>, job: &NewJob, start: Timestamp) -> Result<Option<Enqueued>, StoreError> {
    let Some(unique) = &job.unique else { return Ok(None) };
    if exists(tx, job.id)? {
        return Ok(Some(Enqueued::Existing(job.id)));
    }
    let Some(holder) = holder(tx, job, unique)? else { return Ok(None) };
    let found = match unique.rule {
        UniqueRule::Live => holder.live,
        UniqueRule::For(_) => holder.until.map_or(holder.live, |until| until > tx.now),
        UniqueRule::Replace => {
            let replaced = replace(tx, holder.job, job, start)?;
            return Ok(replaced.then_some(Enqueued::Replaced(holder.job)));
        }
    };
    Ok(found.then_some(Enqueued::Existing(holder.job)))
}

/// Gives a job that was added its unique key.
pub(crate) fn hold(tx: &Tx<'_>, job: &NewJob) -> Result<(), StoreError> {
    let Some(unique) = &job.unique else { return Ok(()) };
    let until = match unique.rule {
        UniqueRule::For(span) => Some(tx.now.after(span).as_ms()),
        UniqueRule::Live | UniqueRule::Replace => None,
    };
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/enqueue_hold_unique.sql")).sorted()?;
    let (tenant, kind, key) = (job.tenant.as_str(), job.kind.as_str(), unique.key.as_str());
    statement.execute((tenant, kind, key, job.id.0.as_bytes(), until)).sorted()?;
    Ok(())
}

/// Who has a unique key.
struct Holder {
    job: JobId,
    until: Option<Timestamp>,
    live: bool,
}

fn holder(tx: &Tx<'_>, job: &NewJob, unique: &Unique) -> Result<Option<Holder>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/enqueue_unique.sql")).sorted()?;
    let key = (job.tenant.as_str(), job.kind.as_str(), unique.key.as_str());
    let found = statement.query_row(key, |row| {
        let state: Option<u8> = row.get(2)?;
        Ok(Holder {
            job: JobId(Uuid::from_bytes(row.get(0)?)),
            until: row.get::<_, Option<i64>>(1)?.map(Timestamp::from_ms),
            live: state.and_then(State::from_code).is_some_and(|state| !state.is_final()),
        })
    });
    found.optional().sorted()
}

fn replace(tx: &mut Tx<'_>, id: JobId, job: &NewJob, start: Timestamp) -> Result<bool, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/enqueue_replace.sql")).sorted()?;
    let replaced = statement.execute(params![
        id.0.as_bytes(),
        start.as_ms(),
        job.timeout.map(ceil_ms),
        job.lease.map(ceil_ms),
        job.policy.to_string(),
        job.subject,
        job.metadata,
        job.payload,
    ]);
    let replaced = replaced.sorted()? == 1;
    *tx.wake |= replaced;
    Ok(replaced)
}
