//! Removes ended jobs after their retention, expired unique keys and old starts, and merges the rows of the counts.

use std::time::Duration;

use redrive_core::QueueLimits;
use redrive_core::queue_limits::QUEUE_LIMITS;
use redrive_core::store::Retention;
use redrive_core::time::ceil_ms;
use redrive_sql::Statement;
use tokio_postgres::types::Type;

use crate::error::{Error, Result};
use crate::open::Inner;
use crate::pool::Parameter;
use crate::records;
use crate::sql;

static PRUNE: Statement = sql::RETENTION.statement("prune");
static PRUNE_UNIQUE_KEYS: Statement = sql::RETENTION.statement("prune_unique_keys");
static MERGE_COUNTS: Statement = sql::RETENTION.statement("merge_counts");
static PRUNE_STARTS: Statement = sql::RETENTION.statement("prune_starts");

pub(crate) async fn prune(inner: &Inner, retention: &Retention, limit: usize) -> Result<usize> {
    let states: Vec<i16> = retention.by_state().iter().map(|(state, _)| state.code().into()).collect();
    let spans: Vec<i64> = retention.by_state().iter().map(|(_, span)| ceil_ms(*span)).collect();
    let (now, most) = (inner.manual_now(), limit as i64);
    let rows = inner
        .pool
        .query(
            &PRUNE,
            &[
                (&now, Type::INT8),
                (&states, Type::INT2_ARRAY),
                (&spans, Type::INT8_ARRAY),
                (&most, Type::INT8),
            ],
        )
        .await?;
    let uniques: [Parameter<'_>; 2] = [(&now, Type::INT8), (&most, Type::INT8)];
    inner.pool.query(&PRUNE_UNIQUE_KEYS, &uniques).await?;
    prune_starts(inner, now).await?;
    inner.pool.query(&MERGE_COUNTS, &[]).await?;
    let pruned: i64 = rows.first().ok_or_else(Error::no_row)?.try_get(0)?;
    Ok(pruned.unsigned_abs() as usize)
}

/// Starts are kept at least this long, for a rate limit that is set or lowered later.
const STARTS_KEPT: Duration = Duration::from_secs(60 * 60);
/// The maximum number of starts that one prune removes.
const STARTS_MAX: i64 = 100_000;

async fn prune_starts(inner: &Inner, now: Option<i64>) -> Result<()> {
    let mut kept = STARTS_KEPT;
    for record in records::scan(inner, QUEUE_LIMITS, None, usize::MAX).await? {
        let limits = QueueLimits::read(&record.value);
        let rates = [limits.rate, limits.per_key.rate].into_iter().flatten();
        kept = rates.map(|rate| rate.per()).fold(kept, Duration::max);
    }
    let parameters: [Parameter<'_>; 3] =
        [(&now, Type::INT8), (&ceil_ms(kept), Type::INT8), (&STARTS_MAX, Type::INT8)];
    inner.pool.query(&PRUNE_STARTS, &parameters).await.map(drop)
}
