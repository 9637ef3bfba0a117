//! All that the store has, on its way out.

use std::collections::HashMap;

use redrive_core::store::Unreadable;
use redrive_core::transfer::{EXPORT_BYTES_MAX, Exported, Held, Parcel, Promise, Received, Slot};
use redrive_core::{Job, JobId, Kind, Lease, SignalName, StoreError, Tenant, Timestamp, UniqueKey};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::attempts::attempt;
use crate::enqueue::Query;
use crate::error::Sorted;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::recall::step;
use crate::row::{self, Read};

pub(crate) async fn export(
    inner: &Inner,
    after: Option<JobId>,
    limit: usize,
) -> Result<Exported, StoreError> {
    let after = after.map(|after| after.0);
    let read = async |client: &Client| {
        let parameters: [Parameter<'_>; 2] = [(&after, Type::UUID), (&(limit as i64), Type::INT8)];
        let rows = client.typed(include_str!("../sql/export.sql"), &parameters).await?;
        let lanes = inner.lanes_of(&rows).await?;
        let reads = row::reads(&rows, &lanes)?;
        let count = fitting(&rows, &reads)?;
        let ids: Vec<Uuid> = reads[..count].iter().map(|read| read.id.0).collect();
        let mut belongings = Belongings::read(client, &ids).await?;
        let mut exported = Exported::default();
        for (row, read) in rows.iter().zip(reads).take(count) {
            exported.last = Some(read.id);
            match read.job.map_or_else(|row| Ok(Err(row)), |job| parcel(row, job, &mut belongings))? {
                Ok(parcel) => exported.parcels.push(parcel),
                Err(unreadable) => exported.unreadable.push(unreadable),
            }
        }
        Ok(exported)
    };
    inner.pool.snapshot(read).await
}

/// How many of the jobs go into one answer.
fn fitting(rows: &[Row], reads: &[Read]) -> Result<usize, StoreError> {
    let mut bytes = 0;
    for (count, (row, read)) in rows.iter().zip(reads).enumerate() {
        let belongings = row.try_get::<_, i64>("bytes").sorted()?;
        bytes += usize::try_from(belongings).unwrap_or(usize::MAX);
        bytes += read.job.as_ref().map_or(0, |job| empty(job.clone()).bytes());
        if bytes >= EXPORT_BYTES_MAX {
            return Ok(count + 1);
        }
    }
    Ok(reads.len())
}

/// A job without anything that belongs to it.
fn empty(job: Job) -> Parcel {
    let (log, steps, signals) = (Vec::new(), Vec::new(), Vec::new());
    Parcel { job, fingerprint: None, unique: None, log, steps, signals }
}

/// The job with all that belongs to it, or what of that cannot be read.
fn parcel(
    row: &Row,
    job: Job,
    belongings: &mut Belongings,
) -> Result<Result<Parcel, Unreadable>, StoreError> {
    let (lease, run, attempt) = (Lease { id: job.id, epoch: job.epoch }, job.run, job.attempt);
    match belongings.add(row, job) {
        Ok(parcel) => Ok(Ok(parcel)),
        Err(StoreError::Corrupt(problem)) => Ok(Err(Unreadable { lease, run, attempt, problem })),
        Err(StoreError::Invalid(problem)) => {
            Ok(Err(Unreadable { lease, run, attempt, problem: problem.to_string() }))
        }
        Err(error) => Err(error),
    }
}

/// What belongs to jobs, as rows.
struct Belongings {
    attempts: HashMap<Uuid, Vec<Row>>,
    steps: HashMap<Uuid, Vec<Row>>,
    signals: HashMap<Uuid, Vec<Row>>,
}

impl Belongings {
    async fn read(client: &Client, ids: &[Uuid]) -> Result<Self, StoreError> {
        Ok(Self {
            attempts: by_job(client, include_str!("../sql/export_attempts.sql"), ids).await?,
            steps: by_job(client, include_str!("../sql/export_steps.sql"), ids).await?,
            signals: by_job(client, include_str!("../sql/export_signals.sql"), ids).await?,
        })
    }

    fn add(&mut self, row: &Row, job: Job) -> Result<Parcel, StoreError> {
        fn all<T>(
            rows: Option<Vec<Row>>,
            read: fn(&Row) -> Result<T, StoreError>,
        ) -> Result<Vec<T>, StoreError> {
            rows.iter().flatten().map(read).collect()
        }
        let id = job.id.0;
        let fingerprint: Option<&[u8]> = row.try_get("fingerprint").sorted()?;
        let damaged = |_| StoreError::Corrupt("the fingerprint is not 32 bytes long".to_owned());
        Ok(Parcel {
            fingerprint: fingerprint.map(TryInto::try_into).transpose().map_err(damaged)?,
            unique: held(row)?,
            log: all(self.attempts.remove(&id), attempt)?,
            steps: all(self.steps.remove(&id), step)?,
            signals: all(self.signals.remove(&id), received)?,
            ..empty(job)
        })
    }
}

async fn by_job(client: &Client, sql: &str, ids: &[Uuid]) -> Result<HashMap<Uuid, Vec<Row>>, StoreError> {
    let mut by_job: HashMap<Uuid, Vec<Row>> = HashMap::new();
    for row in client.typed(sql, &[(&ids, Type::UUID_ARRAY)]).await? {
        by_job.entry(row.try_get("job").sorted()?).or_default().push(row);
    }
    Ok(by_job)
}

fn held(row: &Row) -> Result<Option<Held>, StoreError> {
    let Some(key) = row.try_get::<_, Option<&str>>("unique_key").sorted()? else { return Ok(None) };
    let until: Option<i64> = row.try_get("unique_until").sorted()?;
    Ok(Some(Held { key: UniqueKey::new(key)?, until: until.map(Timestamp::from_ms) }))
}

fn received(row: &Row) -> Result<Received, StoreError> {
    Ok(Received {
        id: row.try_get("id").sorted()?,
        name: SignalName::new(row.try_get::<_, &str>("name").sorted()?)?,
        value: row.try_get("value").sorted()?,
        taken: row.try_get("taken").sorted()?,
    })
}

pub(crate) async fn export_records(
    inner: &Inner,
    (kind, id): (&str, &str),
    limit: usize,
) -> Result<Vec<Slot>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 3] = [(&kind, Type::TEXT), (&id, Type::TEXT), (&limit, Type::INT8)];
    let rows = inner.pool.query(include_str!("../sql/export_records.sql"), &parameters).await?;
    let slot = |row: &Row| {
        Ok(Slot {
            kind: row.try_get(0).sorted()?,
            id: row.try_get(1).sorted()?,
            version: row.try_get::<_, i64>(2).sorted()?.unsigned_abs(),
            value: row.try_get(3).sorted()?,
        })
    };
    rows.iter().map(slot).collect()
}

pub(crate) async fn export_promises(
    inner: &Inner,
    after: Option<JobId>,
    limit: usize,
) -> Result<Vec<Promise>, StoreError> {
    let (now, after) = (inner.manual_now(), after.map(|after| after.0));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 3] = [(&now, Type::INT8), (&after, Type::UUID), (&limit, Type::INT8)];
    let rows = inner.pool.query(include_str!("../sql/export_promises.sql"), &parameters).await?;
    let promise = |row: &Row| {
        Ok(Promise {
            tenant: Tenant::new(row.try_get::<_, &str>(0).sorted()?)?,
            kind: Kind::new(row.try_get::<_, &str>(1).sorted()?)?,
            key: UniqueKey::new(row.try_get::<_, &str>(2).sorted()?)?,
            job: JobId(row.try_get(3).sorted()?),
            until: Timestamp::from_ms(row.try_get(4).sorted()?),
        })
    };
    rows.iter().map(promise).collect()
}
