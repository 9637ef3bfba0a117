//! Leases due jobs, in the order of priority, due time and id across all matching lanes.

use std::cmp::Reverse;
use std::time::Instant;

use redrive_core::Timestamp;
use redrive_core::store::{ClaimRequest, ClaimedJobs, WakeToken};
use redrive_core::time::ceil_ms;
use redrive_sql::Statement;
use tokio_postgres::types::Type;

use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::limits;
use crate::open::Inner;
use crate::row::{self, JobRow};
use crate::sql;

static CLAIM_WHOLE_LANES: Statement = sql::LIFECYCLE.statement("claim_whole_lanes");
static CLAIM_BY_DUE_TIME: Statement = sql::LIFECYCLE.statement("claim_by_due_time");

pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<ClaimedJobs> {
    let wake = inner.wakes();
    let limited = inner.known_limits().apply_to_claim(request);
    let claimed = if limited { None } else { claim_unlimited(inner, request, wake).await? };
    if let Some(claimed) = claimed {
        return Ok(claimed);
    }
    let claim = limits::claim::claim(inner, request).await?;
    let rows = in_order(claim.rows, &inner.lanes.snapshot());
    Ok(ClaimedJobs { next_due: claim.next_due, ..claimed_jobs(rows, claim.now, wake) })
}

/// Claims from lanes without limits, in one statement. Returns None, and claims nothing, if one of the lanes is limited.
async fn claim_unlimited(
    inner: &Inner,
    request: &ClaimRequest,
    wake: WakeToken,
) -> Result<Option<ClaimedJobs>> {
    let started = Instant::now();
    let start = inner.claim_positions().start(request, started);
    let queues: Vec<&str> = request.queues.iter().map(|queue| queue.as_str()).collect();
    let kinds: Vec<&str> = request.kinds.iter().map(|kind| kind.as_str()).collect();
    let (now, limit, lease) = (inner.manual_now(), request.limit as i64, ceil_ms(request.lease));
    let sql = if inner.lanes.snapshot().share_a_priority(request) {
        &CLAIM_BY_DUE_TIME
    } else {
        &CLAIM_WHOLE_LANES
    };
    let rows = inner
        .pool
        .query(
            sql,
            &[
                (&now, Type::INT8),
                (&queues, Type::TEXT_ARRAY),
                (&kinds, Type::TEXT_ARRAY),
                (&limit, Type::INT8),
                (&start.lanes, Type::INT4_ARRAY),
                (&start.at, Type::INT8_ARRAY),
                (&start.ids, Type::UUID_ARRAY),
                (&request.worker.as_str(), Type::TEXT),
                (&lease, Type::INT8),
            ],
        )
        .await
        // The statement may have claimed jobs although no answer came. These become due again at their old positions.
        .inspect_err(|_| inner.claim_positions().forget())?;
    let first = rows.first().ok_or_else(Error::no_row)?;
    if first.try_get("limited")? {
        return Ok(None);
    }
    let lanes = inner.lanes_of(&rows).await?;
    let rows_in_order = in_order(row::read_all(&rows, &lanes)?, &lanes);
    let now = Timestamp::from_ms(first.try_get("now")?);
    let next_due = first.try_get::<_, Option<i64>>("due")?.map(Timestamp::from_ms);
    inner.claim_positions().record_claim(request, &start, &rows_in_order, now, started.elapsed());
    Ok(Some(ClaimedJobs { next_due, ..claimed_jobs(rows_in_order, now, wake) }))
}

fn in_order(mut rows: Vec<JobRow>, lanes: &Lanes) -> Vec<JobRow> {
    rows.sort_by_key(|row| (Reverse(lanes.get(row.lane).map(|lane| lane.priority)), row.next_run_at, row.id));
    rows
}

/// The answer of a claim or reclaim, with unreadable jobs apart.
pub(crate) fn claimed_jobs(rows: Vec<JobRow>, now: Timestamp, wake: WakeToken) -> ClaimedJobs {
    let mut claimed = ClaimedJobs {
        jobs: Vec::with_capacity(rows.len()),
        unreadable: Vec::new(),
        now,
        next_due: None,
        wake,
    };
    for row in rows {
        match row.job {
            Ok(job) => claimed.jobs.push(job),
            Err(unreadable) => claimed.unreadable.push(unreadable),
        }
    }
    claimed
}
