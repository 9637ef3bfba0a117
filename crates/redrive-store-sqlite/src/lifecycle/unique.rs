//! Unique keys. They are checked when a job is enqueued, and at no other time.

use redrive_core::store::EnqueueResult;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, Kind, NewJob, State, Tenant, Timestamp, UniqueKey, UniqueRule};
use redrive_sql::Statement;
use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

use super::enqueue::exists;
use crate::error::Result;
use crate::sql::LIFECYCLE;
use crate::writer::Tx;

static FIND_UNIQUE_HOLDER: Statement = LIFECYCLE.statement("find_unique_holder");
static ASSIGN_UNIQUE: Statement = LIFECYCLE.statement("assign_unique");
static REPLACE_UNCLAIMED: Statement = LIFECYCLE.statement("replace_unclaimed");

/// The result of an enqueue whose unique key is in use, or `None` if the job may be added.
pub(crate) fn resolve(tx: &mut Tx<'_>, job: &NewJob, start: Timestamp) -> Result<Option<EnqueueResult>> {
    let Some(unique) = &job.unique else { return Ok(None) };
    if exists(tx.conn, job.id)? {
        return Ok(Some(EnqueueResult::Existing(job.id)));
    }
    let Some(holder) = find_holder(tx, &job.tenant, &job.kind, &unique.key)? else { return Ok(None) };
    let in_use = match unique.rule {
        UniqueRule::Live => holder.live,
        UniqueRule::For(_) => holder.until.map_or(holder.live, |until| until > tx.now),
        UniqueRule::Replace => {
            let replaced = replace(tx, holder.job, job, start)?;
            return Ok(replaced.then_some(EnqueueResult::Replaced(holder.job)));
        }
    };
    Ok(in_use.then_some(EnqueueResult::Existing(holder.job)))
}

/// Assigns the unique key of a job that was just added, if it has one.
pub(crate) fn assign_to(tx: &Tx<'_>, job: &NewJob) -> Result<()> {
    let Some(unique) = &job.unique else { return Ok(()) };
    let until = match unique.rule {
        UniqueRule::For(span) => Some(tx.now.after(span)),
        UniqueRule::Live | UniqueRule::Replace => None,
    };
    assign(tx, (&job.tenant, &job.kind, &unique.key), job.id, until)
}

/// Assigns a unique key to a job, whether or not another job had it.
pub(crate) fn assign(
    tx: &Tx<'_>,
    (tenant, kind, key): (&Tenant, &Kind, &UniqueKey),
    job: JobId,
    until: Option<Timestamp>,
) -> Result<()> {
    let mut statement = tx.conn.prepare_cached(&ASSIGN_UNIQUE)?;
    let until = until.map(Timestamp::as_ms);
    statement.execute((tenant.as_str(), kind.as_str(), key.as_str(), job.0.as_bytes(), until))?;
    Ok(())
}

/// The job that holds a unique key and has not ended, or for which the key is still reserved.
pub(crate) fn current_holder(
    tx: &Tx<'_>,
    tenant: &Tenant,
    kind: &Kind,
    key: &UniqueKey,
) -> Result<Option<JobId>> {
    let holder = find_holder(tx, tenant, kind, key)?;
    let holds = |holder: &Holder| holder.live || holder.until.is_some_and(|until| until > tx.now);
    Ok(holder.filter(holds).map(|holder| holder.job))
}

/// The job that a unique key was last assigned to.
struct Holder {
    job: JobId,
    /// The key is reserved until then, even if the job ends before.
    until: Option<Timestamp>,
    live: bool,
}

fn find_holder(tx: &Tx<'_>, tenant: &Tenant, kind: &Kind, key: &UniqueKey) -> Result<Option<Holder>> {
    let mut statement = tx.conn.prepare_cached(&FIND_UNIQUE_HOLDER)?;
    let key = (tenant.as_str(), kind.as_str(), key.as_str());
    let found = statement.query_row(key, |row| {
        let state: Option<u8> = row.get(2)?;
        Ok(Holder {
            job: JobId(Uuid::from_bytes(row.get(0)?)),
            until: row.get::<_, Option<i64>>(1)?.map(Timestamp::from_ms),
            live: state.and_then(State::from_code).is_some_and(|state| !state.is_final()),
        })
    });
    Ok(found.optional()?)
}

/// Gives an existing job the content of a new one; false if the existing job was claimed before.
fn replace(tx: &mut Tx<'_>, id: JobId, job: &NewJob, start: Timestamp) -> Result<bool> {
    let mut statement = tx.conn.prepare_cached(&REPLACE_UNCLAIMED)?;
    let changed = statement.execute(params![
        id.0.as_bytes(),
        start.as_ms(),
        job.timeout.map(ceil_ms),
        job.lease.map(ceil_ms),
        job.policy.to_string(),
        job.target,
        job.metadata,
        job.payload,
    ])?;
    let replaced = changed == 1;
    *tx.wake |= replaced;
    Ok(replaced)
}
