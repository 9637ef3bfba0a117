//! Reads and writes the row of a job.

pub(crate) mod insert;
pub(crate) mod position;
pub(crate) mod wait_condition;

use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::UnreadableJob;
use redrive_core::{
    IdempotencyKey, Invalid, Job, JobId, Lease, Order, Parent, Partition, PolicyRef, State, Tenant,
    Timestamp, WaitCondition, WorkerId,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::sql::JOB_COLUMNS;

/// Reads rows. Caches the names of the previous row, so that a batch of similar rows allocates them once.
struct RowReader {
    lanes: Arc<Lanes>,
    tenant: Option<Tenant>,
    policy: Option<(String, PolicyRef)>,
    worker: Option<WorkerId>,
}

/// The row of a job. `job` is an error if the row is damaged.
pub(crate) struct JobRow {
    pub(crate) id: JobId,
    pub(crate) lane: i32,
    pub(crate) next_run_at: i64,
    pub(crate) job: Result<Job, UnreadableJob>,
}

impl JobRow {
    /// The job, or an error that names the row and the damaged column.
    pub(crate) fn readable(self) -> Result<Job> {
        self.job.map_err(|row| Error::corrupt(format!("job {}: {}", row.lease.id, row.problem)))
    }
}

impl RowReader {
    fn new(lanes: Arc<Lanes>) -> Self {
        Self { lanes, tenant: None, policy: None, worker: None }
    }

    /// Reads a row. A damaged column makes this job unreadable, but not the whole batch. Only id, lane, epoch and due time
    /// must be readable.
    fn read(&mut self, row: &Row) -> Result<JobRow> {
        let id = JobId(row.try_get(0)?);
        let lane = row.try_get(1)?;
        let epoch = row.try_get::<_, i64>(6)?.unsigned_abs();
        let job = self.job(row, id, lane, epoch).map_err(|problem| UnreadableJob {
            lease: Lease { id, epoch },
            run: number(row, 4).unwrap_or(1),
            attempt: number(row, 5).unwrap_or(0),
            problem: problem.to_string(),
        });
        Ok(JobRow { id, lane, next_run_at: row.try_get(3)?, job })
    }

    fn job(&mut self, row: &Row, id: JobId, lane: i32, epoch: u64) -> Result<Job, Invalid> {
        let lanes = self.lanes.clone();
        let lane = lanes.get(lane).ok_or_else(|| damaged(1, "is unknown"))?;
        Ok(Job {
            id,
            tenant: self.tenant(row)?,
            queue: lane.queue.clone(),
            kind: lane.kind.clone(),
            state: state(column(row, 2)?).ok_or_else(|| damaged(2, "is not a state"))?,
            priority: lane.priority,
            policy: self.policy(row)?,
            payload: column(row, 25)?,
            key: column::<Option<&str>>(row, 20)?.map(IdempotencyKey::new).transpose()?,
            target: column(row, 22)?,
            metadata: column(row, 24)?,
            timeout: millis(row, 13)?,
            lease: millis(row, 14)?,
            partition: partition(row)?,
            parent: parent(row)?,
            awaits: wait_condition(row)?,
            paused: column(row, 33)?,
            run: number(row, 4)?,
            attempt: number(row, 5)?,
            epoch,
            created_at: Timestamp::from_ms(column(row, 7)?),
            began_at: Timestamp::from_ms(column(row, 8)?),
            next_run_at: Timestamp::from_ms(column(row, 3)?),
            started_at: timestamp(row, 9)?,
            lease_until: timestamp(row, 10)?,
            worker: self.worker(row)?,
            wait: millis(row, 12)?,
            cancel_requested: column(row, 15)?,
            finished_at: timestamp(row, 11)?,
            output: column(row, 26)?,
            last_error: column(row, 23)?,
            last_status: column::<Option<i32>>(row, 16)?
                .map(|status| u16::try_from(status).map_err(|_| damaged(16, "is not a status")))
                .transpose()?,
            reason: column::<Option<&str>>(row, 21)?.map(str::parse).transpose()?,
        })
    }

    fn tenant(&mut self, row: &Row) -> Result<Tenant, Invalid> {
        let text: &str = column(row, 17)?;
        match &self.tenant {
            Some(previous) if previous.as_str() == text => Ok(previous.clone()),
            _ => Ok(self.tenant.insert(Tenant::new(text)?).clone()),
        }
    }

    fn policy(&mut self, row: &Row) -> Result<PolicyRef, Invalid> {
        let text: &str = column(row, 18)?;
        match &self.policy {
            Some((previous, policy)) if previous == text => Ok(policy.clone()),
            _ => Ok(self.policy.insert((text.to_owned(), text.parse()?)).1.clone()),
        }
    }

    fn worker(&mut self, row: &Row) -> Result<Option<WorkerId>, Invalid> {
        let Some(text) = column::<Option<&str>>(row, 19)? else { return Ok(None) };
        match &self.worker {
            Some(previous) if previous.as_str() == text => Ok(Some(previous.clone())),
            _ => Ok(Some(self.worker.insert(WorkerId::new(text)?).clone())),
        }
    }
}

/// Reads the rows that have a job. A statement that found no job returns one row without a job.
pub(crate) fn read_all(rows: &[Row], lanes: Arc<Lanes>) -> Result<Vec<JobRow>> {
    let mut reader = RowReader::new(lanes);
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        if row.try_get::<_, Option<Uuid>>(0)?.is_some() {
            jobs.push(reader.read(row)?);
        }
    }
    Ok(jobs)
}

/// Reads jobs from rows as they arrive. Their payloads are large, so each row is dropped at once.
pub(crate) struct ArrivingJobs {
    reader: RowReader,
    jobs: Vec<JobRow>,
    /// The rows whose lanes this node does not know yet.
    of_unknown_lanes: Vec<Row>,
}

impl ArrivingJobs {
    pub(crate) fn new(known: Arc<Lanes>) -> Self {
        Self { reader: RowReader::new(known), jobs: Vec::new(), of_unknown_lanes: Vec::new() }
    }

    /// Reads a row, which may have no job.
    pub(crate) fn read(&mut self, row: Row) -> Result<()> {
        match row.try_get::<_, Option<i32>>(1)? {
            None => {}
            Some(lane) if self.reader.lanes.get(lane).is_none() => self.of_unknown_lanes.push(row),
            Some(_) => self.jobs.push(self.reader.read(&row)?),
        }
        Ok(())
    }

    /// The jobs of all rows, in no particular order.
    pub(crate) async fn finish(mut self, inner: &Inner) -> Result<Vec<JobRow>> {
        if !self.of_unknown_lanes.is_empty() {
            let lanes = inner.lanes_of(&self.of_unknown_lanes).await?;
            self.jobs.extend(read_all(&self.of_unknown_lanes, lanes)?);
        }
        Ok(self.jobs)
    }
}

/// The state with this code.
pub(crate) fn state(code: i16) -> Option<State> {
    u8::try_from(code).ok().and_then(State::from_code)
}

/// The id and the state of a row whose first two columns they are.
pub(crate) fn id_and_state(row: &Row) -> Result<(Uuid, State)> {
    let (id, code): (Uuid, i16) = (row.try_get(0)?, row.try_get(1)?);
    let state =
        state(code).ok_or_else(|| Error::corrupt(format!("job {id}: state {code} does not exist")))?;
    Ok((id, state))
}

fn parent(row: &Row) -> Result<Option<Parent>, Invalid> {
    let Some(id) = column::<Option<Uuid>>(row, 27)? else { return Ok(None) };
    Ok(Some(Parent { id: JobId(id), branch: column::<i32>(row, 28)? as u32, detached: column(row, 36)? }))
}

fn partition(row: &Row) -> Result<Option<Partition>, Invalid> {
    let Some(scope) = column::<Option<&str>>(row, 34)? else { return Ok(None) };
    let order = if column(row, 35)? { Order::Strict } else { Order::Any };
    Partition::from_scope(scope, order).map(Some)
}

fn wait_condition(row: &Row) -> Result<Option<WaitCondition>, Invalid> {
    wait_condition::read(column(row, 29)?, || column(row, 30), || column(row, 31), || column(row, 32))
}

/// A time that may be absent.
fn timestamp(row: &Row, index: usize) -> Result<Option<Timestamp>, Invalid> {
    Ok(column::<Option<i64>>(row, index)?.map(Timestamp::from_ms))
}

/// A duration that may be absent.
fn millis(row: &Row, index: usize) -> Result<Option<Duration>, Invalid> {
    let ms: Option<i64> = column(row, index)?;
    ms.map(|ms| u64::try_from(ms).map(Duration::from_millis).map_err(|_| damaged(index, "is negative")))
        .transpose()
}

fn number(row: &Row, index: usize) -> Result<u32, Invalid> {
    u32::try_from(column::<i32>(row, index)?).map_err(|_| damaged(index, "is negative"))
}

fn column<'r, T: FromSql<'r>>(row: &'r Row, index: usize) -> Result<T, Invalid> {
    row.try_get(index).map_err(|error| damaged(index, &error.to_string()))
}

fn damaged(index: usize, problem: &str) -> Invalid {
    Invalid::new(JOB_COLUMNS[index], format!("cannot be read: {problem}"))
}

/// Ids as a parameter.
pub(crate) fn uuids(ids: &[JobId]) -> Vec<Uuid> {
    ids.iter().map(|id| id.0).collect()
}
