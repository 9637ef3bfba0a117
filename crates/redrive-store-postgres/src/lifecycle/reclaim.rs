//! Takes over leases that have run out.

use std::time::Instant;

use redrive_core::Timestamp;
use redrive_core::store::{ClaimedJobs, ReclaimRequest};
use redrive_core::time::ceil_ms;
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lifecycle::claim;
use crate::lifecycle::scan_start::LeaseScan;
use crate::open::Inner;
use crate::row;
use crate::sql;

static RECLAIM: Statement = sql::LIFECYCLE.statement("reclaim");

pub(crate) async fn reclaim(inner: &Inner, request: &ReclaimRequest) -> Result<ClaimedJobs> {
    let wake = inner.wakes();
    let kinds: Vec<&str> = request.kinds.iter().map(|kind| kind.as_str()).collect();
    let (now, limit, lease) = (inner.manual_now(), request.limit as i64, ceil_ms(request.lease));
    let held: Vec<Uuid> = request.held.iter().map(|lease| lease.id.0).collect();
    let epochs: Vec<i64> = request.held.iter().map(|lease| lease.epoch as i64).collect();
    let started = Instant::now();
    let (start, full) = inner.lease_positions().start(&request.kinds, started, now);
    let rows = inner
        .pool
        .query(
            &RECLAIM,
            &[
                (&now, Type::INT8),
                (&kinds, Type::TEXT_ARRAY),
                (&limit, Type::INT8),
                (&start, Type::INT8),
                (&lease, Type::INT8),
                (&held, Type::UUID_ARRAY),
                (&epochs, Type::INT8_ARRAY),
            ],
        )
        .await?;
    let first = rows.first().ok_or_else(Error::no_row)?;
    let now = Timestamp::from_ms(first.try_get("now")?);
    let own_expired: bool = first.try_get("own_expired")?;
    let lanes = inner.lanes_of(&rows).await?;
    let took = started.elapsed();
    let mut ended = Vec::with_capacity(rows.len());
    for (row, job) in rows.iter().zip(row::read_all(&rows, &lanes)?) {
        ended.push((row.try_get::<_, i64>("ended")?, job.id, job));
    }
    // A lease that the scan left to its holder must be found again once the holder stops.
    let complete = ended.len() < request.limit && !own_expired;
    inner.lease_positions().record(&request.kinds, LeaseScan { full, complete, now, took });
    ended.sort_by_key(|(ended, id, _)| (*ended, *id));
    Ok(claim::claimed_jobs(ended.into_iter().map(|(_, _, row)| row).collect(), now, wake))
}
