//! A row as a [`Job`], and what is wrong with one that is none.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::Unreadable;
use redrive_core::{
    Await, Epoch, IdempotencyKey, Invalid, Job, JobId, Lease, Order, Parent, Partition, PolicyRef, State,
    Tenant, Timestamp, WorkerId,
};
use rusqlite::Row;
use rusqlite::types::{FromSql, ValueRef};
use uuid::Uuid;

use crate::awaits::{self, Number};
use crate::lanes::{Lane, Lanes, SharedLanes};

/// The columns every statement that returns jobs selects, in this order.
pub(crate) const COLUMNS: [&str; 38] = [
    "seq",
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
    "cancel_requested",
    "tenant",
    "policy",
    "worker",
    "key",
    "reason",
    "last_error",
    "metadata",
    "payload",
    "output",
    "lease_ms",
    "subject",
    "last_status",
    "parent",
    "branch",
    "held",
    "awaits",
    "awaits_name",
    "awaits_branch",
    "awaits_failures",
    "partition",
    "strict",
    "detached",
];

/// Reads rows, and keeps the names it has just seen so that a batch of like rows allocates them once.
pub(crate) struct Reader<'a> {
    shared: &'a SharedLanes,
    lanes: Arc<Lanes>,
    tenant: Option<Tenant>,
    policy: Option<(String, PolicyRef)>,
}

/// A job with its row's number and lane, or what could not be read of it.
pub(crate) struct Read {
    pub(crate) seq: i64,
    pub(crate) lane: i64,
    pub(crate) next_run_at: i64,
    /// What its partition is called, if it is in one.
    pub(crate) partition: Option<String>,
    pub(crate) job: Result<Job, Unreadable>,
}

impl Read {
    /// The job's id, which every row has.
    pub(crate) fn id(&self) -> JobId {
        self.job.as_ref().map_or_else(|unreadable| unreadable.lease.id, |job| job.id)
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(shared: &'a SharedLanes) -> Self {
        Self { shared, lanes: shared.snapshot(), tenant: None, policy: None }
    }

    /// Reads a row. Only its key must be sound; anything else that is not makes the job unreadable, not the batch.
    pub(crate) fn read(&mut self, row: &Row<'_>) -> rusqlite::Result<Read> {
        let id = JobId(Uuid::from_bytes(row.get(1)?));
        let (lane, epoch) = (row.get(2)?, row.get::<_, i64>(7)? as Epoch);
        let job = self.job(row, id, lane, epoch).map_err(|problem| Unreadable {
            lease: Lease { id, epoch },
            run: row.get(5).unwrap_or(1),
            attempt: row.get(6).unwrap_or(0),
            problem: problem.to_string(),
        });
        Ok(Read { seq: row.get(0)?, lane, next_run_at: row.get(4)?, partition: row.get(35)?, job })
    }

    fn job(&mut self, row: &Row<'_>, id: JobId, lane: i64, epoch: Epoch) -> Result<Job, Invalid> {
        let lane = self.lane(lane)?;
        Ok(Job {
            id,
            tenant: self.tenant(row)?,
            queue: lane.queue,
            kind: lane.kind,
            state: column::<u8>(row, 3)
                .and_then(|code| State::from_code(code).ok_or_else(|| damaged(3, "is no state")))?,
            priority: lane.priority,
            policy: self.policy(row)?,
            payload: column(row, 23)?,
            key: column::<Option<String>>(row, 19)?.map(IdempotencyKey::new).transpose()?,
            subject: column(row, 26)?,
            metadata: column(row, 22)?,
            timeout: millis(row, 14)?,
            lease: millis(row, 25)?,
            partition: partition(row)?,
            parent: parent(row)?,
            awaits: awaits(row)?,
            held: column(row, 30)?,
            run: column(row, 5)?,
            attempt: column(row, 6)?,
            epoch,
            created_at: Timestamp::from_ms(column(row, 8)?),
            began_at: Timestamp::from_ms(column(row, 9)?),
            next_run_at: Timestamp::from_ms(column(row, 4)?),
            started_at: instant(row, 10)?,
            lease_until: instant(row, 11)?,
            worker: column::<Option<String>>(row, 18)?.map(WorkerId::new).transpose()?,
            wait: millis(row, 13)?,
            cancel_requested: column(row, 15)?,
            finished_at: instant(row, 12)?,
            output: column(row, 24)?,
            last_error: column(row, 21)?,
            last_status: column(row, 27)?,
            reason: column::<Option<String>>(row, 20)?.map(|name| name.parse()).transpose()?,
        })
    }

    /// A lane that is new since the batch began is found on a second look.
    fn lane(&mut self, number: i64) -> Result<Lane, Invalid> {
        if self.lanes.get(number).is_none() {
            self.lanes = self.shared.snapshot();
        }
        self.lanes.get(number).cloned().ok_or_else(|| Invalid::new("lane", format!("{number} is unknown")))
    }

    fn tenant(&mut self, row: &Row<'_>) -> Result<Tenant, Invalid> {
        let text = text(row, 16)?;
        match &self.tenant {
            Some(seen) if seen.as_str() == text => Ok(seen.clone()),
            _ => Ok(self.tenant.insert(Tenant::new(text)?).clone()),
        }
    }

    fn policy(&mut self, row: &Row<'_>) -> Result<PolicyRef, Invalid> {
        let text = text(row, 17)?;
        match &self.policy {
            Some((seen, policy)) if seen == text => Ok(policy.clone()),
            _ => Ok(self.policy.insert((text.to_owned(), text.parse()?)).1.clone()),
        }
    }
}

fn partition(row: &Row<'_>) -> Result<Option<Partition>, Invalid> {
    let Some(scope) = column::<Option<String>>(row, 35)? else { return Ok(None) };
    let order = if column(row, 36)? { Order::Strict } else { Order::Any };
    Partition::of_scope(&scope, order).map(Some)
}

fn awaits(row: &Row<'_>) -> Result<Option<Await>, Invalid> {
    let number = |which| match which {
        Number::Branch => column(row, 33),
        Number::Failures => column(row, 34),
    };
    awaits::read(column(row, 31)?, || column(row, 32), number)
}

fn parent(row: &Row<'_>) -> Result<Option<Parent>, Invalid> {
    let id: Option<[u8; 16]> = column(row, 28)?;
    let branch: Option<u32> = column(row, 29)?;
    let detached = column(row, 37)?;
    Ok(id.zip(branch).map(|(id, branch)| Parent { id: JobId(Uuid::from_bytes(id)), branch, detached }))
}

/// An instant that may be absent.
pub(crate) fn instant(row: &Row<'_>, index: usize) -> Result<Option<Timestamp>, Invalid> {
    Ok(column::<Option<i64>>(row, index)?.map(Timestamp::from_ms))
}

/// A span that may be absent.
pub(crate) fn millis(row: &Row<'_>, index: usize) -> Result<Option<Duration>, Invalid> {
    let ms: Option<i64> = column(row, index)?;
    ms.map(|ms| u64::try_from(ms).map(Duration::from_millis).map_err(|_| damaged(index, "is negative")))
        .transpose()
}

/// A column, or what is wrong with it.
pub(crate) fn column<T: FromSql>(row: &Row<'_>, index: usize) -> Result<T, Invalid> {
    row.get(index).map_err(|error| damaged(index, &error.to_string()))
}

fn text<'r>(row: &'r Row<'_>, index: usize) -> Result<&'r str, Invalid> {
    match row.get_ref(index) {
        Ok(ValueRef::Text(bytes)) => std::str::from_utf8(bytes).map_err(|_| damaged(index, "is not UTF-8")),
        Ok(_) | Err(_) => Err(damaged(index, "is not text")),
    }
}

fn damaged(index: usize, problem: &str) -> Invalid {
    Invalid::new(COLUMNS[index], format!("cannot be read: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_that_returns_jobs_selects_the_same_columns() {
        let columns = format!("SELECT {} FROM redrive_jobs", COLUMNS.join(", "));
        for sql in [
            include_str!("../sql/claim_due.sql"),
            include_str!("../sql/reclaim_expired.sql"),
            include_str!("../sql/get.sql"),
            include_str!("../sql/list.sql"),
            include_str!("../sql/export.sql"),
        ] {
            let words = sql.split_whitespace().collect::<Vec<_>>().join(" ");
            let words = words.replace("NULL AS ", "").replace("0 AS ", "");
            assert!(words.contains(&columns), "{sql}");
        }
    }
}
