//! Adds jobs, each at most once.

use std::collections::BTreeSet;

use redrive_core::limits::HORIZON;
use redrive_core::store::Enqueued;
use redrive_core::time::ceil_ms;
use redrive_core::{IdempotencyKey, JobId, Kind, NewJob, Start, StoreError, Tenant, UniqueKey};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::columns::{Columns, UniqueColumns, latest};
use crate::error::{Sorted, nothing};
use crate::gather::{Gather, Shared};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;

/// Where jobs are added: this store, or a transaction.
pub(crate) trait Sink {
    /// Runs `enqueue.sql`.
    fn insert(
        &mut self,
        limit: &Limit,
        columns: &Columns<'_>,
    ) -> impl Future<Output = Result<Inserted, StoreError>> + Send;

    /// Runs `enqueue_existing.sql`.
    fn find(&mut self, wanted: &Wanted<'_>) -> impl Future<Output = Result<Vec<Found>, StoreError>> + Send;

    /// Runs `enqueue_unique.sql`.
    fn insert_unique(
        &mut self,
        limit: &Limit,
        columns: &UniqueColumns<'_>,
    ) -> impl Future<Output = Result<Vec<Decided>, StoreError>> + Send;
}

/// The statement that adds jobs.
pub(crate) const INSERT: &str = include_str!("../sql/enqueue.sql");
/// The statement that finds what was there instead.
pub(crate) const FIND: &str = include_str!("../sql/enqueue_existing.sql");
/// The statement that adds jobs with unique keys.
pub(crate) const INSERT_UNIQUE: &str = include_str!("../sql/enqueue_unique.sql");

/// What every statement needs to refuse a call with a job that is due too far ahead.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The time, none for the server's.
    pub(crate) now: Option<i64>,
    /// How far ahead is too far.
    pub(crate) horizon: i64,
    /// The latest instant of all jobs of the call.
    pub(crate) latest: Option<i64>,
}

impl Limit {
    /// That of a call with these jobs.
    pub(crate) fn new<'a>(now: Option<i64>, jobs: impl IntoIterator<Item = &'a NewJob>) -> Self {
        Self { now, horizon: ceil_ms(HORIZON), latest: latest(jobs) }
    }

    /// The first parameters of the statements.
    pub(crate) fn parameters(&self) -> [Parameter<'_>; 3] {
        [(&self.now, Type::INT8), (&self.horizon, Type::INT8), (&self.latest, Type::INT8)]
    }
}

/// What came of adding jobs.
pub(crate) struct Inserted {
    /// One is due too far ahead, so none was added.
    pub(crate) late: bool,
    /// How many were added.
    pub(crate) added: i64,
    /// Which, if not all.
    pub(crate) ids: Option<Vec<Uuid>>,
}

/// What came of adding a job with a unique key: one of these, or nothing when it has to be looked at again.
pub(crate) struct Decided {
    /// One is due too far ahead, so none was added.
    pub(crate) late: bool,
    /// Which job, from 1.
    pub(crate) place: i64,
    pub(crate) created: Option<Uuid>,
    pub(crate) existing: Option<Uuid>,
    pub(crate) replaced: Option<Uuid>,
}

impl Decided {
    fn enqueued(&self) -> Option<Enqueued> {
        let created = self.created.map(|id| Enqueued::Created(JobId(id)));
        let existing = || self.existing.map(|id| Enqueued::Existing(JobId(id)));
        let replaced = || self.replaced.map(|id| Enqueued::Replaced(JobId(id)));
        created.or_else(existing).or_else(replaced)
    }
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

impl Shared for NewJob {
    type Answer = Enqueued;

    fn gather(inner: &Inner) -> &Gather<Self> {
        &inner.enqueues
    }

    async fn run(inner: &Inner, jobs: &[Self]) -> Result<Vec<Enqueued>, StoreError> {
        enqueue(inner, jobs).await
    }
}

pub(crate) async fn enqueue(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
    let lanes = inner.lanes.with(&inner.pool, jobs).await?;
    inner.expect(jobs);
    add_all(&mut &*inner.pool, &lanes, inner.manual_now(), jobs).await
}

/// What an enqueue of each job would find in its way.
pub(crate) async fn find(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Option<Enqueued>>, StoreError> {
    let mut results = vec![None; jobs.len()];
    let all: Vec<usize> = (0..jobs.len()).collect();
    existing(&mut &*inner.pool, jobs, &all, &mut results).await?;
    Ok(results)
}

/// Whether something may have become claimable by it.
pub(crate) fn wakes(enqueued: &Enqueued) -> bool {
    match enqueued {
        Enqueued::Created(_) | Enqueued::Replaced(_) => true,
        Enqueued::Existing(_) | Enqueued::Conflict(_) => false,
    }
}

/// Adds jobs, in rounds: a job that has its id or a key in common with an earlier one waits for what comes of that one, so
/// that the result is as if they were added one after the other. Hardly any batch needs a second round.
pub(crate) async fn add_all(
    to: &mut impl Sink,
    lanes: &Lanes,
    now: Option<i64>,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, StoreError> {
    let limit = Limit::new(now, jobs);
    let mut results: Vec<Option<Enqueued>> = vec![None; jobs.len()];
    loop {
        let (plain, unique) = round(jobs, &results);
        if plain.is_empty() && unique.is_empty() {
            return Ok(results.into_iter().flatten().collect());
        }
        if !plain.is_empty() {
            add_plain(to, lanes, &limit, jobs, plain, &mut results).await?;
        }
        if !unique.is_empty() {
            add_unique(to, lanes, &limit, jobs, &unique, &mut results).await?;
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

/// The jobs without a result yet that share neither id nor key with another before them, those with a unique key apart. Each
/// sort is ordered by key, so that batches of several nodes that meet wait for each other in the same order.
fn round(jobs: &[NewJob], results: &[Option<Enqueued>]) -> (Vec<usize>, Vec<usize>) {
    let (mut ids, mut keys, mut uniques) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut plain, mut unique) = (Vec::new(), Vec::new());
    for (index, job) in jobs.iter().enumerate().filter(|(index, _)| results[*index].is_none()) {
        let new_id = ids.insert(job.id);
        let new_key = key(job).is_none_or(|key| keys.insert(key));
        let new_unique = unique_key(job).is_none_or(|key| uniques.insert(key));
        if new_id && new_key && new_unique {
            if job.unique.is_some() { &mut unique } else { &mut plain }.push(index);
        }
    }
    if !keys.is_empty() {
        plain.sort_by_key(|index| key(&jobs[*index]));
    }
    unique.sort_by_key(|index| unique_key(&jobs[*index]));
    (plain, unique)
}

fn key(job: &NewJob) -> Option<(&Tenant, &IdempotencyKey)> {
    job.idempotency.as_ref().map(|idempotency| (&job.tenant, &idempotency.key))
}

fn unique_key(job: &NewJob) -> Option<(&Tenant, &Kind, &UniqueKey)> {
    job.unique.as_ref().map(|unique| (&job.tenant, &job.kind, &unique.key))
}

async fn add_plain(
    to: &mut impl Sink,
    lanes: &Lanes,
    limit: &Limit,
    jobs: &[NewJob],
    round: Vec<usize>,
    results: &mut [Option<Enqueued>],
) -> Result<(), StoreError> {
    let added = add(to, lanes, limit, round.iter().map(|index| &jobs[*index])).await?;
    let mut left = Vec::new();
    for index in round {
        let id = jobs[index].id;
        match &added {
            Added::All => results[index] = Some(Enqueued::Created(id)),
            Added::These(ids) if ids.contains(&id.0) => results[index] = Some(Enqueued::Created(id)),
            Added::These(_) => left.push(index),
        }
    }
    if left.is_empty() { Ok(()) } else { existing(to, jobs, &left, results).await }
}

/// What was decided by a key's holder that is another by now stays without a result, for another round.
async fn add_unique(
    to: &mut impl Sink,
    lanes: &Lanes,
    limit: &Limit,
    jobs: &[NewJob],
    round: &[usize],
    results: &mut [Option<Enqueued>],
) -> Result<(), StoreError> {
    let columns = UniqueColumns::new(round.iter().map(|index| &jobs[*index]), lanes)?;
    for decided in to.insert_unique(limit, &columns).await? {
        if decided.late {
            return Err(Start::too_far().into());
        }
        let place = usize::try_from(decided.place - 1).unwrap_or(usize::MAX);
        if let Some(index) = round.get(place) {
            results[*index] = decided.enqueued();
        }
    }
    Ok(())
}

/// Which jobs a statement has added.
enum Added {
    All,
    These(BTreeSet<Uuid>),
}

async fn add<'a>(
    to: &mut impl Sink,
    lanes: &Lanes,
    limit: &Limit,
    jobs: impl IntoIterator<Item = &'a NewJob>,
) -> Result<Added, StoreError> {
    let columns = Columns::new(jobs, lanes)?;
    let inserted = to.insert(limit, &columns).await?;
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
    async fn insert(&mut self, limit: &Limit, columns: &Columns<'_>) -> Result<Inserted, StoreError> {
        let count = columns.ids.len() as i64;
        let mut parameters: Vec<Parameter<'_>> = limit.parameters().to_vec();
        parameters.push((&count, Type::INT8));
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

    async fn insert_unique(
        &mut self,
        limit: &Limit,
        columns: &UniqueColumns<'_>,
    ) -> Result<Vec<Decided>, StoreError> {
        let mut parameters: Vec<Parameter<'_>> = limit.parameters().to_vec();
        parameters.extend(columns.parameters());
        let rows = self.typed(INSERT_UNIQUE, &parameters).await?;
        let decided = |row: &Row| {
            Ok(Decided {
                late: row.try_get("late").sorted()?,
                place: row.try_get("place").sorted()?,
                created: row.try_get("created").sorted()?,
                existing: row.try_get("existing").sorted()?,
                replaced: row.try_get("replaced").sorted()?,
            })
        };
        rows.iter().map(decided).collect()
    }
}
