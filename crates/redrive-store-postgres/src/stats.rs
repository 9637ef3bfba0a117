//! Counts by queue and state, and the job that has been due for longest.

use redrive_core::store::Stats;
use redrive_core::{Queue, StoreError, Timestamp};
use tokio_postgres::types::Type;

use crate::error::{Sorted, nothing};
use crate::open::Inner;
use crate::row;

pub(crate) async fn stats(inner: &Inner) -> Result<Stats, StoreError> {
    let now = inner.manual_now();
    let rows = inner.pool.query(include_str!("../sql/stats.sql"), &[(&now, Type::INT8)]).await?;
    let first = rows.first().ok_or_else(nothing)?;
    let mut stats = Stats {
        now: Timestamp::from_ms(first.try_get("now").sorted()?),
        oldest_due: first.try_get::<_, Option<i64>>("due").sorted()?.map(Timestamp::from_ms),
        ..Stats::default()
    };
    for each in &rows {
        let Some(queue) = each.try_get::<_, Option<&str>>("queue").sorted()? else { continue };
        let (code, jobs): (i16, i64) = (each.try_get("state").sorted()?, each.try_get("jobs").sorted()?);
        if let Some(state) = row::state(code) {
            stats.counts.insert((Queue::new(queue)?, state), u64::try_from(jobs).unwrap_or(0));
        }
    }
    Ok(stats)
}
