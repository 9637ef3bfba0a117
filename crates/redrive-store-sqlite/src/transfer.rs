//! Moves jobs, records and reserved keys between stores: export and import.

use redrive_core::store::UnreadableJob;
use redrive_core::time::ceil_ms;
use redrive_core::transfer::{
    BEING_FILLED, EXPORT_BYTES_MAX, ExportPage, HeldUniqueKey, ImportResult, JobSnapshot, ReservedKey,
    SEALED, StoredSignal,
};
use redrive_core::{
    Attempt, IdempotencyKey, Job, JobId, Kind, Lease, Order, Reason, SignalName, State, StoreError, Tenant,
    Timestamp, UniqueKey, WorkerId,
};
use redrive_sql::Statement;
use rusqlite::{Connection, params};
use uuid::Uuid;

use crate::error::Result;
use crate::lanes::SharedLanes;
use crate::lifecycle::enqueue::find_by_key;
use crate::lifecycle::prune::delete_job;
use crate::lifecycle::settle::INSERT_ATTEMPT;
use crate::lifecycle::unique;
use crate::read::{attempts, get_state};
use crate::records;
use crate::row::{RowReader, WaitColumns, id_bytes};
use crate::sql::TRANSFER;
use crate::steps::{insert_step, recall};
use crate::writer::Tx;

static EXPORT_JOBS: Statement = TRANSFER.statement("export_jobs");
static EXPORT_KEYS: Statement = TRANSFER.statement("export_keys");
static EXPORT_SIGNALS: Statement = TRANSFER.statement("export_signals");
static EXPORT_RESERVED_KEYS: Statement = TRANSFER.statement("export_reserved_keys");
static IMPORT_JOB: Statement = TRANSFER.statement("import_job");
static IMPORT_SIGNAL: Statement = TRANSFER.statement("import_signal");
static DELETE_JOB: Statement = TRANSFER.statement("delete_job");
static DELETE_UNIQUES: Statement = TRANSFER.statement("delete_uniques");

/// More items than any job has.
const ALL: usize = usize::MAX >> 2;

/// The next jobs after `after`, in the order of their ids, with everything that belongs to them.
pub(crate) fn export(
    conn: &Connection,
    lanes: &SharedLanes,
    after: Option<JobId>,
    limit: usize,
) -> Result<ExportPage> {
    // The savepoint makes all reads see one snapshot, whether a transaction is open already or not.
    conn.execute_batch("SAVEPOINT export")?;
    let page = export_page(conn, lanes, after, limit);
    conn.execute_batch("RELEASE export")?;
    page
}

fn export_page(
    conn: &Connection,
    lanes: &SharedLanes,
    after: Option<JobId>,
    limit: usize,
) -> Result<ExportPage> {
    let mut statement = conn.prepare_cached(&EXPORT_JOBS)?;
    let mut reader = RowReader::new(lanes);
    let mut rows = statement.query((id_bytes(after), limit as i64))?;
    let (mut page, mut bytes) = (ExportPage::default(), 0);
    while let Some(row) = rows.next()? {
        let row = reader.read(row)?;
        page.last = Some(row.id());
        let snapshot = match row.job {
            Ok(job) => snapshot(conn, job)?,
            Err(unreadable) => Err(unreadable),
        };
        match snapshot {
            Ok(snapshot) => {
                bytes += snapshot.bytes();
                page.jobs.push(snapshot);
            }
            Err(unreadable) => page.unreadable.push(unreadable),
        }
        if bytes >= EXPORT_BYTES_MAX {
            break;
        }
    }
    Ok(page)
}

/// The job with everything that belongs to it, or what could not be read.
fn snapshot(conn: &Connection, job: Job) -> Result<Result<JobSnapshot, UnreadableJob>> {
    let (lease, run, attempt) = (Lease { id: job.id, epoch: job.epoch }, job.run, job.attempt);
    let unreadable = |problem| UnreadableJob { lease, run, attempt, problem };
    match read_snapshot(conn, job).map_err(StoreError::from) {
        Ok(snapshot) => Ok(Ok(snapshot)),
        Err(StoreError::Corrupt(problem)) => Ok(Err(unreadable(problem))),
        Err(StoreError::Invalid(problem)) => Ok(Err(unreadable(problem.to_string()))),
        Err(error) => Err(error.into()),
    }
}

fn read_snapshot(conn: &Connection, job: Job) -> Result<JobSnapshot> {
    let (fingerprint, unique) = export_keys(conn, job.id)?;
    Ok(JobSnapshot {
        fingerprint,
        unique,
        log: attempts(conn, job.id, None, ALL)?.items.into_iter().rev().collect(),
        steps: recall(conn, job.id, 0, ALL)?,
        signals: export_signals(conn, job.id)?,
        job,
    })
}

fn export_keys(conn: &Connection, id: JobId) -> Result<(Option<[u8; 32]>, Option<HeldUniqueKey>)> {
    let mut statement = conn.prepare_cached(&EXPORT_KEYS)?;
    let (fingerprint, key, until) = statement.query_row([id.0.as_bytes()], |row| {
        Ok((row.get(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, Option<i64>>(2)?))
    })?;
    let Some(key) = key else { return Ok((fingerprint, None)) };
    let held = HeldUniqueKey { key: UniqueKey::new(key)?, until: until.map(Timestamp::from_ms) };
    Ok((fingerprint, Some(held)))
}

fn export_signals(conn: &Connection, id: JobId) -> Result<Vec<StoredSignal>> {
    let mut statement = conn.prepare_cached(&EXPORT_SIGNALS)?;
    let mut rows = statement.query([id.0.as_bytes()])?;
    let mut signals = Vec::new();
    while let Some(row) = rows.next()? {
        signals.push(StoredSignal {
            id: Uuid::from_bytes(row.get(0)?),
            name: SignalName::new(row.get::<_, String>(1)?)?,
            value: row.get(2)?,
            taken: row.get(3)?,
        });
    }
    Ok(signals)
}

/// The unique keys that are reserved although their job was deleted.
pub(crate) fn export_reserved_keys(
    conn: &Connection,
    now: Timestamp,
    after: Option<JobId>,
    limit: usize,
) -> Result<Vec<ReservedKey>> {
    let mut statement = conn.prepare_cached(&EXPORT_RESERVED_KEYS)?;
    let mut rows = statement.query((id_bytes(after), now.as_ms(), limit as i64))?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        keys.push(ReservedKey {
            tenant: Tenant::new(row.get::<_, String>(0)?)?,
            kind: Kind::new(row.get::<_, String>(1)?)?,
            key: UniqueKey::new(row.get::<_, String>(2)?)?,
            job: JobId(Uuid::from_bytes(row.get(3)?)),
            until: Timestamp::from_ms(row.get(4)?),
        });
    }
    Ok(keys)
}

/// Adds jobs of another store. An existing job is replaced only while this store is being filled.
pub(crate) fn import(tx: &mut Tx<'_>, snapshots: &[JobSnapshot]) -> Result<Vec<ImportResult>> {
    let being_filled = records::exists(tx.conn, SEALED, BEING_FILLED)?;
    snapshots.iter().map(|snapshot| import_one(tx, snapshot, being_filled)).collect()
}

fn import_one(tx: &mut Tx<'_>, snapshot: &JobSnapshot, being_filled: bool) -> Result<ImportResult> {
    let id = snapshot.job.id;
    let existing = get_state(tx.conn, id)?;
    if existing.is_some() && !being_filled {
        return Ok(ImportResult::Kept);
    }
    if let Some(other) = find_conflict(tx, snapshot)? {
        return Ok(ImportResult::Conflict(other));
    }
    if let Some((lane, state)) = existing {
        if let Some(row) = tx.leased.find(tx.conn, id)?.filter(|_| state == State::Running) {
            tx.leased.ranges.remove(row.seq, row.seq);
        }
        delete_job(tx, &DELETE_JOB, id, lane, state)?;
        tx.leased.remove(id);
    }
    tx.conn.prepare_cached(&DELETE_UNIQUES)?.execute([id.0.as_bytes()])?;
    insert_snapshot(tx, snapshot)?;
    *tx.wake = true;
    Ok(if existing.is_some() { ImportResult::Replaced } else { ImportResult::Created })
}

/// Another job that has the idempotency key or the unique key of this one.
fn find_conflict(tx: &Tx<'_>, snapshot: &JobSnapshot) -> Result<Option<JobId>> {
    let JobSnapshot { job, unique, .. } = snapshot;
    if let Some(key) = &job.key {
        let holder = find_by_key(tx.conn, job.tenant.as_str(), key.as_str())?;
        if let Some((other, _)) = holder.filter(|(other, _)| *other != job.id) {
            return Ok(Some(other));
        }
    }
    let Some(HeldUniqueKey { key, .. }) = unique else { return Ok(None) };
    let holder = unique::current_holder(tx, &job.tenant, &job.kind, key)?;
    Ok(holder.filter(|other| *other != job.id))
}

fn insert_snapshot(tx: &mut Tx<'_>, snapshot: &JobSnapshot) -> Result<()> {
    let job = &snapshot.job;
    let lane = tx.lanes.number(tx.conn, &job.queue, &job.kind, job.priority)?;
    insert_job(tx, lane, job, snapshot.fingerprint.as_ref())?;
    tx.counts.add(lane, job.state);
    if job.state == State::Running {
        let seq = tx.conn.last_insert_rowid();
        tx.leased.ranges.add(seq, seq);
        tx.leased.ranges.note_lease_end(job.lease_until.unwrap_or(tx.now));
    }
    for attempt in &snapshot.log {
        insert_attempt(tx, job.id, attempt)?;
    }
    for step in &snapshot.steps {
        insert_step(tx, job.id, step)?;
    }
    let mut statement = tx.conn.prepare_cached(&IMPORT_SIGNAL)?;
    for signal in &snapshot.signals {
        let (job, id) = (job.id.0.as_bytes(), signal.id.as_bytes());
        statement.execute(params![job, id, signal.name.as_str(), signal.value, signal.taken])?;
    }
    match &snapshot.unique {
        Some(HeldUniqueKey { key, until }) => {
            unique::assign(tx, (&job.tenant, &job.kind, key), job.id, *until)
        }
        None => Ok(()),
    }
}

/// Inserts the row of a job. The values are in the order of [`crate::row::JOB_COLUMNS`], followed by the fingerprint.
fn insert_job(tx: &Tx<'_>, lane: i64, job: &Job, fingerprint: Option<&[u8; 32]>) -> Result<()> {
    let condition = WaitColumns::new(job.awaits.as_ref());
    let ms = |at: Option<Timestamp>| at.map(Timestamp::as_ms);
    tx.conn.prepare_cached(&IMPORT_JOB)?.execute(params![
        job.id.0.as_bytes(),
        lane,
        job.state.code(),
        job.next_run_at.as_ms(),
        job.run,
        job.attempt,
        job.epoch as i64,
        job.created_at.as_ms(),
        job.began_at.as_ms(),
        ms(job.started_at),
        ms(job.lease_until),
        ms(job.finished_at),
        job.wait.map(ceil_ms),
        job.timeout.map(ceil_ms),
        job.lease.map(ceil_ms),
        job.last_status,
        job.cancel_requested,
        job.tenant.as_str(),
        job.policy.to_string(),
        job.worker.as_ref().map(WorkerId::as_str),
        job.key.as_ref().map(IdempotencyKey::as_str),
        job.reason.map(Reason::name),
        job.target,
        job.last_error,
        job.metadata,
        job.payload,
        job.output,
        job.parent.map(|parent| parent.id.0.into_bytes()),
        job.parent.map(|parent| parent.branch),
        condition.code,
        condition.name,
        condition.branch,
        condition.failures,
        job.paused,
        job.partition.as_ref().map(|partition| partition.scope(&job.queue)),
        job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict),
        job.parent.is_some_and(|parent| parent.detached),
        fingerprint.map(<[u8; 32]>::as_slice),
    ])?;
    Ok(())
}

fn insert_attempt(tx: &Tx<'_>, id: JobId, attempt: &Attempt) -> Result<()> {
    let report = &attempt.entry;
    tx.conn.prepare_cached(&INSERT_ATTEMPT)?.execute(params![
        id.0.as_bytes(),
        attempt.epoch as i64,
        report.run,
        report.attempt,
        report.started_at.as_ms(),
        ceil_ms(report.duration),
        report.outcome,
        report.error,
        report.detail,
        attempt.worker.as_ref().map(WorkerId::as_str),
        attempt.led_to.code(),
        attempt.wait.map(ceil_ms),
        attempt.next_run_at.map(Timestamp::as_ms),
    ])?;
    Ok(())
}

/// Reserves unique keys whose job was deleted in the other store. A key that a job of this store holds is not changed.
pub(crate) fn import_reserved_keys(tx: &mut Tx<'_>, keys: &[ReservedKey]) -> Result<Vec<bool>> {
    let reserve = |reserved: &ReservedKey| {
        let ReservedKey { tenant, kind, key, job, until } = reserved;
        let holder = unique::current_holder(tx, tenant, kind, key)?;
        let is_free = holder.is_none_or(|holder| holder == *job);
        if is_free {
            unique::assign(tx, (tenant, kind, key), *job, Some(*until))?;
        }
        Ok(is_free)
    };
    keys.iter().map(reserve).collect()
}
