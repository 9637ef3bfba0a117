//! Removes jobs at the end of their retention, then unique keys that outlived theirs and starts that no rate counts any more, and
//! adds up the counts.

use std::time::Duration;

use redrive_core::quota::QUOTA;
use redrive_core::store::Retention;
use redrive_core::time::ceil_ms;
use redrive_core::{Quota, StoreError};
use tokio_postgres::types::Type;

use crate::error::{Sorted, nothing};
use crate::open::Inner;
use crate::pool::Parameter;
use crate::records;

pub(crate) async fn prune(inner: &Inner, retention: &Retention, limit: usize) -> Result<usize, StoreError> {
    let states: Vec<i16> = retention.by_state().iter().map(|(state, _)| state.code().into()).collect();
    let spans: Vec<i64> = retention.by_state().iter().map(|(_, span)| ceil_ms(*span)).collect();
    let (now, most) = (inner.manual_now(), limit as i64);
    let rows = inner
        .pool
        .query(
            include_str!("../sql/prune.sql"),
            &[
                (&now, Type::INT8),
                (&states, Type::INT2_ARRAY),
                (&spans, Type::INT8_ARRAY),
                (&most, Type::INT8),
            ],
        )
        .await?;
    let uniques: [Parameter<'_>; 2] = [(&now, Type::INT8), (&most, Type::INT8)];
    inner.pool.query(include_str!("../sql/prune_uniques.sql"), &uniques).await?;
    prune_starts(inner, now).await?;
    inner.pool.query(include_str!("../sql/prune_counts.sql"), &[]).await?;
    let pruned: i64 = rows.first().ok_or_else(nothing)?.try_get(0).sorted()?;
    Ok(pruned.unsigned_abs() as usize)
}

/// How long starts are kept at least, for a rate that is set or made slower later.
const STARTS_KEPT: Duration = Duration::from_secs(60 * 60);
/// How many are removed at once.
const STARTS_MAX: i64 = 100_000;

async fn prune_starts(inner: &Inner, now: Option<i64>) -> Result<(), StoreError> {
    let mut kept = STARTS_KEPT;
    for record in records::scan(inner, QUOTA, None, usize::MAX).await? {
        let quota = Quota::read(&record.value);
        let rates = [quota.rate, quota.per_key.rate].into_iter().flatten();
        kept = rates.map(|rate| rate.per()).fold(kept, Duration::max);
    }
    let parameters: [Parameter<'_>; 3] =
        [(&now, Type::INT8), (&ceil_ms(kept), Type::INT8), (&STARTS_MAX, Type::INT8)];
    inner.pool.query(include_str!("../sql/prune_starts.sql"), &parameters).await.map(drop)
}
