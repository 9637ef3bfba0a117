//! Deletes jobs at the end of their retention. Also deletes jobs on behalf of discard and import.

use redrive_core::store::Retention;
use redrive_core::{JobId, State, Timestamp};
use redrive_sql::Statement;
use uuid::Uuid;

use crate::error::Result;
use crate::sql::{LIFECYCLE, OPERATE, STEPS};
use crate::writer::Tx;

static EXPIRED_JOBS: Statement = LIFECYCLE.statement("expired_jobs");
static DELETE_ENDED: Statement = LIFECYCLE.statement("delete_ended");
static DELETE_EXPIRED_UNIQUES: Statement = LIFECYCLE.statement("delete_expired_uniques");
static DELETE_ATTEMPTS: Statement = OPERATE.statement("delete_attempts");
static DELETE_SIGNALS: Statement = OPERATE.statement("delete_signals");
static RELEASE_UNIQUES: Statement = OPERATE.statement("release_uniques");
static DELETE_STEPS: Statement = STEPS.statement("delete_steps");

pub(crate) fn prune(tx: &mut Tx<'_>, retention: &Retention, limit: usize) -> Result<usize> {
    let mut pruned = 0;
    for (state, keep) in retention.by_state() {
        for (id, lane) in read_expired(tx, state, tx.now.before(keep), limit - pruned)? {
            delete_job(tx, &DELETE_ENDED, id, lane, state)?;
            pruned += 1;
        }
    }
    let mut statement = tx.conn.prepare_cached(&DELETE_EXPIRED_UNIQUES)?;
    statement.execute((tx.now.as_ms(), limit as i64))?;
    Ok(pruned)
}

/// The id and lane of jobs that ended at `until` or before.
fn read_expired(tx: &Tx<'_>, state: State, until: Timestamp, limit: usize) -> Result<Vec<(JobId, i64)>> {
    let mut statement = tx.conn.prepare_cached(&EXPIRED_JOBS)?;
    let rows = statement.query_map((state.code(), until.as_ms(), limit as i64), |row| {
        Ok((JobId(Uuid::from_bytes(row.get(0)?)), row.get(1)?))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Deletes a job by the statement `delete`, together with its attempt log, steps, signals and unique keys.
pub(crate) fn delete_job(
    tx: &mut Tx<'_>,
    delete: &Statement,
    id: JobId,
    lane: i64,
    state: State,
) -> Result<()> {
    for statement in [delete, &DELETE_ATTEMPTS, &DELETE_STEPS, &DELETE_SIGNALS] {
        tx.conn.prepare_cached(statement)?.execute([id.0.as_bytes()])?;
    }
    tx.conn.prepare_cached(&RELEASE_UNIQUES)?.execute((id.0.as_bytes(), tx.now.as_ms()))?;
    tx.counts.remove(lane, state);
    Ok(())
}
