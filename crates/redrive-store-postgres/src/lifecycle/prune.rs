//! Removes ended jobs after their retention, expired unique keys, old starts and unused lanes, and merges the rows of the counts.

use std::collections::HashMap;
use std::time::Duration;

use redrive_core::queue_limits::QUEUE_LIMITS;
use redrive_core::store::Retention;
use redrive_core::time::ceil_ms;
use redrive_core::{QueueLimits, State};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::open::Inner;
use crate::pool::Parameter;
use crate::records;
use crate::sql;

static PRUNE: Statement = sql::RETENTION.statement("prune");
static PRUNE_UNIQUE_KEYS: Statement = sql::RETENTION.statement("prune_unique_keys");
static MERGE_COUNTS: Statement = sql::RETENTION.statement("merge_counts");
static PRUNE_STARTS: Statement = sql::RETENTION.statement("prune_starts");
static RETIRE_LANES: Statement = sql::RETENTION.statement("retire_lanes");

/// A prune examines this many jobs for each job that it may remove, because it keeps children of live parents.
const EXAMINED_PER_JOB: usize = 4;
const EXAMINED_MIN: usize = 1_000;
/// Starts are kept at least this long, for a rate limit that is set or lowered later.
const STARTS_KEPT: Duration = Duration::from_secs(60 * 60);
/// The maximum number of starts that one prune removes.
const STARTS_MAX: i64 = 100_000;
/// The maximum number of rows of the counts that one statement merges.
const COUNTS_MAX: i64 = 20_000;
/// The maximum number of such statements in one prune.
const MERGES_MAX: usize = 50;
/// Lanes that nobody has used for this long are removed, or idle if they have ended jobs.
const LANE_UNUSED: Duration = Duration::from_secs(24 * 60 * 60);

/// For each state, the last ended job that a prune has examined. Jobs that it keeps would stop the others from being reached.
#[derive(Debug, Default)]
pub(crate) struct PrunePositions(HashMap<State, (i64, Uuid)>);

pub(crate) async fn prune(inner: &Inner, retention: &Retention, limit: usize) -> Result<usize> {
    let mut removed = 0;
    for (state, span) in retention.by_state() {
        removed += prune_state(inner, state, span, limit - removed).await?;
    }
    let now = inner.manual_now();
    let uniques: [Parameter<'_>; 2] = [(&now, Type::INT8), (&(limit as i64), Type::INT8)];
    inner.pool.query(&PRUNE_UNIQUE_KEYS, &uniques).await?;
    prune_starts(inner, now).await?;
    merge_counts(inner).await?;
    inner.pool.query(&RETIRE_LANES, &[(&now, Type::INT8), (&ceil_ms(LANE_UNUSED), Type::INT8)]).await?;
    Ok(removed)
}

/// Removes jobs of one state. Continues after the jobs that the last call examined, and starts again after the last one.
async fn prune_state(inner: &Inner, state: State, span: Duration, limit: usize) -> Result<usize> {
    if limit == 0 {
        return Ok(0);
    }
    let examined_max = (limit * EXAMINED_PER_JOB).max(EXAMINED_MIN) as i64;
    let (now, code) = (inner.manual_now(), i16::from(state.code()));
    let (span, most) = (ceil_ms(span), limit as i64);
    let position = inner.prune_positions().0.get(&state).copied();
    let (at, id) = position.unwrap_or((i64::MIN, Uuid::nil()));
    let parameters: [Parameter<'_>; 7] = [
        (&now, Type::INT8),
        (&code, Type::INT2),
        (&span, Type::INT8),
        (&at, Type::INT8),
        (&id, Type::UUID),
        (&examined_max, Type::INT8),
        (&most, Type::INT8),
    ];
    let rows = inner.pool.query(&PRUNE, &parameters).await?;
    let row = rows.first().ok_or_else(Error::no_row)?;
    let (removed, examined): (i64, i64) = (row.try_get("removed")?, row.try_get("examined")?);
    let last: Option<i64> = row.try_get("finished_at")?;
    let mut positions = inner.prune_positions();
    match (last, row.try_get("id")?) {
        (Some(at), Some(id)) if examined == examined_max => drop(positions.0.insert(state, (at, id))),
        _ => drop(positions.0.remove(&state)),
    }
    Ok(removed.unsigned_abs() as usize)
}

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

/// Merges the rows of the counts until few are left, however many were added since the last call.
async fn merge_counts(inner: &Inner) -> Result<()> {
    for _ in 0..MERGES_MAX {
        let rows = inner.pool.query(&MERGE_COUNTS, &[(&COUNTS_MAX, Type::INT8)]).await?;
        let merged: i64 = rows.first().ok_or_else(Error::no_row)?.try_get("merged")?;
        if merged < COUNTS_MAX {
            break;
        }
    }
    Ok(())
}
