//! The log of one job, oldest attempt first.

use std::time::Duration;

use redrive_core::store::{Cursor, Page};
use redrive_core::{Attempt, Entry, Epoch, JobId, State, StoreError, Timestamp, WorkerId};
use rusqlite::{Connection, Row};

use crate::error::Sorted;

pub(crate) fn attempts(
    conn: &Connection,
    id: JobId,
    after: Option<Epoch>,
    limit: usize,
) -> Result<Page<Attempt>, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/attempts.sql")).sorted()?;
    let parameters = (id.0.as_bytes(), after.map_or(-1, |epoch| epoch as i64), limit as i64 + 1);
    let rows = statement.query_map(parameters, attempt).sorted()?;
    let attempts = rows.collect::<rusqlite::Result<Vec<_>>>().sorted()?;
    Ok(Page::cut(attempts, limit, |attempt| Cursor::Attempt(attempt.epoch)))
}

fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    let millis = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    Ok(Attempt {
        epoch: row.get::<_, i64>(0)?.unsigned_abs(),
        entry: Entry {
            run: row.get(1)?,
            attempt: row.get(2)?,
            started_at: Timestamp::from_ms(row.get(3)?),
            duration: millis(row.get(4)?),
            outcome: row.get(5)?,
            error: row.get(6)?,
            detail: row.get(7)?,
        },
        worker: row.get::<_, Option<String>>(8)?.and_then(|worker| WorkerId::new(worker).ok()),
        led_to: led_to(row.get(9)?)?,
        wait: row.get::<_, Option<i64>>(10)?.map(millis),
        next_run_at: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_ms),
    })
}

fn led_to(code: u8) -> rusqlite::Result<State> {
    State::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(9, code.into()))
}
