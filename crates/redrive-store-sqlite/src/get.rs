//! Jobs by id.

use redrive_core::{Job, JobId, State, StoreError};
use rusqlite::{Connection, OptionalExtension};

use crate::error::Sorted;
use crate::lanes::SharedLanes;
use crate::row::{Read, Reader};

pub(crate) fn get(
    conn: &Connection,
    lanes: &SharedLanes,
    ids: &[JobId],
) -> Result<Vec<Option<Job>>, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/get.sql")).sorted()?;
    let mut reader = Reader::new(lanes);
    let mut one = |id: &JobId| {
        let found = statement.query_row([id.0.as_bytes()], |row| reader.read(row)).optional().sorted()?;
        found.map(readable).transpose()
    };
    ids.iter().map(&mut one).collect()
}

/// The job, or an error that names the row and what is wrong with it.
pub(crate) fn readable(read: Read) -> Result<Job, StoreError> {
    read.job.map_err(|row| StoreError::Corrupt(format!("job {}: {}", row.lease.id, row.problem)))
}

/// The lane and state of one job.
pub(crate) fn state(conn: &Connection, id: JobId) -> Result<Option<(i64, State)>, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/state.sql")).sorted()?;
    let found = statement.query_row([id.0.as_bytes()], |row| Ok((row.get(0)?, row.get::<_, u8>(1)?)));
    let Some((lane, code)) = found.optional().sorted()? else {
        return Ok(None);
    };
    let state = State::from_code(code);
    let state = state.ok_or_else(|| StoreError::Corrupt(format!("job {id}: {code} is no state")))?;
    Ok(Some((lane, state)))
}
