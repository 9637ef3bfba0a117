//! Ends jobs with everything below them.
//!
//! The write that ends a job marks it if it may have children. Statements of a bounded size then work the marks off, level by
//! level, each a transaction of its own unless the caller has one open. A sweep works off what a crash has left.

use std::collections::HashMap;

use redrive_core::{JobId, State, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::enqueue::Query;
use crate::error::{Sorted, explain, nothing};
use crate::found::keys;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;
use crate::turns::{Left, pass_on};

const ASKED: &str = concat!(include_str!("../sql/cancel_asked.sql"), include_str!("../sql/cancel.sql"));
const BRANCHES: &str = concat!(include_str!("../sql/cancel_branches.sql"), include_str!("../sql/cancel.sql"));
const BELOW: &str = concat!(include_str!("../sql/cancel_below.sql"), include_str!("../sql/cancel.sql"));

/// Jobs that one statement ends at most, and marks that it takes.
const JOBS_MAX: i64 = 1_000;
/// How often the work below a job is tried before it is left to a sweep.
const TRIES: u32 = 3;
/// Trees that one sweep works off at most.
const TREES_MAX: usize = 100;

/// A fan-out: the parent and the place of its step.
pub(crate) type Branch = (Uuid, i32);

/// What one call ends, with everything below it.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The number under which its marks are stored.
    pub(crate) number: i64,
    now: Option<i64>,
    /// Whether it has marks that are not worked off.
    pub(crate) marked: bool,
    /// Whether the end of a running job was requested.
    pub(crate) requested: bool,
    /// The places in partitions that its jobs have left, in this order.
    pub(crate) left: Vec<Left>,
}

impl Tree {
    pub(crate) fn new(now: Option<i64>) -> Self {
        Self { number: fastrand::i64(..), now, marked: false, requested: false, left: Vec::new() }
    }

    /// Ends these jobs, without what is below them; brings back the states they were in.
    pub(crate) async fn cancel(
        &mut self,
        to: &(impl Query + Sync),
        ids: &[JobId],
    ) -> Result<HashMap<Uuid, State>, StoreError> {
        let rows = self.run(to, ASKED, &[(&keys(ids), Type::UUID_ARRAY)]).await?;
        self.note(&rows)?;
        found(&rows).map(row::id_and_state).collect()
    }

    /// Ends the attached children of these fan-outs, without what is below them.
    pub(crate) async fn end_branches(
        &mut self,
        to: &(impl Query + Sync),
        branches: &[Branch],
    ) -> Result<(), StoreError> {
        let (parents, branches): (Vec<Uuid>, Vec<i32>) = branches.iter().copied().unzip();
        let parameters: [Parameter<'_>; 3] =
            [(&parents, Type::UUID_ARRAY), (&branches, Type::INT4_ARRAY), (&JOBS_MAX, Type::INT8)];
        let mut more = true;
        while more {
            let rows = self.run(to, BRANCHES, &parameters).await?;
            more = self.note(&rows)?;
        }
        Ok(())
    }

    /// Ends everything below the jobs that were marked.
    pub(crate) async fn end_below(&mut self, to: &(impl Query + Sync)) -> Result<(), StoreError> {
        while self.marked {
            let rows = self.run(to, BELOW, &[(&JOBS_MAX, Type::INT8)]).await?;
            self.marked = false;
            let more = self.note(&rows)?;
            self.marked |= more;
        }
        Ok(())
    }

    async fn run(
        &self,
        to: &(impl Query + Sync),
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut all: Vec<Parameter<'_>> = vec![(&self.now, Type::INT8), (&self.number, Type::INT8)];
        all.extend_from_slice(parameters);
        to.typed(sql, &all).await
    }

    /// Takes note of what a statement has done; says whether there is more of the same to do.
    fn note(&mut self, rows: &[Row]) -> Result<bool, StoreError> {
        let first = rows.first().ok_or_else(nothing)?;
        self.marked |= first.try_get::<_, bool>("marked").sorted()?;
        for row in found(rows) {
            let (_, state) = row::id_and_state(row)?;
            self.requested |= state == State::Running;
            if !state.is_final() && state != State::Running {
                self.left.extend(vacated(row)?);
            }
        }
        first.try_get("more").sorted()
    }
}

/// The rows with jobs: a statement that found none answers with a row that has none.
fn found(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| matches!(row.try_get::<_, Option<Uuid>>("id"), Ok(Some(_)) | Err(_)))
}

/// The place of a job in its partition, if it has one, as it leaves it.
fn vacated(row: &Row) -> Result<Option<Left>, StoreError> {
    let Some(partition) = row.try_get("partition").sorted()? else { return Ok(None) };
    Ok(Some(Left {
        partition,
        id: row.try_get("id").sorted()?,
        strict: row.try_get("strict").sorted()?,
        ended: true,
        ran: false,
        was_claimable: row.try_get("due").sorted()?,
        is_claimable: false,
        added: Vec::new(),
    }))
}

/// Ends what is below the jobs of a tree whose first write is committed, wakes the workers of those that run, and passes the
/// places on that were left. Says whether someone took one. What fails here is made up for by a sweep.
pub(crate) async fn finish(inner: &Inner, mut tree: Tree) -> bool {
    if tree.requested {
        inner.request_cancels();
        tree.requested = false;
    }
    let mut tries = 1;
    while let Err(error) = tree.end_below(&*inner.pool).await {
        if tries == TRIES || !matches!(error, StoreError::Busy(_)) {
            tracing::warn!(
                error = explain(&error),
                "jobs go on below one that ended; the next sweep ends them"
            );
            break;
        }
        tries += 1;
    }
    settle_down(inner, &tree).await
}

/// Does what is left to do once a tree has ended: wakes workers, and passes places on.
pub(crate) async fn settle_down(inner: &Inner, tree: &Tree) -> bool {
    if tree.requested {
        inner.request_cancels();
    }
    let mut passed_on = false;
    for left in tree.left.chunks(JOBS_MAX as usize) {
        passed_on |= pass_on(inner, left).await;
    }
    passed_on
}

/// Ends the attached children of these fan-outs with everything below them. Says whether someone took a place that they left.
pub(crate) async fn end_branches(inner: &Inner, branches: &[Branch]) -> Result<bool, StoreError> {
    let mut tree = Tree::new(inner.manual_now());
    tree.end_branches(&*inner.pool, branches).await?;
    Ok(finish(inner, tree).await)
}

/// Works off the marks that crashes have left, first those of the tree `next`. Says whether someone took a place in a partition.
pub(crate) async fn sweep(inner: &Inner, mut next: i64) -> Result<bool, StoreError> {
    let mut passed_on = false;
    for _ in 0..TREES_MAX {
        let tree = Tree { number: next, marked: true, ..Tree::new(inner.manual_now()) };
        passed_on |= finish(inner, tree).await;
        let rows = inner.pool.query(include_str!("../sql/closing_next.sql"), &[]).await?;
        let Some(row) = rows.first() else { break };
        next = row.try_get("tree").sorted()?;
    }
    Ok(passed_on)
}
