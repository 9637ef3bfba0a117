//! Makes waiting jobs due when their conditions are met.

use std::collections::{BTreeSet, HashMap, HashSet};

use redrive_core::JobId;
use redrive_core::steps::SweepResult;
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Result;
use crate::lifecycle::job_tree::{self, Branch};
use crate::limits::slots::{self, SlotRequest};
use crate::open::Inner;
use crate::pool::Parameter;
use crate::sql;

static RESUME: Statement = sql::STEPS.statement("resume");
static SWEEP: Statement = sql::STEPS.statement("sweep");

/// How often one resume ends the children of a failed fan-out. If new children appear each time, a sweep resumes the job.
const TRIES: u32 = 3;

pub(crate) async fn resume(inner: &Inner, ids: &[JobId]) -> Result<Vec<bool>> {
    let mut unique = HashSet::with_capacity(ids.len());
    let order: Vec<Uuid> = ids.iter().map(|id| id.0).filter(|id| unique.insert(*id)).collect();
    // Of several equal ids, the first one was resumed.
    let mut resumed: HashSet<JobId> = resume_in_order(inner, &order).await?.into_iter().collect();
    Ok(ids.iter().map(|id| resumed.remove(id)).collect())
}

/// Resumes jobs as if one after the other, and returns those that were resumed. A failed fan-out ends its children first, and other jobs
/// of the call may be among them: jobs before it are resumed before that, and jobs after it afterwards.
async fn resume_in_order(inner: &Inner, order: &[Uuid]) -> Result<Vec<JobId>> {
    let mut resumed = Vec::new();
    let mut rest = order;
    while !rest.is_empty() {
        let (count, waits) = next_group(inner, rest).await?;
        resumed.extend(take_slots(inner, waits).await?);
        rest = &rest[count..];
    }
    Ok(resumed)
}

/// Reads the longest prefix of the jobs that can be resumed together.
async fn next_group(inner: &Inner, rest: &[Uuid]) -> Result<(usize, Vec<Wait>)> {
    let mut count = rest.len();
    let mut tries = TRIES;
    loop {
        let (now, ids) = (inner.manual_now(), &rest[..count]);
        let mut waits =
            read_waiting(inner, &RESUME, &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY)]).await?.waits;
        let places: HashMap<Uuid, usize> = ids.iter().zip(0..).map(|(id, place)| (*id, place)).collect();
        waits.sort_by_key(|wait| places.get(&wait.id).copied());
        let failed = waits.iter().find(|wait| !wait.ending.is_empty());
        let first = failed.and_then(|wait| places.get(&wait.id).copied());
        match first {
            None => return Ok((count, waits)),
            Some(_) if tries == 0 => return Ok((count, waits)),
            Some(first) if count > 1 && waits.iter().any(|wait| wait.is_child) => count = first.max(1),
            Some(_) => {
                tries -= 1;
                let branches: Vec<Branch> = waits.iter().flat_map(Wait::ending_branches).collect();
                let slot_given = job_tree::cancel_branches(inner, &branches).await?;
                inner.wake_if(slot_given);
            }
        }
    }
}

/// A waiting job, as a statement read it.
struct Wait {
    id: Uuid,
    /// Its request for a slot, if it waits for one.
    slot_request: Option<SlotRequest>,
    /// Whether the statement resumed it.
    resumed: bool,
    /// Whether it has a parent.
    is_child: bool,
    /// Its fan-outs that must end their children before it is resumed.
    ending: Vec<i32>,
}

impl Wait {
    fn read(row: &Row) -> Result<Self> {
        let id = row.try_get("id")?;
        let request = SlotRequest {
            id,
            partition: row.try_get("partition")?,
            strict: row.try_get("strict")?,
            due: row.try_get("due")?,
        };
        let ending: Option<Vec<i32>> = row.try_get("ending")?;
        Ok(Self {
            id,
            slot_request: row.try_get::<_, bool>("waits_for_slot")?.then_some(request),
            resumed: row.try_get("resumed")?,
            is_child: row.try_get("is_child")?,
            ending: ending.unwrap_or_default(),
        })
    }

    /// Whether one of its fan-outs must end its children first.
    fn must_end_children(&self) -> bool {
        !self.ending.is_empty()
    }

    fn ending_branches(&self) -> impl Iterator<Item = Branch> {
        self.ending.iter().map(|branch| (self.id, *branch))
    }
}

/// The rows of a statement that reads waiting jobs.
struct WaitingRows {
    /// The jobs, in the order of their ids.
    waits: Vec<Wait>,
    /// A job tree that still has marks, if the statement looked for one.
    marked: Option<i64>,
}

/// Runs a statement that reads waiting jobs, and lowers the positions of claims for those that became due early.
async fn read_waiting(inner: &Inner, sql: &str, parameters: &[Parameter<'_>]) -> Result<WaitingRows> {
    let rows = inner.pool.query(sql, parameters).await?;
    let mut early: HashMap<i32, i64> = HashMap::new();
    for row in &rows {
        if let Some(at) = row.try_get::<_, Option<i64>>("early")? {
            let first = early.entry(row.try_get("lane")?).or_insert(at);
            *first = at.min(*first);
        }
    }
    if !early.is_empty() {
        inner.announce_early(&early);
    }
    let mut waiting = WaitingRows { waits: Vec::with_capacity(rows.len()), marked: None };
    for row in &rows {
        waiting.marked = row.try_get("tree")?;
        if row.try_get::<_, Option<Uuid>>("id")?.is_some() {
            waiting.waits.push(Wait::read(row)?);
        }
    }
    Ok(waiting)
}

/// Gives free slots to the jobs that wait for one, in this order. Returns all jobs that were resumed.
async fn take_slots(inner: &Inner, waits: Vec<Wait>) -> Result<Vec<JobId>> {
    let (order, mut resumed): (Vec<Uuid>, BTreeSet<Uuid>) = (
        waits.iter().map(|wait| wait.id).collect(),
        waits.iter().filter(|wait| wait.resumed).map(|wait| wait.id).collect(),
    );
    let requests: Vec<SlotRequest> = waits.into_iter().filter_map(|wait| wait.slot_request).collect();
    if !requests.is_empty() {
        resumed.extend(slots::take_slots(inner, &requests).await?);
    }
    Ok(order.into_iter().filter(|id| resumed.contains(id)).map(JobId).collect())
}

/// Resumes jobs that nobody else resumed, page by page, and ends jobs that a crash left running below jobs that ended.
pub(crate) async fn sweep(inner: &Inner, after: Option<JobId>, limit: usize) -> Result<SweepResult> {
    let (now, after, limit) = (inner.manual_now(), after.map(|id| id.0), limit as i64);
    let WaitingRows { waits, marked } =
        read_waiting(inner, &SWEEP, &[(&now, Type::INT8), (&after, Type::UUID), (&limit, Type::INT8)])
            .await?;
    if let Some(tree) = marked {
        let slot_given = job_tree::sweep(inner, tree).await?;
        inner.wake_if(slot_given);
    }
    let last = waits.last().map(|wait| JobId(wait.id));
    let resumed = if waits.iter().any(Wait::must_end_children) {
        let order: Vec<Uuid> = waits.iter().map(|wait| wait.id).collect();
        resume_in_order(inner, &order).await?
    } else {
        take_slots(inner, waits).await?
    };
    Ok(SweepResult { resumed, last })
}
