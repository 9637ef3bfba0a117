//! Leases due jobs: priority first, then due time, then id, across all lanes that match.

use std::cmp::Reverse;
use std::time::Instant;

use redrive_core::store::{ClaimRequest, Claimed, Wake};
use redrive_core::time::ceil_ms;
use redrive_core::{StoreError, Timestamp};
use tokio_postgres::types::Type;

use crate::claim_bounded;
use crate::error::{Sorted, nothing};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::row::{self, Read};

const ONE: &str = concat!(
    include_str!("../sql/claim_wanted.sql"),
    include_str!("../sql/claim_one.sql"),
    include_str!("../sql/claim.sql")
);
const MANY: &str = concat!(
    include_str!("../sql/claim_wanted.sql"),
    include_str!("../sql/claim_many.sql"),
    include_str!("../sql/claim.sql")
);

pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<Claimed, StoreError> {
    let wake = inner.wakes();
    let met_bounds = inner.met().in_claim(request);
    let free = if met_bounds { None } else { claim_free(inner, request, wake).await? };
    if let Some(claimed) = free {
        return Ok(claimed);
    }
    let taken = claim_bounded::claim(inner, request).await?;
    let reads = in_order(taken.reads, &inner.lanes.snapshot());
    Ok(Claimed { next_due: taken.next_due, ..leased(reads, taken.now, wake) })
}

/// Claims from lanes that nothing bounds, in one statement; does nothing if something does.
async fn claim_free(
    inner: &Inner,
    request: &ClaimRequest,
    wake: Wake,
) -> Result<Option<Claimed>, StoreError> {
    let started = Instant::now();
    let begin = inner.floors().begin(request, started);
    let queues: Vec<&str> = request.queues.iter().map(|queue| queue.as_str()).collect();
    let kinds: Vec<&str> = request.kinds.iter().map(|kind| kind.as_str()).collect();
    let (now, limit, lease) = (inner.manual_now(), request.limit as i64, ceil_ms(request.lease));
    let sql = if inner.lanes.snapshot().has_peers(request) { MANY } else { ONE };
    let rows = inner
        .pool
        .query(
            sql,
            &[
                (&now, Type::INT8),
                (&queues, Type::TEXT_ARRAY),
                (&kinds, Type::TEXT_ARRAY),
                (&limit, Type::INT8),
                (&begin.lanes, Type::INT4_ARRAY),
                (&begin.at, Type::INT8_ARRAY),
                (&begin.ids, Type::UUID_ARRAY),
                (&request.worker.as_str(), Type::TEXT),
                (&lease, Type::INT8),
            ],
        )
        .await
        // What was claimed without an answer comes back when its lease ends, and then before the floor.
        .inspect_err(|_| inner.floors().forget())?;
    let first = rows.first().ok_or_else(nothing)?;
    if first.try_get("bounded").sorted()? {
        return Ok(None);
    }
    let lanes = inner.lanes_of(&rows).await?;
    let reads = in_order(row::reads(&rows, &lanes)?, &lanes);
    let now = Timestamp::from_ms(first.try_get("now").sorted()?);
    let next_due = first.try_get::<_, Option<i64>>("due").sorted()?.map(Timestamp::from_ms);
    inner.floors().claimed(request, &begin, &reads, now, started.elapsed());
    Ok(Some(Claimed { next_due, ..leased(reads, now, wake) }))
}

fn in_order(mut reads: Vec<Read>, lanes: &Lanes) -> Vec<Read> {
    reads.sort_by_key(|read| {
        (Reverse(lanes.get(read.lane).map(|lane| lane.priority)), read.next_run_at, read.id)
    });
    reads
}

/// Rows under lease as an answer.
pub(crate) fn leased(reads: Vec<Read>, now: Timestamp, wake: Wake) -> Claimed {
    let mut claimed =
        Claimed { jobs: Vec::with_capacity(reads.len()), unreadable: Vec::new(), now, next_due: None, wake };
    for read in reads {
        match read.job {
            Ok(job) => claimed.jobs.push(job),
            Err(unreadable) => claimed.unreadable.push(unreadable),
        }
    }
    claimed
}
