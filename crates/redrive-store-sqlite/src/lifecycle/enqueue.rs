//! Adds jobs. A repeated enqueue returns the existing job.

use redrive_core::store::EnqueueResult;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, NewJob, Order, State, StoreError, Timestamp};
use redrive_sql::Statement;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use uuid::Uuid;

use super::unique;
use crate::error::Result;
use crate::sql::LIFECYCLE;
use crate::writer::Tx;

static ENQUEUE: Statement = LIFECYCLE.statement("enqueue");
static ID_EXISTS: Statement = LIFECYCLE.statement("id_exists");
static FIND_BY_KEY: Statement = LIFECYCLE.statement("find_by_key");

/// Roughly the bytes that a row and its index entries take in addition to the payload.
const ROW_BYTES: usize = 300;

pub(crate) fn enqueue(tx: &mut Tx<'_>, jobs: &[NewJob]) -> Result<Vec<EnqueueResult>> {
    // Both checks come before the first write, so that a rejected batch leaves nothing behind.
    start_times(tx, jobs)?;
    check_size(tx, jobs)?;
    insert_all(tx, jobs)
}

/// The time at which each job is first due. A start that is not allowed is an error for the whole batch.
pub(crate) fn start_times(tx: &Tx<'_>, jobs: &[NewJob]) -> Result<Vec<Timestamp>> {
    jobs.iter().map(|job| Ok(job.start.resolve(tx.now)?)).collect()
}

/// Adds jobs that were checked. Follow-ups and children come here directly: they are accepted even if the store is
/// full.
pub(crate) fn insert_all(tx: &mut Tx<'_>, jobs: &[NewJob]) -> Result<Vec<EnqueueResult>> {
    let starts = start_times(tx, jobs)?;
    let mut insert = tx.conn.prepare_cached(&ENQUEUE)?;
    let mut results = Vec::with_capacity(jobs.len());
    for (job, start) in jobs.iter().zip(starts) {
        if let Some(result) = unique::resolve(tx, job, start)? {
            results.push(result);
            continue;
        }
        let lane = tx.lanes.number(tx.conn, &job.queue, &job.kind, job.priority)?;
        if insert_one(&mut insert, tx, job, lane, start)? {
            unique::assign_to(tx, job)?;
            tx.counts.add(lane, State::Pending);
            *tx.wake = true;
            results.push(EnqueueResult::Created(job.id));
        } else {
            let missing =
                || StoreError::Failed("an enqueue conflicted with a job that does not exist".into());
            results.push(existing(tx.conn, job)?.ok_or_else(missing)?);
        }
    }
    Ok(results)
}

/// Rejects an enqueue that would exceed the size limit. Other writes are accepted, so that workers can still empty a
/// full store.
fn check_size(tx: &Tx<'_>, jobs: &[NewJob]) -> Result<()> {
    let Some(limit) = tx.db_bytes_max else { return Ok(()) };
    let pragma = |name| tx.conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let used = (pragma("page_count")? - pragma("freelist_count")?) * pragma("page_size")?;
    let added: usize = jobs.iter().map(|job| job.payload.len() + ROW_BYTES).sum();
    let total = used.unsigned_abs() + added as u64;
    if total > limit {
        let cause = format!("db_bytes_max is {limit}, the database would have {total}");
        return Err(StoreError::Full(cause.into()).into());
    }
    Ok(())
}

/// Adds a job; false if its id or key exists already.
fn insert_one(
    insert: &mut CachedStatement<'_>,
    tx: &Tx<'_>,
    job: &NewJob,
    lane: i64,
    start: Timestamp,
) -> Result<bool> {
    let idempotency = job.idempotency.as_ref();
    let inserted = insert.execute(params![
        job.id.0.as_bytes(),
        lane,
        start.as_ms(),
        tx.now.as_ms(),
        job.timeout.map(ceil_ms),
        job.tenant.as_str(),
        job.policy.to_string(),
        idempotency.map(|i| i.key.as_str()),
        idempotency.map(|i| i.fingerprint.as_slice()),
        job.metadata,
        job.payload,
        job.lease.map(ceil_ms),
        job.target,
        job.parent.map(|parent| parent.id.0.into_bytes()),
        job.parent.map(|parent| parent.branch),
        job.partition.as_ref().map(|partition| partition.scope(&job.queue)),
        job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict),
        job.parent.is_some_and(|parent| parent.detached),
    ])?;
    Ok(inserted == 1)
}

/// The result that an enqueue of each job would have if the job, or another one with its key, exists already.
pub(crate) fn find(conn: &Connection, jobs: &[NewJob]) -> Result<Vec<Option<EnqueueResult>>> {
    jobs.iter().map(|job| existing(conn, job)).collect()
}

/// Whether a job has this id.
pub(crate) fn exists(conn: &Connection, id: JobId) -> Result<bool> {
    let mut statement = conn.prepare_cached(&ID_EXISTS)?;
    Ok(statement.exists([id.0.as_bytes()])?)
}

/// The existing job with the same id, from an earlier try, or with the same idempotency key.
fn existing(conn: &Connection, job: &NewJob) -> Result<Option<EnqueueResult>> {
    if exists(conn, job.id)? {
        return Ok(Some(EnqueueResult::Existing(job.id)));
    }
    let Some(requested) = &job.idempotency else { return Ok(None) };
    let Some((id, fingerprint)) = find_by_key(conn, job.tenant.as_str(), requested.key.as_str())? else {
        return Ok(None);
    };
    let same = fingerprint.as_deref() == Some(requested.fingerprint.as_slice());
    Ok(Some(if same { EnqueueResult::Existing(id) } else { EnqueueResult::Conflict(id) }))
}

/// The job that has an idempotency key, and the fingerprint of the request that created it.
pub(crate) fn find_by_key(
    conn: &Connection,
    tenant: &str,
    key: &str,
) -> Result<Option<(JobId, Option<Vec<u8>>)>> {
    let mut statement = conn.prepare_cached(&FIND_BY_KEY)?;
    let found =
        statement.query_row((tenant, key), |row| Ok((JobId(Uuid::from_bytes(row.get(0)?)), row.get(1)?)));
    Ok(found.optional()?)
}
