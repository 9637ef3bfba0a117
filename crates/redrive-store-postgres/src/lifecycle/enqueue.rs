//! Adds jobs, each at most once.

use std::collections::BTreeSet;

use redrive_core::limits::HORIZON;
use redrive_core::store::EnqueueResult;
use redrive_core::time::ceil_ms;
use redrive_core::{IdempotencyKey, JobId, Kind, NewJob, Start, Tenant, UniqueKey};
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::call_batcher::{Batchable, CallBatcher};
use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::{Executor, Parameter};
use crate::row::insert::{NewJobColumns, UniqueJobColumns, latest_due_time};
use crate::sql;

pub(crate) static INSERT: Statement = sql::LIFECYCLE.statement("enqueue");
pub(crate) static FIND_EXISTING: Statement = sql::LIFECYCLE.statement("find_existing");
pub(crate) static INSERT_UNIQUE: Statement = sql::LIFECYCLE.statement("enqueue_unique");

/// Adds jobs through this store, or in a transaction of the caller.
pub(crate) trait JobInserter {
    /// Runs the statement `enqueue`.
    fn insert(
        &mut self,
        horizon: &HorizonCheck,
        columns: &NewJobColumns<'_>,
    ) -> impl Future<Output = Result<InsertResult>> + Send;

    /// Runs the statement `find_existing`.
    fn find(&mut self, query: &ExistingQuery<'_>) -> impl Future<Output = Result<Vec<ExistingJob>>> + Send;

    /// Runs the statement `enqueue_unique`.
    fn insert_unique(
        &mut self,
        horizon: &HorizonCheck,
        columns: &UniqueJobColumns<'_>,
    ) -> impl Future<Output = Result<Vec<UniqueInsertResult>>> + Send;
}

/// The parameters by which a statement rejects a call with a job that is due too far ahead.
#[derive(Debug)]
pub(crate) struct HorizonCheck {
    /// The current time. None for the server's clock.
    pub(crate) now: Option<i64>,
    /// How far ahead a job may be due.
    pub(crate) horizon: i64,
    /// The latest due time in the call.
    pub(crate) latest: Option<i64>,
}

impl HorizonCheck {
    pub(crate) fn new<'a>(now: Option<i64>, jobs: impl IntoIterator<Item = &'a NewJob>) -> Self {
        Self { now, horizon: ceil_ms(HORIZON), latest: latest_due_time(jobs) }
    }

    /// The first three parameters of the statements.
    pub(crate) fn parameters(&self) -> [Parameter<'_>; 3] {
        [(&self.now, Type::INT8), (&self.horizon, Type::INT8), (&self.latest, Type::INT8)]
    }
}

/// The result of the statement `enqueue`.
pub(crate) struct InsertResult {
    /// Whether a job is due too far ahead. Then none was added.
    pub(crate) late: bool,
    /// The number of jobs that were added.
    pub(crate) added: i64,
    /// Their ids, unless all jobs were added.
    pub(crate) ids: Option<Vec<Uuid>>,
}

/// The result of the statement `enqueue_unique` for one job. All ids are None if the caller must try again.
pub(crate) struct UniqueInsertResult {
    /// Whether a job is due too far ahead. Then none was added.
    pub(crate) late: bool,
    /// The position of the job in the call, from 1.
    pub(crate) place: i64,
    pub(crate) created: Option<Uuid>,
    pub(crate) existing: Option<Uuid>,
    pub(crate) replaced: Option<Uuid>,
}

impl UniqueInsertResult {
    fn result(&self) -> Option<EnqueueResult> {
        let created = self.created.map(|id| EnqueueResult::Created(JobId(id)));
        let existing = || self.existing.map(|id| EnqueueResult::Existing(JobId(id)));
        let replaced = || self.replaced.map(|id| EnqueueResult::Replaced(JobId(id)));
        created.or_else(existing).or_else(replaced)
    }
}

/// The columns of jobs that could not be added.
pub(crate) struct ExistingQuery<'a> {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) tenants: Vec<&'a str>,
    pub(crate) keys: Vec<Option<&'a str>>,
}

/// The job that kept another one from being added.
pub(crate) struct ExistingJob {
    /// The position of the other job in the query, from 1.
    pub(crate) place: i64,
    pub(crate) by_id: Option<Uuid>,
    pub(crate) by_key: Option<Uuid>,
    pub(crate) fingerprint: Option<Vec<u8>>,
}

impl Batchable for NewJob {
    type Output = EnqueueResult;

    fn batcher(inner: &Inner) -> &CallBatcher<Self> {
        &inner.enqueue_batcher
    }

    async fn run(inner: &Inner, jobs: &[Self]) -> Result<Vec<EnqueueResult>> {
        enqueue(inner, jobs).await
    }
}

pub(crate) async fn enqueue(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<EnqueueResult>> {
    let lanes = inner.use_lanes(jobs).await?;
    inner.lower_positions(jobs);
    add_all(&mut &*inner.pool, &lanes, inner.manual_now(), jobs).await
}

/// Finds the existing job that an enqueue of each job would return.
pub(crate) async fn find(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Option<EnqueueResult>>> {
    let mut results = vec![None; jobs.len()];
    let all: Vec<usize> = (0..jobs.len()).collect();
    existing(&mut &*inner.pool, jobs, &all, &mut results).await?;
    Ok(results)
}

/// Whether an enqueue may have made a job claimable.
pub(crate) fn wakes(enqueued: &EnqueueResult) -> bool {
    match enqueued {
        EnqueueResult::Created(_) | EnqueueResult::Replaced(_) => true,
        EnqueueResult::Existing(_) | EnqueueResult::Conflict(_) => false,
    }
}

/// Adds jobs in rounds. A job with the same id or key as an earlier one waits for the round after it, so that the result is as
/// if the jobs were added one after the other. Most batches need one round.
pub(crate) async fn add_all(
    inserter: &mut impl JobInserter,
    lanes: &Lanes,
    now: Option<i64>,
    jobs: &[NewJob],
) -> Result<Vec<EnqueueResult>> {
    let horizon = HorizonCheck::new(now, jobs);
    let mut results: Vec<Option<EnqueueResult>> = vec![None; jobs.len()];
    loop {
        let (plain, unique) = next_round(jobs, &results);
        if plain.is_empty() && unique.is_empty() {
            return Ok(results.into_iter().flatten().collect());
        }
        if !plain.is_empty() {
            add_plain(inserter, lanes, &horizon, jobs, plain, &mut results).await?;
        }
        if !unique.is_empty() {
            add_unique(inserter, lanes, &horizon, jobs, &unique, &mut results).await?;
        }
    }
}

/// Checks everything that does not depend on the server's clock.
pub(crate) fn check(jobs: &[NewJob]) -> Result<()> {
    for job in jobs {
        job.check()?;
        job.start.check()?;
    }
    Ok(())
}

/// Selects the jobs without a result that share neither id nor key with an earlier one, those with a unique key apart. Both lists
/// are in the order of their keys, so that concurrent batches take locks in the same order.
fn next_round(jobs: &[NewJob], results: &[Option<EnqueueResult>]) -> (Vec<usize>, Vec<usize>) {
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
    inserter: &mut impl JobInserter,
    lanes: &Lanes,
    horizon: &HorizonCheck,
    jobs: &[NewJob],
    round: Vec<usize>,
    results: &mut [Option<EnqueueResult>],
) -> Result<()> {
    let added = add(inserter, lanes, horizon, round.iter().map(|index| &jobs[*index])).await?;
    let mut left = Vec::new();
    for index in round {
        let id = jobs[index].id;
        match &added {
            AddedJobs::All => results[index] = Some(EnqueueResult::Created(id)),
            AddedJobs::These(ids) if ids.contains(&id.0) => results[index] = Some(EnqueueResult::Created(id)),
            AddedJobs::These(_) => left.push(index),
        }
    }
    if left.is_empty() { Ok(()) } else { existing(inserter, jobs, &left, results).await }
}

/// Adds jobs with unique keys. If the holder of a key changed meanwhile, the job stays without a result, for another round.
async fn add_unique(
    inserter: &mut impl JobInserter,
    lanes: &Lanes,
    horizon: &HorizonCheck,
    jobs: &[NewJob],
    round: &[usize],
    results: &mut [Option<EnqueueResult>],
) -> Result<()> {
    let columns = UniqueJobColumns::new(round.iter().map(|index| &jobs[*index]), lanes)?;
    for decided in inserter.insert_unique(horizon, &columns).await? {
        if decided.late {
            return Err(Start::too_far().into());
        }
        let place = usize::try_from(decided.place - 1).unwrap_or(usize::MAX);
        if let Some(index) = round.get(place) {
            results[*index] = decided.result();
        }
    }
    Ok(())
}

/// The jobs that a statement added.
enum AddedJobs {
    All,
    These(BTreeSet<Uuid>),
}

async fn add<'a>(
    inserter: &mut impl JobInserter,
    lanes: &Lanes,
    horizon: &HorizonCheck,
    jobs: impl IntoIterator<Item = &'a NewJob>,
) -> Result<AddedJobs> {
    let columns = NewJobColumns::new(jobs, lanes)?;
    let inserted = inserter.insert(horizon, &columns).await?;
    if inserted.late {
        return Err(Start::too_far().into());
    }
    if inserted.added == columns.ids.len() as i64 {
        return Ok(AddedJobs::All);
    }
    Ok(AddedJobs::These(inserted.ids.unwrap_or_default().into_iter().collect()))
}

/// Finds the jobs that kept others from being added. If such a job was removed meanwhile, the other one stays without a result, for
/// another round.
async fn existing(
    inserter: &mut impl JobInserter,
    jobs: &[NewJob],
    left: &[usize],
    results: &mut [Option<EnqueueResult>],
) -> Result<()> {
    let idempotency_of = |index: &usize| jobs[*index].idempotency.as_ref();
    let query = ExistingQuery {
        ids: left.iter().map(|index| jobs[*index].id.0).collect(),
        tenants: left.iter().map(|index| jobs[*index].tenant.as_str()).collect(),
        keys: left
            .iter()
            .map(|index| idempotency_of(index).map(|idempotency| idempotency.key.as_str()))
            .collect(),
    };
    for found in inserter.find(&query).await? {
        let place = usize::try_from(found.place - 1).unwrap_or(usize::MAX);
        let Some(index) = left.get(place) else { continue };
        let same = found.fingerprint.as_deref()
            == idempotency_of(index).map(|idempotency| idempotency.fingerprint.as_slice());
        results[*index] = match (found.by_id, found.by_key) {
            (Some(id), _) => Some(EnqueueResult::Existing(JobId(id))),
            (None, Some(id)) if same => Some(EnqueueResult::Existing(JobId(id))),
            (None, Some(id)) => Some(EnqueueResult::Conflict(JobId(id))),
            (None, None) => None,
        };
    }
    Ok(())
}

impl<E: Executor + Sync> JobInserter for &E {
    async fn insert(&mut self, horizon: &HorizonCheck, columns: &NewJobColumns<'_>) -> Result<InsertResult> {
        let count = columns.ids.len() as i64;
        let mut parameters: Vec<Parameter<'_>> = horizon.parameters().to_vec();
        parameters.push((&count, Type::INT8));
        parameters.extend(columns.parameters());
        let rows = self.run(&INSERT, &parameters).await?;
        let row = rows.first().ok_or_else(Error::no_row)?;
        Ok(InsertResult {
            late: row.try_get("late")?,
            added: row.try_get("added")?,
            ids: row.try_get("ids")?,
        })
    }

    async fn find(&mut self, query: &ExistingQuery<'_>) -> Result<Vec<ExistingJob>> {
        let ExistingQuery { ids, tenants, keys } = query;
        let parameters: [Parameter<'_>; 3] =
            [(ids, Type::UUID_ARRAY), (tenants, Type::TEXT_ARRAY), (keys, Type::TEXT_ARRAY)];
        let rows = self.run(&FIND_EXISTING, &parameters).await?;
        let found = |row: &Row| {
            Ok(ExistingJob {
                place: row.try_get("place")?,
                by_id: row.try_get("by_id")?,
                by_key: row.try_get("by_key")?,
                fingerprint: row.try_get("fingerprint")?,
            })
        };
        rows.iter().map(found).collect()
    }

    async fn insert_unique(
        &mut self,
        horizon: &HorizonCheck,
        columns: &UniqueJobColumns<'_>,
    ) -> Result<Vec<UniqueInsertResult>> {
        let mut parameters: Vec<Parameter<'_>> = horizon.parameters().to_vec();
        parameters.extend(columns.parameters());
        let rows = self.run(&INSERT_UNIQUE, &parameters).await?;
        let decided = |row: &Row| {
            Ok(UniqueInsertResult {
                late: row.try_get("late")?,
                place: row.try_get("place")?,
                created: row.try_get("created")?,
                existing: row.try_get("existing")?,
                replaced: row.try_get("replaced")?,
            })
        };
        rows.iter().map(decided).collect()
    }
}
