//! The columns of a job: reads a row as a [`Job`], and reports what is wrong with a row that cannot be read.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::UnreadableJob;
use redrive_core::{
    Epoch, IdempotencyKey, Invalid, Job, JobId, Lease, Order, Parent, Partition, PolicyRef, SignalName,
    State, Tenant, Timestamp, WaitCondition, WorkerId,
};
use rusqlite::Row;
use rusqlite::types::{FromSql, ValueRef};
use uuid::Uuid;

use crate::lanes::{Lane, Lanes, SharedLanes};

/// Declares the columns of a job once: as the list in SQL, and as the index of each column in a row.
macro_rules! job_columns {
    ($first:ident $first_name:literal, $($column:ident $name:literal,)+) => {
        /// The columns of a job, in the order in which statements list them.
        pub(crate) const JOB_COLUMNS: &str = concat!($first_name $(, ", ", $name)+);

        /// The index of a column in a row that has `{job_columns}, seq`.
        #[derive(Debug, Clone, Copy)]
        enum Column {
            $first,
            $($column,)+
            Seq,
        }

        impl Column {
            /// The name of the column in SQL.
            fn name(self) -> &'static str {
                const NAMES: &[&str] = &[$first_name, $($name,)+ "seq"];
                NAMES[self as usize]
            }
        }
    };
}

job_columns! {
    Id "id",
    Lane "lane",
    State "state",
    NextRunAt "next_run_at",
    Run "run",
    Attempt "attempt",
    Epoch "epoch",
    CreatedAt "created_at",
    BeganAt "began_at",
    StartedAt "started_at",
    LeaseUntil "lease_until",
    FinishedAt "finished_at",
    WaitMs "wait_ms",
    TimeoutMs "timeout_ms",
    LeaseMs "lease_ms",
    LastStatus "last_status",
    CancelRequested "cancel_requested",
    Tenant "tenant",
    Policy "policy",
    Worker "worker",
    Key "key",
    Reason "reason",
    Target "subject",
    LastError "last_error",
    Metadata "metadata",
    Payload "payload",
    Output "output",
    Parent "parent",
    Branch "branch",
    WaitCode "awaits",
    WaitName "awaits_name",
    WaitBranch "awaits_branch",
    WaitFailures "awaits_failures",
    Paused "held",
    Partition "partition",
    Strict "strict",
    Detached "detached",
}

/// The columns of a job's wait condition.
const WAIT_COLUMNS: [usize; 4] = [
    Column::WaitCode as usize,
    Column::WaitName as usize,
    Column::WaitBranch as usize,
    Column::WaitFailures as usize,
];

/// A row of the table of jobs.
pub(crate) struct JobRow {
    pub(crate) seq: i64,
    pub(crate) lane: i64,
    /// The scope of its partition: the queue and the partition key.
    pub(crate) partition: Option<String>,
    /// The job, or what could not be read.
    pub(crate) job: Result<Job, UnreadableJob>,
}

impl JobRow {
    /// The job's epoch, which can always be read.
    pub(crate) fn epoch(&self) -> Epoch {
        self.job.as_ref().map_or_else(|unreadable| unreadable.lease.epoch, |job| job.epoch)
    }

    /// The job's id, which can always be read.
    pub(crate) fn id(&self) -> JobId {
        self.job.as_ref().map_or_else(|unreadable| unreadable.lease.id, |job| job.id)
    }
}

/// Reads rows. Keeps the last tenant and policy, so that a batch of similar rows allocates each once.
pub(crate) struct RowReader<'a> {
    shared: &'a SharedLanes,
    lanes: Arc<Lanes>,
    tenant: Option<Tenant>,
    policy: Option<(String, PolicyRef)>,
}

impl<'a> RowReader<'a> {
    pub(crate) fn new(shared: &'a SharedLanes) -> Self {
        Self { shared, lanes: shared.snapshot(), tenant: None, policy: None }
    }

    /// Reads a row. A damaged column makes this job unreadable, but not the whole batch. Only the columns that are fields
    /// of [`JobRow`], and id and epoch, must be readable.
    pub(crate) fn read(&mut self, row: &Row<'_>) -> rusqlite::Result<JobRow> {
        let id = JobId(Uuid::from_bytes(row.get(Column::Id as usize)?));
        let lane = row.get(Column::Lane as usize)?;
        let epoch = row.get::<_, i64>(Column::Epoch as usize)? as Epoch;
        let job = self.job(row, id, lane, epoch).map_err(|problem| UnreadableJob {
            lease: Lease { id, epoch },
            run: row.get(Column::Run as usize).unwrap_or(1),
            attempt: row.get(Column::Attempt as usize).unwrap_or(0),
            problem: problem.to_string(),
        });
        Ok(JobRow {
            seq: row.get(Column::Seq as usize)?,
            lane,
            partition: row.get(Column::Partition as usize)?,
            job,
        })
    }

    fn job(&mut self, row: &Row<'_>, id: JobId, lane: i64, epoch: Epoch) -> Result<Job, Invalid> {
        let lane = self.lane(lane)?;
        Ok(Job {
            id,
            tenant: self.tenant(row)?,
            queue: lane.queue,
            kind: lane.kind,
            state: State::from_code(column(row, Column::State)?)
                .ok_or_else(|| damaged(Column::State.name(), "is not a state"))?,
            priority: lane.priority,
            policy: self.policy(row)?,
            payload: column(row, Column::Payload)?,
            key: column::<Option<String>>(row, Column::Key)?.map(IdempotencyKey::new).transpose()?,
            target: column(row, Column::Target)?,
            metadata: column(row, Column::Metadata)?,
            timeout: duration(row, Column::TimeoutMs)?,
            lease: duration(row, Column::LeaseMs)?,
            partition: partition(row)?,
            parent: parent(row)?,
            awaits: read_wait_condition(row, WAIT_COLUMNS)?,
            paused: column(row, Column::Paused)?,
            run: column(row, Column::Run)?,
            attempt: column(row, Column::Attempt)?,
            epoch,
            created_at: Timestamp::from_ms(column(row, Column::CreatedAt)?),
            began_at: Timestamp::from_ms(column(row, Column::BeganAt)?),
            next_run_at: Timestamp::from_ms(column(row, Column::NextRunAt)?),
            started_at: timestamp(row, Column::StartedAt)?,
            lease_until: timestamp(row, Column::LeaseUntil)?,
            worker: column::<Option<String>>(row, Column::Worker)?.map(WorkerId::new).transpose()?,
            wait: duration(row, Column::WaitMs)?,
            cancel_requested: column(row, Column::CancelRequested)?,
            finished_at: timestamp(row, Column::FinishedAt)?,
            output: column(row, Column::Output)?,
            last_error: column(row, Column::LastError)?,
            last_status: column(row, Column::LastStatus)?,
            reason: column::<Option<String>>(row, Column::Reason)?.map(|name| name.parse()).transpose()?,
        })
    }

    /// The lane with this number. Takes a new snapshot if the lane was added after the batch began.
    fn lane(&mut self, number: i64) -> Result<Lane, Invalid> {
        if self.lanes.get(number).is_none() {
            self.lanes = self.shared.snapshot();
        }
        self.lanes.get(number).cloned().ok_or_else(|| Invalid::new("lane", format!("{number} is unknown")))
    }

    fn tenant(&mut self, row: &Row<'_>) -> Result<Tenant, Invalid> {
        let text = text(row, Column::Tenant)?;
        match &self.tenant {
            Some(last) if last.as_str() == text => Ok(last.clone()),
            _ => Ok(self.tenant.insert(Tenant::new(text)?).clone()),
        }
    }

    fn policy(&mut self, row: &Row<'_>) -> Result<PolicyRef, Invalid> {
        let text = text(row, Column::Policy)?;
        match &self.policy {
            Some((last, policy)) if last == text => Ok(policy.clone()),
            _ => Ok(self.policy.insert((text.to_owned(), text.parse()?)).1.clone()),
        }
    }
}

fn partition(row: &Row<'_>) -> Result<Option<Partition>, Invalid> {
    let Some(scope) = column::<Option<String>>(row, Column::Partition)? else { return Ok(None) };
    let order = if column(row, Column::Strict)? { Order::Strict } else { Order::Any };
    Partition::from_scope(&scope, order).map(Some)
}

fn parent(row: &Row<'_>) -> Result<Option<Parent>, Invalid> {
    let id: Option<[u8; 16]> = column(row, Column::Parent)?;
    let branch: Option<u32> = column(row, Column::Branch)?;
    let detached = column(row, Column::Detached)?;
    Ok(id.zip(branch).map(|(id, branch)| Parent { id: JobId(Uuid::from_bytes(id)), branch, detached }))
}

fn timestamp(row: &Row<'_>, index: Column) -> Result<Option<Timestamp>, Invalid> {
    Ok(column::<Option<i64>>(row, index)?.map(Timestamp::from_ms))
}

fn duration(row: &Row<'_>, index: Column) -> Result<Option<Duration>, Invalid> {
    let ms: Option<i64> = column(row, index)?;
    let negative = |_| damaged(index.name(), "is negative");
    ms.map(|ms| u64::try_from(ms).map(Duration::from_millis).map_err(negative)).transpose()
}

fn text<'r>(row: &'r Row<'_>, index: Column) -> Result<&'r str, Invalid> {
    match row.get_ref(index as usize) {
        Ok(ValueRef::Text(bytes)) => {
            std::str::from_utf8(bytes).map_err(|_| damaged(index.name(), "is not UTF-8"))
        }
        Ok(_) | Err(_) => Err(damaged(index.name(), "is not text")),
    }
}

fn column<T: FromSql>(row: &Row<'_>, index: Column) -> Result<T, Invalid> {
    value(row, index as usize, index.name())
}

/// The value of a column, or an error that names the column.
fn value<T: FromSql>(row: &Row<'_>, index: usize, name: &'static str) -> Result<T, Invalid> {
    row.get(index).map_err(|error| damaged(name, &error.to_string()))
}

fn damaged(name: &'static str, problem: &str) -> Invalid {
    Invalid::new(name, format!("cannot be read: {problem}"))
}

/// The columns of a [`WaitCondition`].
#[derive(Debug, Default)]
pub(crate) struct WaitColumns<'a> {
    pub(crate) code: Option<u8>,
    pub(crate) name: Option<Cow<'a, str>>,
    pub(crate) branch: Option<u32>,
    pub(crate) failures: Option<u32>,
}

impl<'a> WaitColumns<'a> {
    pub(crate) fn new(condition: Option<&'a WaitCondition>) -> Self {
        match condition {
            None => Self::default(),
            Some(WaitCondition::Signal(name)) => {
                Self { code: Some(0), name: Some(name.as_str().into()), ..Self::default() }
            }
            Some(WaitCondition::Children { branch, failures_max }) => Self {
                code: Some(1),
                branch: Some(*branch),
                failures: Some(*failures_max),
                ..Self::default()
            },
            Some(WaitCondition::Unpaused) => Self { code: Some(2), ..Self::default() },
            Some(WaitCondition::FreeSlot) => Self { code: Some(3), ..Self::default() },
            Some(any @ WaitCondition::Any(_)) => {
                Self { code: Some(4), name: Some(any.parts_json().into()), ..Self::default() }
            }
        }
    }
}

/// Reads a wait condition from the columns with these indexes: code, name, branch and failures.
pub(crate) fn read_wait_condition(
    row: &Row<'_>,
    [code, name, branch, failures]: [usize; 4],
) -> Result<Option<WaitCondition>, Invalid> {
    let name = || value::<String>(row, name, "awaits_name");
    match value::<Option<u8>>(row, code, "awaits")? {
        None => Ok(None),
        Some(0) => Ok(Some(WaitCondition::Signal(SignalName::new(name()?)?))),
        Some(1) => Ok(Some(WaitCondition::Children {
            branch: value(row, branch, "awaits_branch")?,
            failures_max: value(row, failures, "awaits_failures")?,
        })),
        Some(2) => Ok(Some(WaitCondition::Unpaused)),
        Some(3) => Ok(Some(WaitCondition::FreeSlot)),
        Some(4) => WaitCondition::from_parts_json(&name()?).map(Some),
        Some(code) => Err(Invalid::new("awaits", format!("{code} is not a wait condition"))),
    }
}

/// An id as its column has it, or a value that precedes every id.
pub(crate) fn id_bytes(id: Option<JobId>) -> Vec<u8> {
    id.map_or_else(Vec::new, |id| id.0.as_bytes().to_vec())
}
