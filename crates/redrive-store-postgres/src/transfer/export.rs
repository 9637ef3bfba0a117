//! Reads all contents of the store, page by page.

use std::collections::HashMap;

use redrive_core::store::UnreadableJob;
use redrive_core::transfer::{
    EXPORT_BYTES_MAX, ExportPage, HeldUniqueKey, JobSnapshot, RecordSnapshot, ReservedKey, StoredSignal,
};
use redrive_core::{Job, JobId, Kind, Lease, SignalName, StoreError, Tenant, Timestamp, UniqueKey};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::open::Inner;
use crate::pool::Executor;
use crate::pool::Parameter;
use crate::read::read_attempt;
use crate::row::{self, JobRow};
use crate::sql;
use crate::steps::remember::read_step;

static EXPORT_RECORDS: Statement = sql::TRANSFER.statement("export_records");
static EXPORT: Statement = sql::TRANSFER.statement("export");
static EXPORT_ATTEMPTS: Statement = sql::TRANSFER.statement("export_attempts");
static EXPORT_STEPS: Statement = sql::TRANSFER.statement("export_steps");
static EXPORT_SIGNALS: Statement = sql::TRANSFER.statement("export_signals");
static EXPORT_RESERVED_KEYS: Statement = sql::TRANSFER.statement("export_reserved_keys");

pub(crate) async fn export(inner: &Inner, after: Option<JobId>, limit: usize) -> Result<ExportPage> {
    let after = after.map(|after| after.0);
    let read = async |client: &Client| {
        let parameters: [Parameter<'_>; 2] = [(&after, Type::UUID), (&(limit as i64), Type::INT8)];
        let rows = client.run(&EXPORT, &parameters).await?;
        let lanes = inner.lanes_of(&rows).await?;
        let reads = row::read_all(&rows, lanes)?;
        let count = count_fitting(&rows, &reads)?;
        let ids: Vec<Uuid> = reads[..count].iter().map(|read| read.id.0).collect();
        let mut histories = JobHistories::read(client, &ids).await?;
        let mut exported = ExportPage::default();
        for (row, read) in rows.iter().zip(reads).take(count) {
            exported.last = Some(read.id);
            match read.job.map_or_else(|row| Ok(Err(row)), |job| snapshot(row, job, &mut histories))? {
                Ok(snapshot) => exported.jobs.push(snapshot),
                Err(unreadable) => exported.unreadable.push(unreadable),
            }
        }
        Ok(exported)
    };
    inner.pool.snapshot(read).await
}

/// The number of jobs that fit into one page.
fn count_fitting(rows: &[Row], reads: &[JobRow]) -> Result<usize> {
    let mut bytes = 0;
    for (count, (row, read)) in rows.iter().zip(reads).enumerate() {
        let histories = row.try_get::<_, i64>("bytes")?;
        bytes += usize::try_from(histories).unwrap_or(usize::MAX);
        bytes += read.job.as_ref().map_or(0, |job| bare_snapshot(job.clone()).bytes());
        if bytes >= EXPORT_BYTES_MAX {
            return Ok(count + 1);
        }
    }
    Ok(reads.len())
}

/// A snapshot of a job without attempts, steps and signals.
fn bare_snapshot(job: Job) -> JobSnapshot {
    let (log, steps, signals) = (Vec::new(), Vec::new(), Vec::new());
    JobSnapshot { job, fingerprint: None, unique: None, log, steps, signals }
}

/// The snapshot of a job. If a part of it cannot be read, the job counts as unreadable.
fn snapshot(row: &Row, job: Job, histories: &mut JobHistories) -> Result<Result<JobSnapshot, UnreadableJob>> {
    let (lease, run, attempt) = (Lease { id: job.id, epoch: job.epoch }, job.run, job.attempt);
    match histories.add(row, job) {
        Ok(snapshot) => Ok(Ok(snapshot)),
        Err(Error(StoreError::Corrupt(problem))) => Ok(Err(UnreadableJob { lease, run, attempt, problem })),
        Err(Error(StoreError::Invalid(problem))) => {
            Ok(Err(UnreadableJob { lease, run, attempt, problem: problem.to_string() }))
        }
        Err(error) => Err(error),
    }
}

/// The rows of the attempts, steps and signals of jobs.
struct JobHistories {
    attempts: HashMap<Uuid, Vec<Row>>,
    steps: HashMap<Uuid, Vec<Row>>,
    signals: HashMap<Uuid, Vec<Row>>,
}

impl JobHistories {
    async fn read(client: &Client, ids: &[Uuid]) -> Result<Self> {
        Ok(Self {
            attempts: by_job(client, &EXPORT_ATTEMPTS, ids).await?,
            steps: by_job(client, &EXPORT_STEPS, ids).await?,
            signals: by_job(client, &EXPORT_SIGNALS, ids).await?,
        })
    }

    fn add(&mut self, row: &Row, job: Job) -> Result<JobSnapshot> {
        fn all<T>(rows: Option<Vec<Row>>, read: fn(&Row) -> Result<T>) -> Result<Vec<T>> {
            rows.iter().flatten().map(read).collect()
        }
        let id = job.id.0;
        let fingerprint: Option<&[u8]> = row.try_get("fingerprint")?;
        let damaged = |_| Error::corrupt("the fingerprint is not 32 bytes long");
        Ok(JobSnapshot {
            fingerprint: fingerprint.map(TryInto::try_into).transpose().map_err(damaged)?,
            unique: read_unique_key(row)?,
            log: all(self.attempts.remove(&id), read_attempt)?,
            steps: all(self.steps.remove(&id), read_step)?,
            signals: all(self.signals.remove(&id), read_signal)?,
            ..bare_snapshot(job)
        })
    }
}

async fn by_job(client: &Client, sql: &str, ids: &[Uuid]) -> Result<HashMap<Uuid, Vec<Row>>> {
    let mut by_job: HashMap<Uuid, Vec<Row>> = HashMap::new();
    for row in client.run(sql, &[(&ids, Type::UUID_ARRAY)]).await? {
        by_job.entry(row.try_get("job")?).or_default().push(row);
    }
    Ok(by_job)
}

fn read_unique_key(row: &Row) -> Result<Option<HeldUniqueKey>> {
    let Some(key) = row.try_get::<_, Option<&str>>("unique_key")? else { return Ok(None) };
    let until: Option<i64> = row.try_get("unique_until")?;
    Ok(Some(HeldUniqueKey { key: UniqueKey::new(key)?, until: until.map(Timestamp::from_ms) }))
}

fn read_signal(row: &Row) -> Result<StoredSignal> {
    Ok(StoredSignal {
        id: row.try_get("id")?,
        name: SignalName::new(row.try_get::<_, &str>("name")?)?,
        value: row.try_get("value")?,
        taken: row.try_get("taken")?,
    })
}

pub(crate) async fn export_records(
    inner: &Inner,
    (kind, id): (&str, &str),
    limit: usize,
) -> Result<Vec<RecordSnapshot>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 3] = [(&kind, Type::TEXT), (&id, Type::TEXT), (&limit, Type::INT8)];
    let rows = inner.pool.query(&EXPORT_RECORDS, &parameters).await?;
    let record = |row: &Row| {
        Ok(RecordSnapshot {
            kind: row.try_get(0)?,
            id: row.try_get(1)?,
            version: row.try_get::<_, i64>(2)?.unsigned_abs(),
            value: row.try_get(3)?,
        })
    };
    rows.iter().map(record).collect()
}

pub(crate) async fn export_reserved_keys(
    inner: &Inner,
    after: Option<JobId>,
    limit: usize,
) -> Result<Vec<ReservedKey>> {
    let (now, after) = (inner.manual_now(), after.map(|after| after.0));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 3] = [(&now, Type::INT8), (&after, Type::UUID), (&limit, Type::INT8)];
    let rows = inner.pool.query(&EXPORT_RESERVED_KEYS, &parameters).await?;
    let reserved_key = |row: &Row| {
        Ok(ReservedKey {
            tenant: Tenant::new(row.try_get::<_, &str>(0)?)?,
            kind: Kind::new(row.try_get::<_, &str>(1)?)?,
            key: UniqueKey::new(row.try_get::<_, &str>(2)?)?,
            job: JobId(row.try_get(3)?),
            until: Timestamp::from_ms(row.try_get(4)?),
        })
    };
    rows.iter().map(reserved_key).collect()
}
