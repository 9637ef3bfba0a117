//! Reads jobs, attempts and counts.

pub(crate) mod list;
pub(crate) mod search;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redrive_core::store::{Cursor, Page, Stats};
use redrive_core::{Attempt, AttemptReport, Epoch, Job, JobId, Queue, Timestamp, WorkerId};
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::{Error, Result};
use crate::lifecycle::scan_start::OldestDueRead;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::{row, sql};

static GET: Statement = sql::READ.statement("get");
static ATTEMPTS: Statement = sql::READ.statement("attempts");
static STATS: Statement = sql::READ.statement("stats");

pub(crate) async fn get(inner: &Inner, ids: &[JobId]) -> Result<Vec<Option<Job>>> {
    let rows = inner.pool.query(&GET, &[(&row::uuids(ids), Type::UUID_ARRAY)]).await?;
    let lanes = inner.lanes_of(&rows).await?;
    let mut jobs: HashMap<JobId, Job> = HashMap::with_capacity(rows.len());
    for row in row::read_all(&rows, lanes)? {
        jobs.insert(row.id, row.readable()?);
    }
    Ok(ids.iter().map(|id| jobs.get(id).cloned()).collect())
}

pub(crate) async fn attempts(
    inner: &Inner,
    id: JobId,
    after: Option<Epoch>,
    limit: usize,
) -> Result<Page<Attempt>> {
    let (after, most) =
        (after.and_then(|epoch| i64::try_from(epoch).ok()).unwrap_or(i64::MAX), limit as i64 + 1);
    let rows = inner
        .pool
        .query(&ATTEMPTS, &[(&id.0, Type::UUID), (&after, Type::INT8), (&most, Type::INT8)])
        .await?;
    let attempts = rows.iter().map(read_attempt).collect::<Result<Vec<_>>>()?;
    Ok(Page::from_items(attempts, limit, |attempt| Cursor::Attempt(attempt.epoch)))
}

pub(crate) fn read_attempt(row: &Row) -> Result<Attempt> {
    let millis = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    let code: i16 = row.try_get(9)?;
    let worker: Option<&str> = row.try_get(8)?;
    Ok(Attempt {
        epoch: row.try_get::<_, i64>(0)?.unsigned_abs(),
        entry: AttemptReport {
            run: row.try_get::<_, i32>(1)?.unsigned_abs(),
            attempt: row.try_get::<_, i32>(2)?.unsigned_abs(),
            started_at: Timestamp::from_ms(row.try_get(3)?),
            duration: millis(row.try_get(4)?),
            outcome: row.try_get(5)?,
            error: row.try_get(6)?,
            detail: row.try_get(7)?,
        },
        worker: worker.and_then(|worker| WorkerId::new(worker).ok()),
        led_to: row::state(code)
            .ok_or_else(|| Error::corrupt(format!("an attempt led to state {code}, which does not exist")))?,
        wait: row.try_get::<_, Option<i64>>(10)?.map(millis),
        next_run_at: row.try_get::<_, Option<i64>>(11)?.map(Timestamp::from_ms),
    })
}

pub(crate) async fn stats(inner: &Inner) -> Result<Stats> {
    let (started, now) = (Instant::now(), inner.manual_now());
    let start = inner.claim_positions().start_of_oldest_due(started);
    let parameters: [Parameter<'_>; 3] =
        [(&now, Type::INT8), (&start.lanes, Type::INT4_ARRAY), (&start.at, Type::INT8_ARRAY)];
    let rows = inner.pool.query(&STATS, &parameters).await?;
    let first = rows.first().ok_or_else(Error::no_row)?;
    let read = OldestDueRead {
        now: Timestamp::from_ms(first.try_get("now")?),
        lanes: first.try_get::<_, Option<_>>("lanes")?.unwrap_or_default(),
        first_due: first.try_get::<_, Option<_>>("first_due")?.unwrap_or_default(),
    };
    inner.claim_positions().record_oldest_due(&start, &read, started.elapsed());
    let mut stats = Stats {
        now: read.now,
        oldest_due: first.try_get::<_, Option<i64>>("due")?.map(Timestamp::from_ms),
        ..Stats::default()
    };
    for row in &rows {
        let Some(queue) = row.try_get::<_, Option<&str>>("queue")? else { continue };
        let (code, jobs): (i16, i64) = (row.try_get("state")?, row.try_get("jobs")?);
        if let Some(state) = row::state(code) {
            stats.counts.insert((Queue::new(queue)?, state), u64::try_from(jobs).unwrap_or(0));
        }
    }
    Ok(stats)
}
