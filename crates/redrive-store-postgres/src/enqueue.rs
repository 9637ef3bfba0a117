//! Adds jobs, each at most once.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::limits::HORIZON;
use redrive_core::store::Enqueued;
use redrive_core::time::ceil_ms;
use redrive_core::{Invalid, JobId, NewJob, Start, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::columns::Columns;
use crate::error::Sorted;
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;

/// Something that runs statements: a pool, or a transaction of the caller's.
pub(crate) trait Run {
    /// Runs one statement.
    fn run(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;
}

pub(crate) async fn enqueue(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
    let lanes = inner.lanes.with(&inner.pool, jobs).await?;
    inner.expect(jobs);
    add_all(&*inner.pool, &lanes, inner.manual_now(), jobs).await
}

/// Adds jobs, in rounds: a job that has its id or its key in common with an earlier one waits for what comes of that one,
/// so that the result is as if they were added one after the other. Hardly any batch needs a second round.
pub(crate) async fn add_all(
    to: &impl Run,
    lanes: &Lanes,
    now: Option<i64>,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, StoreError> {
    let mut results: Vec<Option<Enqueued>> = vec![None; jobs.len()];
    loop {
        let round = round(jobs, &results);
        if round.is_empty() {
            return Ok(results.into_iter().flatten().collect());
        }
        let added = add(to, lanes, now, round.iter().map(|index| &jobs[*index])).await?;
        let mut left = Vec::new();
        for index in round {
            let id = jobs[index].id;
            match &added {
                Added::All => results[index] = Some(Enqueued::Created(id)),
                Added::These(ids) if ids.contains(&id.0) => results[index] = Some(Enqueued::Created(id)),
                Added::These(_) => left.push(index),
            }
        }
        if !left.is_empty() {
            existing(to, jobs, &left, &mut results).await?;
        }
    }
}

/// Checks what can be checked without the server's clock.
pub(crate) fn check(jobs: &[NewJob]) -> Result<(), StoreError> {
    for job in jobs {
        job.check()?;
        if matches!(job.start, Start::After(wait) if wait > HORIZON) {
            return Err(too_far().into());
        }
    }
    Ok(())
}

/// The refusal of a job that is due too far ahead.
pub(crate) fn too_far() -> Invalid {
    Invalid::new("runAt", "must be at most one year ahead")
}

/// The jobs without a result yet that share neither id nor key with another before them; ordered by key, so that batches
/// of several nodes that meet wait for each other in the same order.
fn round(jobs: &[NewJob], results: &[Option<Enqueued>]) -> Vec<usize> {
    let mut ids = BTreeSet::new();
    let mut keys = BTreeSet::new();
    let mut round = Vec::new();
    for (index, job) in jobs.iter().enumerate().filter(|(index, _)| results[*index].is_none()) {
        let key = job.idempotency.as_ref().map(|idempotency| (&job.tenant, &idempotency.key));
        let new_id = ids.insert(job.id);
        let new_key = key.is_none_or(|key| keys.insert(key));
        if new_id && new_key {
            round.push(index);
        }
    }
    if !keys.is_empty() {
        round.sort_by_key(|index| {
            let job = &jobs[*index];
            job.idempotency.as_ref().map(|idempotency| (&job.tenant, &idempotency.key))
        });
    }
    round
}

/// Which jobs a statement has added.
enum Added {
    All,
    These(BTreeSet<Uuid>),
}

async fn add<'a>(
    to: &impl Run,
    lanes: &Lanes,
    now: Option<i64>,
    jobs: impl IntoIterator<Item = &'a NewJob>,
) -> Result<Added, StoreError> {
    let columns = Columns::new(jobs, lanes)?;
    let (horizon, count) = (ceil_ms(HORIZON), columns.ids.len() as i64);
    let mut parameters: Vec<Parameter<'_>> =
        vec![(&now, Type::INT8), (&horizon, Type::INT8), (&count, Type::INT8)];
    parameters.extend(columns.parameters());
    let rows = to.run(include_str!("../sql/enqueue.sql"), &parameters).await?;
    let row = rows.first().ok_or_else(nothing)?;
    if row.try_get("late").sorted()? {
        return Err(too_far().into());
    }
    if row.try_get::<_, i64>("added").sorted()? == count {
        return Ok(Added::All);
    }
    let ids: Option<Vec<Uuid>> = row.try_get("ids").sorted()?;
    Ok(Added::These(ids.unwrap_or_default().into_iter().collect()))
}

/// Finds what was there instead. What was there a moment ago and is gone again stays without a result, for another round.
async fn existing(
    to: &impl Run,
    jobs: &[NewJob],
    left: &[usize],
    results: &mut [Option<Enqueued>],
) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = left.iter().map(|index| jobs[*index].id.0).collect();
    let tenants: Vec<&str> = left.iter().map(|index| jobs[*index].tenant.as_str()).collect();
    let wanted = |index: &usize| jobs[*index].idempotency.as_ref();
    let keys: Vec<Option<&str>> = left.iter().map(|index| wanted(index).map(|i| i.key.as_str())).collect();
    let parameters: [Parameter<'_>; 3] =
        [(&ids, Type::UUID_ARRAY), (&tenants, Type::TEXT_ARRAY), (&keys, Type::TEXT_ARRAY)];
    let rows = to.run(include_str!("../sql/enqueue_existing.sql"), &parameters).await?;
    let mut found = BTreeMap::new();
    for row in &rows {
        let place: i64 = row.try_get("place").sorted()?;
        found.insert(place, row);
    }
    for (place, index) in (1..).zip(left) {
        let Some(row) = found.get(&place) else { continue };
        let (by_id, by_key): (Option<Uuid>, Option<Uuid>) =
            (row.try_get("by_id").sorted()?, row.try_get("by_key").sorted()?);
        let fingerprint: Option<&[u8]> = row.try_get("fingerprint").sorted()?;
        results[*index] = match (by_id, by_key) {
            (Some(id), _) => Some(Enqueued::Existing(JobId(id))),
            (None, Some(id)) if fingerprint == wanted(index).map(|wanted| wanted.fingerprint.as_slice()) => {
                Some(Enqueued::Existing(JobId(id)))
            }
            (None, Some(id)) => Some(Enqueued::Conflict(JobId(id))),
            (None, None) => None,
        };
    }
    Ok(())
}

/// The error for a statement that should always answer with a row.
pub(crate) fn nothing() -> StoreError {
    StoreError::Failed("a statement that always answers did not".into())
}
