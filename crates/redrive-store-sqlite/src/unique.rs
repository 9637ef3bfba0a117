//! Unique keys: looked at when a job is enqueued, and never again.

use redrive_core::store::Enqueued;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, Kind, NewJob, State, StoreError, Tenant, Timestamp, UniqueKey, UniqueRule};
use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

use crate::enqueue::exists;
use crate::error::Sorted;
use crate::writer::Tx;

/// What becomes of a job whose unique key is taken; nothing when it may be added.
pub(crate) fn meet(tx: &mut Tx<'_>, job: &NewJob, start: Timestamp) -> Result<Option<Enqueued>, StoreError> {
    let Some(unique) = &job.unique else { return Ok(None) };
    if exists(tx.conn, job.id)? {
        return Ok(Some(Enqueued::Existing(job.id)));
    }
    let Some(holder) = holder(tx, &job.tenant, &job.kind, &unique.key)? else { return Ok(None) };
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
        UniqueRule::For(span) => Some(tx.now.after(span)),
        UniqueRule::Live | UniqueRule::Replace => None,
    };
    give(tx, (&job.tenant, &job.kind, &unique.key), job.id, until)
}

/// Gives a unique key to a job, whoever had it.
pub(crate) fn give(
    tx: &Tx<'_>,
    (tenant, kind, key): (&Tenant, &Kind, &UniqueKey),
    job: JobId,
    until: Option<Timestamp>,
) -> Result<(), StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/enqueue_hold_unique.sql")).sorted()?;
    let until = until.map(Timestamp::as_ms);
    statement.execute((tenant.as_str(), kind.as_str(), key.as_str(), job.0.as_bytes(), until)).sorted()?;
    Ok(())
}

/// The job that has not ended and holds a unique key, or that it is promised to beyond that.
pub(crate) fn in_force(
    tx: &Tx<'_>,
    tenant: &Tenant,
    kind: &Kind,
    key: &UniqueKey,
) -> Result<Option<JobId>, StoreError> {
    let holder = holder(tx, tenant, kind, key)?;
    let holds = |holder: &Holder| holder.live || holder.until.is_some_and(|until| until > tx.now);
    Ok(holder.filter(holds).map(|holder| holder.job))
}

/// Who has a unique key.
struct Holder {
    job: JobId,
    until: Option<Timestamp>,
    live: bool,
}

fn holder(tx: &Tx<'_>, tenant: &Tenant, kind: &Kind, key: &UniqueKey) -> Result<Option<Holder>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/enqueue_unique.sql")).sorted()?;
    let key = (tenant.as_str(), kind.as_str(), key.as_str());
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
