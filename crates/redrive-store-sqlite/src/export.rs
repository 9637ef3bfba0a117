//! All that the store has, on its way out.

use redrive_core::store::Unreadable;
use redrive_core::transfer::{EXPORT_BYTES_MAX, Exported, Held, Parcel, Promise, Received, Slot};
use redrive_core::{Job, JobId, Kind, Lease, SignalName, StoreError, Tenant, Timestamp, UniqueKey};
use rusqlite::{Connection, Row};
use uuid::Uuid;

use crate::attempts::attempts;
use crate::error::Sorted;
use crate::lanes::SharedLanes;
use crate::recall::recall;
use crate::row::Reader;

/// More than any job has.
const ALL: usize = usize::MAX >> 2;

pub(crate) fn export(
    conn: &Connection,
    lanes: &SharedLanes,
    after: Option<JobId>,
    limit: usize,
) -> Result<Exported, StoreError> {
    // Inside a transaction or not, all of it is read from one snapshot.
    conn.execute_batch("SAVEPOINT export").sorted()?;
    let exported = read_all(conn, lanes, after, limit);
    conn.execute_batch("RELEASE export").sorted()?;
    exported
}

fn read_all(
    conn: &Connection,
    lanes: &SharedLanes,
    after: Option<JobId>,
    limit: usize,
) -> Result<Exported, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/export.sql")).sorted()?;
    let mut reader = Reader::new(lanes);
    let mut rows = statement.query((bytes(after), limit as i64)).sorted()?;
    let (mut exported, mut size) = (Exported::default(), 0);
    while let Some(row) = rows.next().sorted()? {
        let read = reader.read(row).sorted()?;
        exported.last = Some(read.id());
        match read.job.map_or_else(|row| Ok(Err(row)), |job| parcel(conn, job))? {
            Ok(parcel) => {
                size += parcel.bytes();
                exported.parcels.push(parcel);
            }
            Err(unreadable) => exported.unreadable.push(unreadable),
        }
        if size >= EXPORT_BYTES_MAX {
            break;
        }
    }
    Ok(exported)
}

/// The job with all that belongs to it, or what of that cannot be read.
fn parcel(conn: &Connection, job: Job) -> Result<Result<Parcel, Unreadable>, StoreError> {
    let (lease, run, attempt) = (Lease { id: job.id, epoch: job.epoch }, job.run, job.attempt);
    match belongings(conn, job) {
        Ok(parcel) => Ok(Ok(parcel)),
        Err(StoreError::Corrupt(problem)) => Ok(Err(Unreadable { lease, run, attempt, problem })),
        Err(StoreError::Invalid(problem)) => {
            Ok(Err(Unreadable { lease, run, attempt, problem: problem.to_string() }))
        }
        Err(error) => Err(error),
    }
}

fn belongings(conn: &Connection, job: Job) -> Result<Parcel, StoreError> {
    let (fingerprint, unique) = keys(conn, job.id)?;
    Ok(Parcel {
        fingerprint,
        unique,
        log: attempts(conn, job.id, None, ALL)?.items,
        steps: recall(conn, job.id, 0, ALL)?,
        signals: signals(conn, job.id)?,
        job,
    })
}

fn keys(conn: &Connection, id: JobId) -> Result<(Option<[u8; 32]>, Option<Held>), StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/export_keys.sql")).sorted()?;
    let (fingerprint, key, until) = statement
        .query_row([id.0.as_bytes()], |row| {
            Ok((row.get(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, Option<i64>>(2)?))
        })
        .sorted()?;
    let held = |key| Ok(Held { key: UniqueKey::new(key)?, until: until.map(Timestamp::from_ms) });
    Ok((fingerprint, key.map(held).transpose().map_err(StoreError::Invalid)?))
}

fn signals(conn: &Connection, id: JobId) -> Result<Vec<Received>, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/export_signals.sql")).sorted()?;
    let mut rows = statement.query([id.0.as_bytes()]).sorted()?;
    let mut signals = Vec::new();
    while let Some(row) = rows.next().sorted()? {
        signals.push(Received {
            id: Uuid::from_bytes(row.get(0).sorted()?),
            name: SignalName::new(row.get::<_, String>(1).sorted()?)?,
            value: row.get(2).sorted()?,
            taken: row.get(3).sorted()?,
        });
    }
    Ok(signals)
}

pub(crate) fn export_records(
    conn: &Connection,
    after: &(String, String),
    limit: usize,
) -> Result<Vec<Slot>, StoreError> {
    let slot = |row: &Row<'_>| {
        let version = row.get::<_, i64>(2)?.unsigned_abs();
        Ok(Slot { kind: row.get(0)?, id: row.get(1)?, version, value: row.get(3)? })
    };
    let mut statement = conn.prepare_cached(include_str!("../sql/export_records.sql")).sorted()?;
    let rows = statement.query_map((&after.0, &after.1, limit as i64), slot).sorted()?;
    rows.collect::<rusqlite::Result<_>>().sorted()
}

pub(crate) fn export_promises(
    conn: &Connection,
    now: Timestamp,
    after: Option<JobId>,
    limit: usize,
) -> Result<Vec<Promise>, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/export_promises.sql")).sorted()?;
    let mut rows = statement.query((bytes(after), now.as_ms(), limit as i64)).sorted()?;
    let mut promises = Vec::new();
    while let Some(row) = rows.next().sorted()? {
        let text = |column| row.get::<_, String>(column).sorted();
        promises.push(Promise {
            tenant: Tenant::new(text(0)?)?,
            kind: Kind::new(text(1)?)?,
            key: UniqueKey::new(text(2)?)?,
            job: JobId(Uuid::from_bytes(row.get(3).sorted()?)),
            until: Timestamp::from_ms(row.get(4).sorted()?),
        });
    }
    Ok(promises)
}

/// An id as its column has it; what comes before every id for none.
fn bytes(id: Option<JobId>) -> Vec<u8> {
    id.map_or_else(Vec::new, |id| id.0.as_bytes().to_vec())
}
