//! The log of one job, oldest attempt first.

use std::time::Duration;

use redrive_core::store::{Cursor, Page};
use redrive_core::{Attempt, Entry, Epoch, JobId, StoreError, Timestamp, WorkerId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Sorted;
use crate::open::Inner;
use crate::row;

pub(crate) async fn attempts(
    inner: &Inner,
    id: JobId,
    after: Option<Epoch>,
    limit: usize,
) -> Result<Page<Attempt>, StoreError> {
    let (after, most) = (after.map_or(-1, |epoch| epoch as i64), limit as i64 + 1);
    let rows = inner
        .pool
        .query(
            include_str!("../sql/attempts.sql"),
            &[(&id.0, Type::UUID), (&after, Type::INT8), (&most, Type::INT8)],
        )
        .await?;
    let attempts = rows.iter().map(attempt).collect::<Result<Vec<_>, _>>()?;
    Ok(Page::cut(attempts, limit, |attempt| Cursor::Attempt(attempt.epoch)))
}

/// The attempt in a row.
pub(crate) fn attempt(row: &Row) -> Result<Attempt, StoreError> {
    let millis = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    let code: i16 = row.try_get(9).sorted()?;
    let worker: Option<&str> = row.try_get(8).sorted()?;
    Ok(Attempt {
        epoch: row.try_get::<_, i64>(0).sorted()?.unsigned_abs(),
        entry: Entry {
            run: row.try_get::<_, i32>(1).sorted()?.unsigned_abs(),
            attempt: row.try_get::<_, i32>(2).sorted()?.unsigned_abs(),
            started_at: Timestamp::from_ms(row.try_get(3).sorted()?),
            duration: millis(row.try_get(4).sorted()?),
            outcome: row.try_get(5).sorted()?,
            error: row.try_get(6).sorted()?,
            detail: row.try_get(7).sorted()?,
        },
        worker: worker.and_then(|worker| WorkerId::new(worker).ok()),
        led_to: row::state(code)
            .ok_or_else(|| StoreError::Corrupt(format!("an attempt led to {code}, which is no state")))?,
        wait: row.try_get::<_, Option<i64>>(10).sorted()?.map(millis),
        next_run_at: row.try_get::<_, Option<i64>>(11).sorted()?.map(Timestamp::from_ms),
    })
}
