//! Adds jobs; a repeat finds the first one.

use redrive_core::store::Enqueued;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, NewJob, Order, State, StoreError, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::error::Sorted;
use crate::unique;
use crate::writer::Tx;

pub(crate) fn enqueue(tx: &mut Tx<'_>, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
    // Every job is checked before the first is written, so that a refused batch leaves nothing behind.
    starts(tx, jobs)?;
    room(tx, jobs)?;
    add_all(tx, jobs)
}

/// When each job is first due; one that may not be refuses all.
pub(crate) fn starts(tx: &Tx<'_>, jobs: &[NewJob]) -> Result<Vec<Timestamp>, StoreError> {
    jobs.iter().map(|job| Ok(job.start.resolve(tx.now)?)).collect()
}

/// Adds jobs that were checked, for the follow-ups of a settlement too: those are not refused for want of room.
pub(crate) fn add_all(tx: &mut Tx<'_>, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
    let starts = starts(tx, jobs)?;
    let mut insert = tx.conn.prepare_cached(include_str!("../sql/enqueue.sql")).sorted()?;
    let mut results = Vec::with_capacity(jobs.len());
    for (job, start) in jobs.iter().zip(starts) {
        if let Some(answer) = unique::meet(tx, job, start)? {
            results.push(answer);
            continue;
        }
        let lane = tx.lanes.number(tx.conn, &job.queue, &job.kind, job.priority)?;
        if add(&mut insert, tx, job, lane, start.as_ms())? {
            unique::hold(tx, job)?;
            tx.tally.enter(lane, State::Pending, 1);
            *tx.wake = true;
            results.push(Enqueued::Created(job.id));
        } else {
            results.push(existing(tx, job)?);
        }
    }
    Ok(results)
}

/// Refuses what would go beyond the size limit. Only enqueues are refused, so that a full store can still be worked off.
fn room(tx: &Tx<'_>, jobs: &[NewJob]) -> Result<(), StoreError> {
    let Some(limit) = tx.db_bytes_max else { return Ok(()) };
    let pragma = |name| tx.conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).sorted();
    let used = (pragma("page_count")? - pragma("freelist_count")?) * pragma("page_size")?;
    let more: usize = jobs.iter().map(|job| job.payload.len() + ROW_BYTES).sum();
    let total = used.unsigned_abs() + more as u64;
    if total > limit {
        let cause = format!("db_bytes_max is {limit}, the database would have {total}");
        return Err(StoreError::Full(cause.into()));
    }
    Ok(())
}

/// About what a row and its index entries take beside the payload.
const ROW_BYTES: usize = 300;

fn add(
    insert: &mut CachedStatement<'_>,
    tx: &Tx<'_>,
    job: &NewJob,
    lane: i64,
    start: i64,
) -> Result<bool, StoreError> {
    let idempotency = job.idempotency.as_ref();
    let added = insert
        .execute(params![
            job.id.0.as_bytes(),
            lane,
            start,
            tx.now.as_ms(),
            job.timeout.map(ceil_ms),
            job.tenant.as_str(),
            job.policy.to_string(),
            idempotency.map(|i| i.key.as_str()),
            idempotency.map(|i| i.fingerprint.as_slice()),
            job.metadata,
            job.payload,
            job.lease.map(ceil_ms),
            job.subject,
            job.parent.map(|parent| parent.id.0.into_bytes()),
            job.parent.map(|parent| parent.branch),
            job.partition.as_ref().map(|partition| partition.scope(&job.queue)),
            job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict),
            job.parent.is_some_and(|parent| parent.detached),
        ])
        .sorted()?;
    Ok(added == 1)
}

/// What an enqueue of each job would find in its way.
pub(crate) fn find(conn: &Connection, jobs: &[NewJob]) -> Result<Vec<Option<Enqueued>>, StoreError> {
    jobs.iter().map(|job| known(conn, job)).collect()
}

/// Whether an id is taken.
pub(crate) fn exists(conn: &Connection, id: JobId) -> Result<bool, StoreError> {
    let mut by_id = conn.prepare_cached(include_str!("../sql/enqueue_by_id.sql")).sorted()?;
    by_id.exists([id.0.as_bytes()]).sorted()
}

/// What was there instead of a job that could not be added.
fn existing(tx: &Tx<'_>, job: &NewJob) -> Result<Enqueued, StoreError> {
    let lost = || StoreError::Failed("an enqueue met a conflict with no job behind it".into());
    known(tx.conn, job)?.ok_or_else(lost)
}

/// What stands in a job's way: the job itself from an earlier try, or the holder of its key.
fn known(conn: &Connection, job: &NewJob) -> Result<Option<Enqueued>, StoreError> {
    if exists(conn, job.id)? {
        return Ok(Some(Enqueued::Existing(job.id)));
    }
    let Some(wanted) = &job.idempotency else { return Ok(None) };
    let mut by_key = conn.prepare_cached(include_str!("../sql/enqueue_by_key.sql")).sorted()?;
    let holder = by_key.query_row((job.tenant.as_str(), wanted.key.as_str()), |row| {
        Ok((JobId(Uuid::from_bytes(row.get(0)?)), row.get::<_, Option<Vec<u8>>>(1)?))
    });
    let Some((id, fingerprint)) = holder.optional().sorted()? else { return Ok(None) };
    let same = fingerprint.as_deref() == Some(wanted.fingerprint.as_slice());
    Ok(Some(if same { Enqueued::Existing(id) } else { Enqueued::Conflict(id) }))
}
