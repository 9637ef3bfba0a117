//! Ends jobs with all their descendants.
//!
//! The write that ends a job marks it if it may have children. Statements of bounded size then process the marks, level by level,
//! each in a transaction of its own unless the caller has one open. A sweep processes the marks that are left after a crash.

use std::collections::HashMap;

use redrive_core::{JobId, State};
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::limits::slots::{VacatedSlot, give_slots};
use crate::open::Inner;
use crate::pool::Executor;
use crate::pool::Parameter;
use crate::row;
use crate::row::uuids;
use crate::sql;

static NEXT_MARKED_TREE: Statement = sql::OPERATE.statement("next_marked_tree");

static CANCEL: Statement = sql::OPERATE.statement("cancel");
static CANCEL_BRANCHES: Statement = sql::OPERATE.statement("cancel_branches");
static CANCEL_DESCENDANTS: Statement = sql::OPERATE.statement("cancel_descendants");

/// The maximum number of jobs that one statement ends, and of marks that it processes.
const JOBS_MAX: i64 = 1_000;
/// How often this node tries to end the descendants of a job. After that, a sweep does it.
const TRIES: u32 = 3;
/// The maximum number of trees that one sweep processes.
const TREES_MAX: usize = 100;

/// A fan-out: the parent, and the place of its step.
pub(crate) type Branch = (Uuid, i32);

/// The jobs that one call ends, with all their descendants.
#[derive(Debug)]
pub(crate) struct JobTree {
    /// The number that its marks have in the database.
    pub(crate) number: i64,
    now: Option<i64>,
    /// Whether the database has marks of this tree that are not processed yet.
    pub(crate) marked: bool,
    /// Whether a running job was asked to stop.
    pub(crate) requested: bool,
    /// The slots that its jobs vacated, in this order.
    pub(crate) vacated: Vec<VacatedSlot>,
}

impl JobTree {
    pub(crate) fn new(now: Option<i64>) -> Self {
        Self { number: fastrand::i64(..), now, marked: false, requested: false, vacated: Vec::new() }
    }

    /// Cancels these jobs, without their descendants. Returns their previous states.
    pub(crate) async fn cancel(
        &mut self,
        on: &(impl Executor + Sync),
        ids: &[JobId],
    ) -> Result<HashMap<Uuid, State>> {
        let rows = self.run(on, &CANCEL, &[(&uuids(ids), Type::UUID_ARRAY)]).await?;
        self.record(&rows)?;
        job_rows(&rows).map(row::id_and_state).collect()
    }

    /// Cancels the attached children of these fan-outs, without the descendants of the children.
    pub(crate) async fn cancel_branches(
        &mut self,
        on: &(impl Executor + Sync),
        branches: &[Branch],
    ) -> Result<()> {
        let (parents, branches): (Vec<Uuid>, Vec<i32>) = branches.iter().copied().unzip();
        let parameters: [Parameter<'_>; 3] =
            [(&parents, Type::UUID_ARRAY), (&branches, Type::INT4_ARRAY), (&JOBS_MAX, Type::INT8)];
        let mut more = true;
        while more {
            let rows = self.run(on, &CANCEL_BRANCHES, &parameters).await?;
            more = self.record(&rows)?;
        }
        Ok(())
    }

    /// Cancels all descendants of the marked jobs.
    pub(crate) async fn cancel_descendants(&mut self, on: &(impl Executor + Sync)) -> Result<()> {
        while self.marked {
            let rows = self.run(on, &CANCEL_DESCENDANTS, &[(&JOBS_MAX, Type::INT8)]).await?;
            self.marked = false;
            let more = self.record(&rows)?;
            self.marked |= more;
        }
        Ok(())
    }

    async fn run(
        &self,
        on: &(impl Executor + Sync),
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>> {
        let mut all: Vec<Parameter<'_>> = vec![(&self.now, Type::INT8), (&self.number, Type::INT8)];
        all.extend_from_slice(parameters);
        on.run(sql, &all).await
    }

    /// Records the rows of a statement. Returns whether there may be more jobs to cancel.
    fn record(&mut self, rows: &[Row]) -> Result<bool> {
        let first = rows.first().ok_or_else(Error::no_row)?;
        self.marked |= first.try_get::<_, bool>("marked")?;
        for row in job_rows(rows) {
            let (_, state) = row::id_and_state(row)?;
            self.requested |= state == State::Running;
            if !state.is_final() && state != State::Running {
                self.vacated.extend(vacated_slot(row)?);
            }
        }
        Ok(first.try_get("more")?)
    }
}

/// The rows that have a job. A statement that found no job returns one row without a job.
fn job_rows(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| matches!(row.try_get::<_, Option<Uuid>>("id"), Ok(Some(_)) | Err(_)))
}

/// The slot that a cancelled job vacates, if it has a partition key.
fn vacated_slot(row: &Row) -> Result<Option<VacatedSlot>> {
    let Some(partition) = row.try_get("partition")? else { return Ok(None) };
    Ok(Some(VacatedSlot {
        partition,
        id: row.try_get("id")?,
        strict: row.try_get("strict")?,
        ended: true,
        ran: false,
        was_claimable: row.try_get("due")?,
        is_claimable: false,
        added: Vec::new(),
    }))
}

/// Finishes a tree whose first write is committed: cancels the remaining descendants, wakes the workers of those that run, and gives
/// the vacated slots to other jobs. Returns whether another job got a slot. If this fails, a sweep does it later.
pub(crate) async fn finish(inner: &Inner, mut tree: JobTree) -> bool {
    if tree.requested {
        inner.announce_cancels();
        tree.requested = false;
    }
    let mut tries = 1;
    while let Err(error) = tree.cancel_descendants(&*inner.pool).await {
        if tries == TRIES || !error.is_busy() {
            tracing::warn!(
                error = error.explain(),
                "could not end the descendants of an ended job; the next sweep ends them"
            );
            break;
        }
        tries += 1;
    }
    after_commit(inner, &tree).await
}

/// Wakes the workers of jobs that were asked to stop, and gives the vacated slots to other jobs. Call it after the commit.
pub(crate) async fn after_commit(inner: &Inner, tree: &JobTree) -> bool {
    if tree.requested {
        inner.announce_cancels();
    }
    let mut slot_given = false;
    for vacated in tree.vacated.chunks(JOBS_MAX as usize) {
        slot_given |= give_slots(inner, vacated).await;
    }
    slot_given
}

/// Cancels the attached children of these fan-outs with all their descendants. Returns whether another job got a slot.
pub(crate) async fn cancel_branches(inner: &Inner, branches: &[Branch]) -> Result<bool> {
    let mut tree = JobTree::new(inner.manual_now());
    tree.cancel_branches(&*inner.pool, branches).await?;
    Ok(finish(inner, tree).await)
}

/// Processes the marks that are left after crashes, first those of the tree `next`. Returns whether a job got a slot.
pub(crate) async fn sweep(inner: &Inner, mut next: i64) -> Result<bool> {
    let mut slot_given = false;
    for _ in 0..TREES_MAX {
        let tree = JobTree { number: next, marked: true, ..JobTree::new(inner.manual_now()) };
        slot_given |= finish(inner, tree).await;
        let rows = inner.pool.query(&NEXT_MARKED_TREE, &[]).await?;
        let Some(row) = rows.first() else { break };
        next = row.try_get("tree")?;
    }
    Ok(slot_given)
}
