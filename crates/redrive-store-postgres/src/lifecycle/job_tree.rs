//! Ends jobs with all their descendants.
//!
//! The write that ends a job marks it if it may have children. Statements of bounded size then process the marks, level by level,
//! each in a transaction of its own unless the caller has one open. A sweep processes the marks that are left after a crash.

use std::collections::{BTreeSet, HashMap};

use redrive_core::State;
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::limits::slots::give_slots;
use crate::open::Inner;
use crate::pool::{Executor, Parameter, Pool};
use crate::row;
use crate::sql;

static NEXT_MARKED_TREE: Statement = sql::OPERATE.statement("next_marked_tree");

static LOCK_RUNNING: Statement = sql::OPERATE.statement("lock_running");
static CANCEL: Statement = sql::OPERATE.statement("cancel");
static NEXT_OF_BRANCHES: Statement = sql::OPERATE.statement("next_of_branches");
static NEXT_DESCENDANTS: Statement = sql::OPERATE.statement("next_descendants");
static REMOVE_MARKS: Statement = sql::OPERATE.statement("remove_marks");

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
    /// The partitions of its jobs, which may have free slots now.
    pub(crate) vacated: BTreeSet<String>,
}

impl JobTree {
    pub(crate) fn new(now: Option<i64>) -> Self {
        Self { number: fastrand::i64(..), now, marked: false, requested: false, vacated: BTreeSet::new() }
    }

    /// Cancels these jobs in a transaction, without their descendants. Returns their previous states.
    pub(crate) async fn cancel_in(&mut self, client: &Client, ids: &[Uuid]) -> Result<HashMap<Uuid, State>> {
        let mut states = HashMap::with_capacity(ids.len());
        let mut left = ids.to_vec();
        // Each try has a new snapshot. A job that moved meanwhile is elsewhere in it.
        while !left.is_empty() {
            // The next statement sees what the workers of these jobs have written before.
            let locked = client.run(&LOCK_RUNNING, &[(&left, Type::UUID_ARRAY)]).await?;
            let claims: Vec<i64> = locked.iter().map(|row| row.try_get("claim")).collect::<Result<_, _>>()?;
            let parts: Vec<i64> = locked.iter().map(|row| row.try_get("part")).collect::<Result<_, _>>()?;
            let parameters: [Parameter<'_>; 5] = [
                (&self.now, Type::INT8),
                (&self.number, Type::INT8),
                (&left, Type::UUID_ARRAY),
                (&claims, Type::INT8_ARRAY),
                (&parts, Type::INT8_ARRAY),
            ];
            let rows = client.run(&CANCEL, &parameters).await?;
            left.clear();
            for row in job_rows(&rows) {
                let (id, state) = row::id_and_state(row)?;
                if row.try_get("moved")? {
                    left.push(id);
                } else {
                    states.insert(id, state);
                }
            }
            self.record(&rows)?;
        }
        Ok(states)
    }

    /// Cancels the attached children of these fan-outs, without the descendants of the children.
    async fn cancel_branches(&mut self, pool: &Pool, branches: &[Branch]) -> Result<()> {
        let (parents, branches): (Vec<Uuid>, Vec<i32>) = branches.iter().copied().unzip();
        loop {
            let more = pool.transaction(async |client| {
                let parameters: [Parameter<'_>; 3] =
                    [(&parents, Type::UUID_ARRAY), (&branches, Type::INT4_ARRAY), (&JOBS_MAX, Type::INT8)];
                let rows = client.run(&NEXT_OF_BRANCHES, &parameters).await?;
                let ids: Vec<Uuid> = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
                self.cancel_in(client, &ids).await?;
                Ok(ids.len() as i64 >= JOBS_MAX)
            });
            if !more.await? {
                return Ok(());
            }
        }
    }

    /// Cancels all descendants of the marked jobs, each level in transactions of its own.
    async fn cancel_descendants(&mut self, pool: &Pool) -> Result<()> {
        while self.marked {
            pool.transaction(async |client| self.cancel_next_descendants(client).await).await?;
        }
        Ok(())
    }

    /// Cancels all descendants of the marked jobs in a transaction of the caller.
    pub(crate) async fn cancel_descendants_in(&mut self, client: &Client) -> Result<()> {
        while self.marked {
            self.cancel_next_descendants(client).await?;
        }
        Ok(())
    }

    async fn cancel_next_descendants(&mut self, client: &Client) -> Result<()> {
        let parameters: [Parameter<'_>; 2] = [(&self.number, Type::INT8), (&JOBS_MAX, Type::INT8)];
        let rows = client.run(&NEXT_DESCENDANTS, &parameters).await?;
        let row = rows.first().ok_or_else(Error::no_row)?;
        let ids: Vec<Uuid> = row.try_get::<_, Option<_>>("ids")?.unwrap_or_default();
        let marks: Vec<i64> = row.try_get::<_, Option<_>>("marks")?.unwrap_or_default();
        let (more_children, more_marks): (bool, bool) =
            (row.try_get("more_children")?, row.try_get("more_marks")?);
        self.marked = more_children || more_marks;
        self.cancel_in(client, &ids).await?;
        if !more_children {
            let parameters: [Parameter<'_>; 2] = [(&self.number, Type::INT8), (&marks, Type::INT8_ARRAY)];
            client.run(&REMOVE_MARKS, &parameters).await?;
        }
        Ok(())
    }

    /// Records the rows of the statement `cancel`.
    fn record(&mut self, rows: &[Row]) -> Result<()> {
        let first = rows.first().ok_or_else(Error::no_row)?;
        self.marked |= first.try_get::<_, bool>("marked")?;
        for row in job_rows(rows) {
            let (_, state) = row::id_and_state(row)?;
            if row.try_get("moved")? {
                continue;
            }
            self.requested |= state == State::Running;
            if !state.is_final() && state != State::Running {
                self.vacated.extend(row.try_get::<_, Option<String>>("partition")?);
            }
        }
        Ok(())
    }
}

/// The rows that have a job. A statement that found no job returns one row without a job.
fn job_rows(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| matches!(row.try_get::<_, Option<Uuid>>("id"), Ok(Some(_)) | Err(_)))
}

/// Finishes a tree whose first write is committed: cancels the remaining descendants, wakes the workers of those that run, and gives
/// the vacated slots to other jobs. Returns whether another job got a slot. If this fails, a sweep does it later.
pub(crate) async fn finish(inner: &Inner, mut tree: JobTree) -> bool {
    if tree.requested {
        inner.announce_cancels();
        tree.requested = false;
    }
    let mut tries = 1;
    while let Err(error) = tree.cancel_descendants(&inner.pool).await {
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
    !tree.vacated.is_empty() && give_slots(inner, &tree.vacated).await
}

/// Cancels the attached children of these fan-outs with all their descendants. Returns whether another job got a slot.
pub(crate) async fn cancel_branches(inner: &Inner, branches: &[Branch]) -> Result<bool> {
    let mut tree = JobTree::new(inner.manual_now());
    tree.cancel_branches(&inner.pool, branches).await?;
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
