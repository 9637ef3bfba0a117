//! Adds jobs, each at most once.

use std::collections::BTreeSet;

use redrive_core::limits::HORIZON;
use redrive_core::store::Enqueued;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, NewJob, Start, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::columns::Columns;
use crate::error::{Sorted, nothing};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;

/// Where jobs are added: this store, or a transaction of the caller's.
pub(crate) trait Sink {
    /// Runs `enqueue.sql`.
    fn insert(
        &mut self,
        now: Option<i64>,
        columns: &Columns<'_>,
    ) -> impl Future<Output = Result<Inserted, StoreError>> + Send;

    /// Runs `enqueue_existing.sql`.
    fn find(&mut self, wanted: &Wanted<'_>) -> impl Future<Output = Result<Vec<Found>, StoreError>> + Send;
}

/// The statement that adds jobs.
pub(crate) const INSERT: &str = include_str!("../sql/enqueue.sql");
/// The statement that finds what was there instead.
pub(crate) const FIND: &str = include_str!("../sql/enqueue_existing.sql");

/// What came of adding jobs.
pub(crate) struct Inserted {
    /// One is due too far ahead, so none was added.
    pub(crate) late: bool,
    /// How many were added.
    pub(crate) added: i64,
    /// Which, if not all.
    pub(crate) ids: Option<Vec<Uuid>>,
}

/// Jobs that could not be added, as columns.
pub(crate) struct Wanted<'a> {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) tenants: Vec<&'a str>,
    pub(crate) keys: Vec<Option<&'a str>>,
}

/// What was there instead of one of them.
pub(crate) struct Found {
    /// Which one, from 1.
    pub(crate) place: i64,
    pub(crate) by_id: Option<Uuid>,
    pub(crate) by_key: Option<Uuid>,
    pub(crate) fingerprint: Option<Vec<u8>>,
}

pub(crate) async fn enqueue(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
    let lanes = inner.lanes.with(&inner.pool, jobs).await?;
    inner.expect(jobs);
    add_all(&mut &*inner.pool, &lanes, inner.manual_now(), jobs).await
}

/// Adds jobs, in rounds: a job that has its id or its key in common with an earlier one waits for what comes of that one,
/// so that the result is as if they were added one after the other. Hardly any batch needs a second round.
pub(crate) async fn add_all(
    to: &mut impl Sink,
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
        job.start.check()?;
    }
    Ok(())
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
    to: &mut impl Sink,
    lanes: &Lanes,
    now: Option<i64>,
    jobs: impl IntoIterator<Item = &'a NewJob>,
) -> Result<Added, StoreError> {
    let columns = Columns::new(jobs, lanes)?;
    let inserted = to.insert(now, &columns).await?;
    if inserted.late {
        return Err(Start::too_far().into());
    }
    if inserted.added == columns.ids.len() as i64 {
        return Ok(Added::All);
    }
    Ok(Added::These(inserted.ids.unwrap_or_default().into_iter().collect()))
}

/// Finds what was there instead. What was there a moment ago and is gone again stays without a result, for another round.
async fn existing(
    to: &mut impl Sink,
    jobs: &[NewJob],
    left: &[usize],
    results: &mut [Option<Enqueued>],
) -> Result<(), StoreError> {
    let asked = |index: &usize| jobs[*index].idempotency.as_ref();
    let wanted = Wanted {
        ids: left.iter().map(|index| jobs[*index].id.0).collect(),
        tenants: left.iter().map(|index| jobs[*index].tenant.as_str()).collect(),
        keys: left.iter().map(|index| asked(index).map(|asked| asked.key.as_str())).collect(),
    };
    for found in to.find(&wanted).await? {
        let place = usize::try_from(found.place - 1).unwrap_or(usize::MAX);
        let Some(index) = left.get(place) else { continue };
        let same = found.fingerprint.as_deref() == asked(index).map(|asked| asked.fingerprint.as_slice());
        results[*index] = match (found.by_id, found.by_key) {
            (Some(id), _) => Some(Enqueued::Existing(JobId(id))),
            (None, Some(id)) if same => Some(Enqueued::Existing(JobId(id))),
            (None, Some(id)) => Some(Enqueued::Conflict(JobId(id))),
            (None, None) => None,
        };
    }
    Ok(())
}

/// Anything that runs statements with typed parameters.
pub(crate) trait Query {
    /// Runs one.
    fn typed(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;
}

impl<Q: Query + Sync> Sink for &Q {
    async fn insert(&mut self, now: Option<i64>, columns: &Columns<'_>) -> Result<Inserted, StoreError> {
        let (horizon, count) = (ceil_ms(HORIZON), columns.ids.len() as i64);
        let mut parameters: Vec<Parameter<'_>> =
            vec![(&now, Type::INT8), (&horizon, Type::INT8), (&count, Type::INT8)];
        parameters.extend(columns.parameters());
        let rows = self.typed(INSERT, &parameters).await?;
        let row = rows.first().ok_or_else(nothing)?;
        Ok(Inserted {
            late: row.try_get("late").sorted()?,
            added: row.try_get("added").sorted()?,
            ids: row.try_get("ids").sorted()?,
        })
    }

    async fn find(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Found>, StoreError> {
        let Wanted { ids, tenants, keys } = wanted;
        let parameters: [Parameter<'_>; 3] =
            [(ids, Type::UUID_ARRAY), (tenants, Type::TEXT_ARRAY), (keys, Type::TEXT_ARRAY)];
        let rows = self.typed(FIND, &parameters).await?;
        let found = |row: &Row| {
            Ok(Found {
                place: row.try_get("place").sorted()?,
                by_id: row.try_get("by_id").sorted()?,
                by_key: row.try_get("by_key").sorted()?,
                fingerprint: row.try_get("fingerprint").sorted()?,
            })
        };
        rows.iter().map(found).collect()
    }
}
