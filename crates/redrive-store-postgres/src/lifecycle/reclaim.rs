//! Takes over leases that have run out.

use std::time::Instant;

use redrive_core::store::{Claimed, ReclaimRequest};
use redrive_core::time::ceil_ms;
use redrive_core::{StoreError, Timestamp};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::claim;
use crate::error::{Sorted, nothing};
use crate::leases::Look;
use crate::open::Inner;
use crate::row;

pub(crate) async fn reclaim(inner: &Inner, request: &ReclaimRequest) -> Result<Claimed, StoreError> {
    let wake = inner.wakes();
    let kinds: Vec<&str> = request.kinds.iter().map(|kind| kind.as_str()).collect();
    let (now, limit, lease) = (inner.manual_now(), request.limit as i64, ceil_ms(request.lease));
    let held: Vec<Uuid> = request.held.iter().map(|lease| lease.id.0).collect();
    let epochs: Vec<i64> = request.held.iter().map(|lease| lease.epoch as i64).collect();
    let started = Instant::now();
    let (begin, full) = inner.leases().begin(&request.kinds, started, now);
    let rows = inner
        .pool
        .query(
            include_str!("../sql/reclaim.sql"),
            &[
                (&now, Type::INT8),
                (&kinds, Type::TEXT_ARRAY),
                (&limit, Type::INT8),
                (&begin, Type::INT8),
                (&lease, Type::INT8),
                (&held, Type::UUID_ARRAY),
                (&epochs, Type::INT8_ARRAY),
            ],
        )
        .await?;
    let first = rows.first().ok_or_else(nothing)?;
    let now = Timestamp::from_ms(first.try_get("now").sorted()?);
    let passed: bool = first.try_get("passed").sorted()?;
    let lanes = inner.lanes_of(&rows).await?;
    let took = started.elapsed();
    let mut ended = Vec::with_capacity(rows.len());
    for (row, read) in rows.iter().zip(row::reads(&rows, &lanes)?) {
        ended.push((row.try_get::<_, i64>("ended").sorted()?, read.id, read));
    }
    // A lease that was passed by must be found again once nobody holds it.
    let complete = ended.len() < request.limit && !passed;
    inner.leases().looked(&request.kinds, Look { full, complete, now, took });
    ended.sort_by_key(|(ended, id, _)| (*ended, *id));
    Ok(claim::leased(ended.into_iter().map(|(_, _, read)| read).collect(), now, wake))
}
