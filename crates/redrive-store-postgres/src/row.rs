//! A row as a [`Job`], and what is wrong with one that is none.

use std::time::Duration;

use redrive_core::store::Unreadable;
use redrive_core::{
    Await, IdempotencyKey, Invalid, Job, JobId, Lease, Order, Parent, Partition, PolicyRef, State,
    StoreError, Tenant, Timestamp, WorkerId,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::awaits;
use crate::error::Sorted;
use crate::lanes::Lanes;

/// The columns every statement that returns jobs selects, in this order.
pub(crate) const COLUMNS: [&str; 37] = [
    "id",
    "lane",
    "state",
    "next_run_at",
    "run",
    "attempt",
    "epoch",
    "created_at",
    "began_at",
    "started_at",
    "lease_until",
    "finished_at",
    "wait_ms",
    "timeout_ms",
    "lease_ms",
    "cancel_requested",
    "last_status",
    "tenant",
    "policy",
    "worker",
    "key",
    "reason",
    "subject",
    "last_error",
    "metadata",
    "payload",
    "output",
    "parent",
    "branch",
    "awaits",
    "awaits_name",
    "awaits_branch",
    "awaits_failures",
    "held",
    "partition",
    "strict",
    "detached",
];

/// Reads rows, and keeps the names it has just seen so that a batch of like rows allocates them once.
struct Reader<'a> {
    lanes: &'a Lanes,
    tenant: Option<Tenant>,
    policy: Option<(String, PolicyRef)>,
    worker: Option<WorkerId>,
}

/// A job with its lane, or what could not be read of it.
pub(crate) struct Read {
    pub(crate) id: JobId,
    pub(crate) lane: i32,
    pub(crate) next_run_at: i64,
    pub(crate) job: Result<Job, Unreadable>,
}

impl Read {
    /// The job, or an error that names the row and what is wrong with it.
    pub(crate) fn readable(self) -> Result<Job, StoreError> {
        self.job.map_err(|row| StoreError::Corrupt(format!("job {}: {}", row.lease.id, row.problem)))
    }
}

impl<'a> Reader<'a> {
    fn new(lanes: &'a Lanes) -> Self {
        Self { lanes, tenant: None, policy: None, worker: None }
    }

    /// Reads a row. Only its key must be sound; anything else that is not makes the job unreadable, not the batch.
    fn read(&mut self, row: &Row) -> Result<Read, StoreError> {
        let id = JobId(row.try_get(0).sorted()?);
        let lane = row.try_get(1).sorted()?;
        let epoch = row.try_get::<_, i64>(6).sorted()?.unsigned_abs();
        let job = self.job(row, id, lane, epoch).map_err(|problem| Unreadable {
            lease: Lease { id, epoch },
            run: number(row, 4).unwrap_or(1),
            attempt: number(row, 5).unwrap_or(0),
            problem: problem.to_string(),
        });
        Ok(Read { id, lane, next_run_at: row.try_get(3).sorted()?, job })
    }

    fn job(&mut self, row: &Row, id: JobId, lane: i32, epoch: u64) -> Result<Job, Invalid> {
        let lane = self.lanes.get(lane);
        let lane = lane.ok_or_else(|| damaged(1, "is unknown"))?;
        Ok(Job {
            id,
            tenant: self.tenant(row)?,
            queue: lane.queue.clone(),
            kind: lane.kind.clone(),
            state: state(column(row, 2)?).ok_or_else(|| damaged(2, "is no state"))?,
            priority: lane.priority,
            policy: self.policy(row)?,
            payload: column(row, 25)?,
            key: column::<Option<&str>>(row, 20)?.map(IdempotencyKey::new).transpose()?,
            subject: column(row, 22)?,
            metadata: column(row, 24)?,
            timeout: millis(row, 13)?,
            lease: millis(row, 14)?,
            partition: partition(row)?,
            parent: parent(row)?,
            awaits: awaits(row)?,
            held: column(row, 33)?,
            run: number(row, 4)?,
            attempt: number(row, 5)?,
            epoch,
            created_at: Timestamp::from_ms(column(row, 7)?),
            began_at: Timestamp::from_ms(column(row, 8)?),
            next_run_at: Timestamp::from_ms(column(row, 3)?),
            started_at: instant(row, 9)?,
            lease_until: instant(row, 10)?,
            worker: self.worker(row)?,
            wait: millis(row, 12)?,
            cancel_requested: column(row, 15)?,
            finished_at: instant(row, 11)?,
            output: column(row, 26)?,
            last_error: column(row, 23)?,
            last_status: column::<Option<i32>>(row, 16)?
                .map(|status| u16::try_from(status).map_err(|_| damaged(16, "is no status")))
                .transpose()?,
            reason: column::<Option<&str>>(row, 21)?.map(str::parse).transpose()?,
        })
    }

    fn tenant(&mut self, row: &Row) -> Result<Tenant, Invalid> {
        let text: &str = column(row, 17)?;
        match &self.tenant {
            Some(seen) if seen.as_str() == text => Ok(seen.clone()),
            _ => Ok(self.tenant.insert(Tenant::new(text)?).clone()),
        }
    }

    fn policy(&mut self, row: &Row) -> Result<PolicyRef, Invalid> {
        let text: &str = column(row, 18)?;
        match &self.policy {
            Some((seen, policy)) if seen == text => Ok(policy.clone()),
            _ => Ok(self.policy.insert((text.to_owned(), text.parse()?)).1.clone()),
        }
    }

    fn worker(&mut self, row: &Row) -> Result<Option<WorkerId>, Invalid> {
        let Some(text) = column::<Option<&str>>(row, 19)? else { return Ok(None) };
        match &self.worker {
            Some(seen) if seen.as_str() == text => Ok(Some(seen.clone())),
            _ => Ok(Some(self.worker.insert(WorkerId::new(text)?).clone())),
        }
    }
}

/// The jobs among the rows: a statement that found none answers with a row that has none.
pub(crate) fn reads(rows: &[Row], lanes: &Lanes) -> Result<Vec<Read>, StoreError> {
    let mut reader = Reader::new(lanes);
    let mut reads = Vec::with_capacity(rows.len());
    for row in rows {
        if row.try_get::<_, Option<Uuid>>(0).sorted()?.is_some() {
            reads.push(reader.read(row)?);
        }
    }
    Ok(reads)
}

/// The state behind a code.
pub(crate) fn state(code: i16) -> Option<State> {
    u8::try_from(code).ok().and_then(State::from_code)
}

/// The id and the state of a row that has both first.
pub(crate) fn id_and_state(row: &Row) -> Result<(Uuid, State), StoreError> {
    let (id, code): (Uuid, i16) = (row.try_get(0).sorted()?, row.try_get(1).sorted()?);
    let state = state(code).ok_or_else(|| StoreError::Corrupt(format!("job {id}: {code} is no state")))?;
    Ok((id, state))
}

fn parent(row: &Row) -> Result<Option<Parent>, Invalid> {
    let Some(id) = column::<Option<Uuid>>(row, 27)? else { return Ok(None) };
    Ok(Some(Parent { id: JobId(id), branch: column::<i32>(row, 28)? as u32, detached: column(row, 36)? }))
}

/// Which jobs of its queue a row shares bounds or an order with.
fn partition(row: &Row) -> Result<Option<Partition>, Invalid> {
    let Some(scope) = column::<Option<&str>>(row, 34)? else { return Ok(None) };
    let order = if column(row, 35)? { Order::Strict } else { Order::Any };
    Partition::of_scope(scope, order).map(Some)
}

fn awaits(row: &Row) -> Result<Option<Await>, Invalid> {
    awaits::read(column(row, 29)?, || column(row, 30), || column(row, 31), || column(row, 32))
}

/// An instant that may be absent.
fn instant(row: &Row, index: usize) -> Result<Option<Timestamp>, Invalid> {
    Ok(column::<Option<i64>>(row, index)?.map(Timestamp::from_ms))
}

/// A span that may be absent.
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
    Invalid::new(COLUMNS[index], format!("cannot be read: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_that_returns_jobs_selects_the_same_columns() {
        let columns = COLUMNS.join(", ");
        for sql in [
            include_str!("../sql/claim.sql"),
            include_str!("../sql/claim_take.sql"),
            include_str!("../sql/reclaim.sql"),
            include_str!("../sql/get.sql"),
            include_str!("../sql/list.sql"),
            include_str!("../sql/export.sql"),
        ] {
            let words = sql.split_whitespace().collect::<Vec<_>>().join(" ").replace("jobs.", "");
            assert!(words.contains(&columns), "{sql}");
        }
    }
}
