//! Removes jobs at the end of their retention, then unique keys that outlived theirs, and adds up the counts.

use redrive_core::StoreError;
use redrive_core::store::Retention;
use redrive_core::time::ceil_ms;
use tokio_postgres::types::Type;

use crate::error::{Sorted, nothing};
use crate::open::Inner;
use crate::pool::Parameter;

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
    inner.pool.query(include_str!("../sql/prune_counts.sql"), &[]).await?;
    let pruned: i64 = rows.first().ok_or_else(nothing)?.try_get(0).sorted()?;
    Ok(pruned.unsigned_abs() as usize)
}
