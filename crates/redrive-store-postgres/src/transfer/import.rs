//! Adds the contents of another store.

use std::collections::BTreeSet;

use redrive_core::transfer::{HeldUniqueKey, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{Job, JobId, NewJob, StoreError, Timestamp};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::limits::locks;
use crate::open::Inner;
use crate::pool::Executor;
use crate::pool::Parameter;
use crate::sql;
use crate::transfer::import_columns as columns;

static IMPORT_RECORDS: Statement = sql::TRANSFER.statement("import_records");
static FIND_CONFLICTS: Statement = sql::TRANSFER.statement("find_conflicts");
static REMOVE_FOR_IMPORT: Statement = sql::TRANSFER.statement("remove_for_import");
static IMPORT_JOBS: Statement = sql::TRANSFER.statement("import_jobs");
static CONTINUE_CLAIM_NUMBERS: Statement = sql::TRANSFER.statement("continue_claim_numbers");
static IMPORT_ATTEMPTS: Statement = sql::TRANSFER.statement("import_attempts");
static IMPORT_STEPS: Statement = sql::TRANSFER.statement("import_steps");
static IMPORT_SIGNALS: Statement = sql::TRANSFER.statement("import_signals");
static IMPORT_UNIQUE_KEYS: Statement = sql::TRANSFER.statement("import_unique_keys");

/// The maximum number of attempts, steps or signals in one statement.
const ROWS_MAX: usize = 500;

pub(crate) async fn import(inner: &Inner, snapshots: &[JobSnapshot]) -> Result<Vec<ImportResult>> {
    let lanes: Vec<NewJob> = snapshots.iter().map(|snapshot| lane_of(&snapshot.job)).collect();
    let lanes = inner.use_lanes(&lanes).await?;
    let importing = inner.pool.transaction(async |client| {
        locks::lock_imports(client).await?;
        let mut imported = Vec::with_capacity(snapshots.len());
        while imported.len() < snapshots.len() {
            let round = distinct_prefix(&snapshots[imported.len()..]);
            imported.extend(import_round(client, &lanes, inner.manual_now(), round).await?);
        }
        Ok(imported)
    });
    importing.await
}

/// A new job in the lane of this one.
fn lane_of(job: &Job) -> NewJob {
    NewJob {
        queue: job.queue.clone(),
        priority: job.priority,
        partition: job.partition.clone(),
        ..NewJob::new(job.id, job.kind.clone(), job.policy.clone(), Vec::new())
    }
}

/// The longest prefix of snapshots without a common id or key. Most batches need one round.
fn distinct_prefix(snapshots: &[JobSnapshot]) -> &[JobSnapshot] {
    let (mut ids, mut keys, mut uniques) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let repeats = snapshots.iter().position(|JobSnapshot { job, unique, .. }| {
        !ids.insert(job.id)
            || job.key.as_ref().is_some_and(|key| !keys.insert((&job.tenant, key)))
            || unique.as_ref().is_some_and(|held| !uniques.insert((&job.tenant, &job.kind, &held.key)))
    });
    let count = repeats.unwrap_or(snapshots.len());
    &snapshots[..count]
}

async fn import_round(
    client: &Client,
    lanes: &Lanes,
    now: Option<i64>,
    snapshots: &[JobSnapshot],
) -> Result<Vec<ImportResult>> {
    let keys: Vec<JobKeys<'_>> = snapshots.iter().map(JobKeys::new).collect();
    let stored = find_stored(client, now, &keys).await?;
    let results: Vec<ImportResult> =
        keys.iter().zip(&stored).map(|(key, stored)| stored.import_result(key.id)).collect();
    let is_added = |answer: &ImportResult| matches!(answer, ImportResult::Created | ImportResult::Replaced);
    let to_add: Vec<(&JobSnapshot, &StoredJob)> = snapshots
        .iter()
        .zip(&stored)
        .zip(&results)
        .filter(|(_, answer)| is_added(answer))
        .map(|(snapshot, _)| snapshot)
        .collect();
    if !to_add.is_empty() {
        add(client, lanes, &to_add).await?;
    }
    Ok(results)
}

/// The id and the keys of a job.
struct JobKeys<'a> {
    id: Uuid,
    tenant: &'a str,
    key: Option<&'a str>,
    kind: &'a str,
    unique: Option<&'a str>,
}

impl<'a> JobKeys<'a> {
    fn new(snapshot: &'a JobSnapshot) -> Self {
        let JobSnapshot { job, unique, .. } = snapshot;
        Self {
            id: job.id.0,
            tenant: job.tenant.as_str(),
            key: job.key.as_ref().map(|key| key.as_str()),
            kind: job.kind.as_str(),
            unique: unique.as_ref().map(|held| held.key.as_str()),
        }
    }
}

/// The stored job with the id of an imported one, and the holders of its keys.
struct StoredJob {
    exists: bool,
    may_replace: bool,
    key_holder: Option<Uuid>,
    unique_holder: Option<Uuid>,
    unique_in_force: bool,
}

impl StoredJob {
    fn import_result(&self, id: Uuid) -> ImportResult {
        let holder = self.unique_holder.filter(|_| self.unique_in_force);
        match [self.key_holder, holder].into_iter().flatten().find(|other| *other != id) {
            _ if self.exists && !self.may_replace => ImportResult::Kept,
            Some(other) => ImportResult::Conflict(JobId(other)),
            None if self.exists => ImportResult::Replaced,
            None => ImportResult::Created,
        }
    }
}

async fn find_stored(client: &Client, now: Option<i64>, keys: &[JobKeys<'_>]) -> Result<Vec<StoredJob>> {
    let each = || keys.iter();
    let ids: Vec<Uuid> = each().map(|key| key.id).collect();
    let tenants: Vec<&str> = each().map(|key| key.tenant).collect();
    let names: Vec<Option<&str>> = each().map(|key| key.key).collect();
    let kinds: Vec<&str> = each().map(|key| key.kind).collect();
    let uniques: Vec<Option<&str>> = each().map(|key| key.unique).collect();
    let parameters: [Parameter<'_>; 6] = [
        (&now, Type::INT8),
        (&ids, Type::UUID_ARRAY),
        (&tenants, Type::TEXT_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&kinds, Type::TEXT_ARRAY),
        (&uniques, Type::TEXT_ARRAY),
    ];
    let rows = client.run(&FIND_CONFLICTS, &parameters).await?;
    let stored = |row: &Row| {
        Ok(StoredJob {
            exists: row.try_get("is_stored")?,
            may_replace: row.try_get("being_filled")?,
            key_holder: row.try_get("key_holder")?,
            unique_holder: row.try_get("unique_holder")?,
            unique_in_force: row.try_get("in_force")?,
        })
    };
    rows.iter().map(stored).collect()
}

/// Adds jobs with their attempts, steps, signals and unique keys, and replaces those that exist.
async fn add(client: &Client, lanes: &Lanes, to_add: &[(&JobSnapshot, &StoredJob)]) -> Result<()> {
    let snapshots: Vec<&JobSnapshot> = to_add.iter().map(|(snapshot, _)| *snapshot).collect();
    let ids: Vec<Uuid> = snapshots.iter().map(|snapshot| snapshot.job.id.0).collect();
    client.run(&REMOVE_FOR_IMPORT, &[(&ids, Type::UUID_ARRAY)]).await?;
    let rows = columns::jobs(&snapshots, lanes)?;
    let added = client.run(&IMPORT_JOBS, &columns::parameters(&rows)).await?;
    let row = added.first().ok_or_else(Error::no_row)?;
    let (added, last_claim): (i64, i64) = (row.try_get("added")?, row.try_get("last_claim")?);
    client.run(&CONTINUE_CLAIM_NUMBERS, &[(&last_claim, Type::INT8)]).await?;
    let held = |(snapshot, stored): &(&JobSnapshot, &StoredJob)| {
        let HeldUniqueKey { key, until } = snapshot.unique.clone()?;
        let (tenant, kind) = (snapshot.job.tenant.clone(), snapshot.job.kind.clone());
        Some(KeyAssignment { tenant, kind, key, job: snapshot.job.id, until, holder: stored.unique_holder })
    };
    let assignments: Vec<KeyAssignment> = to_add.iter().filter_map(held).collect();
    let assigned = assign_keys(client, &assignments).await?.len();
    if added != snapshots.len() as i64 || assigned != assignments.len() {
        return Err(StoreError::Busy("another job took a key of an imported job; try again".into()).into());
    }
    add_histories(client, &snapshots).await
}

async fn add_histories(client: &Client, snapshots: &[&JobSnapshot]) -> Result<()> {
    let log: Vec<_> = snapshots
        .iter()
        .flat_map(|snapshot| snapshot.log.iter().map(|each| (snapshot.job.id, each)))
        .collect();
    for chunk in log.chunks(ROWS_MAX) {
        let rows = columns::attempts(chunk);
        client.run(&IMPORT_ATTEMPTS, &columns::parameters(&rows)).await?;
    }
    let steps: Vec<_> = snapshots
        .iter()
        .flat_map(|snapshot| snapshot.steps.iter().map(|each| (snapshot.job.id, each)))
        .collect();
    for chunk in steps.chunks(ROWS_MAX) {
        let rows = columns::steps(chunk);
        client.run(&IMPORT_STEPS, &columns::parameters(&rows)).await?;
    }
    let signals: Vec<_> = snapshots
        .iter()
        .flat_map(|snapshot| snapshot.signals.iter().map(|each| (snapshot.job.id, each)))
        .collect();
    for chunk in signals.chunks(ROWS_MAX) {
        let rows = columns::signals(chunk);
        client.run(&IMPORT_SIGNALS, &columns::parameters(&rows)).await?;
    }
    Ok(())
}

/// A unique key for a job, and its previous holder as it was read.
pub(crate) struct KeyAssignment {
    pub(crate) tenant: redrive_core::Tenant,
    pub(crate) kind: redrive_core::Kind,
    pub(crate) key: redrive_core::UniqueKey,
    pub(crate) job: JobId,
    pub(crate) until: Option<Timestamp>,
    pub(crate) holder: Option<Uuid>,
}

/// Gives unique keys to jobs. Returns the jobs that got theirs.
async fn assign_keys(client: &Client, assignments: &[KeyAssignment]) -> Result<BTreeSet<Uuid>> {
    if assignments.is_empty() {
        return Ok(BTreeSet::new());
    }
    let rows = columns::assignments(assignments);
    let assigned = client.run(&IMPORT_UNIQUE_KEYS, &columns::parameters(&rows)).await?;
    assigned.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(crate) async fn import_reserved_keys(inner: &Inner, reserved: &[ReservedKey]) -> Result<Vec<bool>> {
    let importing = inner.pool.transaction(async |client| {
        locks::lock_imports(client).await?;
        let mut results = Vec::with_capacity(reserved.len());
        for reserved_key in reserved {
            results.push(import_reserved_key(client, inner.manual_now(), reserved_key).await?);
        }
        Ok(results)
    });
    importing.await
}

async fn import_reserved_key(client: &Client, now: Option<i64>, reserved_key: &ReservedKey) -> Result<bool> {
    let ReservedKey { tenant, kind, key, job, until } = reserved_key.clone();
    let keys = JobKeys {
        id: job.0,
        tenant: tenant.as_str(),
        key: None,
        kind: kind.as_str(),
        unique: Some(key.as_str()),
    };
    let stored = find_stored(client, now, &[keys]).await?.pop().ok_or_else(Error::no_row)?;
    if stored.unique_in_force && stored.unique_holder != Some(job.0) {
        return Ok(false);
    }
    let assignment =
        KeyAssignment { tenant, kind, key, job, until: Some(until), holder: stored.unique_holder };
    Ok(!assign_keys(client, &[assignment]).await?.is_empty())
}

pub(crate) async fn import_records(inner: &Inner, records: &[RecordSnapshot]) -> Result<Vec<bool>> {
    let mut written = Vec::with_capacity(records.len());
    let importing = inner.pool.transaction(async |client| {
        while written.len() < records.len() {
            let (mut stored, rest) = (BTreeSet::new(), &records[written.len()..]);
            let repeats = rest.iter().position(|record| !stored.insert((&record.kind, &record.id)));
            let round = &rest[..repeats.unwrap_or(rest.len())];
            let rows = columns::records(round);
            let sql = &IMPORT_RECORDS;
            let done = client.run(sql, &columns::parameters(&rows)).await?;
            let place = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
            let done: BTreeSet<(String, String)> = done.iter().map(place).collect::<Result<_>>()?;
            written
                .extend(round.iter().map(|record| done.contains(&(record.kind.clone(), record.id.clone()))));
        }
        Ok(())
    });
    importing.await?;
    Ok(written)
}
