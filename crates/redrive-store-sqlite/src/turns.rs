//! Whether there is room for a job in its queue and its partition, and whose turn it is.

use redrive_core::quota::{Bounds, Rate};
use redrive_core::rooms::{Admission, Candidate, Rooms, Starts};
use redrive_core::{Job, JobId, Order, Queue, State, StoreError, Timestamp};
use rusqlite::{OptionalExtension, ToSql};
use uuid::Uuid;

use crate::error::Sorted;
use crate::resume::resume_one;
use crate::writer::Tx;

/// What a claim decides by. Each queue and partition is counted once, when the claim first meets it.
#[derive(Default)]
pub(crate) struct Counted(Rooms);

impl Counted {
    /// Decides about a due job, which counts from then on if it is taken.
    pub(crate) fn admit(
        &mut self,
        tx: &Tx<'_>,
        job: &Job,
        scope: Option<&str>,
    ) -> Result<Admission, StoreError> {
        if tx.quotas.get(&job.queue).is_none() && scope.is_none() {
            return Ok(Admission::Take);
        }
        self.count_queue(tx, &job.queue)?;
        let strict = job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict);
        if let Some(scope) = scope {
            self.count(tx, scope, self.0.quota(&job.queue).per_key, || {
                count(tx, include_str!("../sql/turn_running.sql"), &[&scope])
            })?;
            if strict {
                self.0.first.extend(first(tx, scope)?.map(|(first, _)| (scope.to_owned(), first)));
            }
        }
        Ok(self.0.admit(&job.queue, Candidate { id: job.id, partition: scope, strict }))
    }

    /// How many more of a queue may start now.
    pub(crate) fn queue_room(&mut self, tx: &Tx<'_>, queue: &Queue) -> Result<u64, StoreError> {
        self.count_queue(tx, queue)?;
        Ok(self.0.queue_room(queue))
    }

    /// When the rate of a queue that has no room allows for another start.
    pub(crate) fn queue_frees(&self, queue: &Queue) -> Option<Timestamp> {
        self.0.queue_frees(queue)
    }

    /// Writes down the starts that rates count.
    pub(crate) fn write(&self, tx: &Tx<'_>) -> Result<(), StoreError> {
        for (scope, starts) in self.0.starts.iter().filter(|(_, starts)| starts.added > 0) {
            let mut statement = tx.conn.prepare_cached(include_str!("../sql/claim_start.sql")).sorted()?;
            statement.execute((scope, tx.now.as_ms(), starts.added as i64)).sorted()?;
        }
        Ok(())
    }

    fn count_queue(&mut self, tx: &Tx<'_>, queue: &Queue) -> Result<(), StoreError> {
        let Some(quota) = tx.quotas.get(queue).copied() else { return Ok(()) };
        self.0.now = tx.now;
        self.0.quotas.insert(queue.as_str().to_owned(), quota);
        self.count(tx, queue.as_str(), quota.whole(), || running_in(tx, queue))
    }

    /// Counts what bounds are about, unless that was done before.
    fn count(
        &mut self,
        tx: &Tx<'_>,
        scope: &str,
        bounds: Bounds,
        running: impl FnOnce() -> Result<u64, StoreError>,
    ) -> Result<(), StoreError> {
        if bounds.concurrency.is_some() && !self.0.running.contains_key(scope) {
            self.0.running.insert(scope.to_owned(), running()?);
        }
        if let Some(rate) = bounds.rate
            && !self.0.starts.contains_key(scope)
        {
            self.0.starts.insert(scope.to_owned(), Starts { before: starts(tx, scope, rate)?, added: 0 });
        }
        Ok(())
    }
}

/// Starts within a rate's span; older ones are forgotten.
fn starts(tx: &Tx<'_>, scope: &str, rate: Rate) -> Result<Vec<(Timestamp, u64)>, StoreError> {
    let since = rate.since(tx.now).as_ms();
    let mut over = tx.conn.prepare_cached(include_str!("../sql/claim_starts_over.sql")).sorted()?;
    over.execute((scope, since)).sorted()?;
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/claim_starts.sql")).sorted()?;
    let rows = statement.query_map((scope, since), |row| {
        Ok((Timestamp::from_ms(row.get(0)?), row.get::<_, i64>(1)?.unsigned_abs()))
    });
    rows.sorted()?.collect::<rusqlite::Result<_>>().sorted()
}

/// Makes those due whose turn it is in a partition, after one of its jobs has left its place.
pub(crate) fn pass_on(tx: &mut Tx<'_>, lane: i64, partition: Option<&str>) -> Result<(), StoreError> {
    let Some(partition) = partition else { return Ok(()) };
    if let Some((first, true)) = first(tx, partition)? {
        resume_one(tx, first)?;
    }
    while let Some(next) = next(tx, lane, partition)? {
        if !resume_one(tx, next)? {
            break;
        }
    }
    Ok(())
}

/// Whether it is a job's turn. No more of the others is counted than there could be slots.
pub(crate) fn is_its_turn(
    tx: &Tx<'_>,
    id: JobId,
    lane: i64,
    partition: Option<&str>,
    strict: bool,
) -> Result<bool, StoreError> {
    let Some(partition) = partition else { return Ok(true) };
    if strict && !comes_first(tx, partition, id)? {
        return Ok(false);
    }
    let known = tx.lanes.snapshot();
    let quota = known.get(lane).and_then(|lane| tx.quotas.get(&lane.queue));
    let per_key = quota.map(|quota| quota.per_key).unwrap_or_default();
    let Some(slots) = per_key.concurrency else { return Ok(true) };
    let running = count(tx, include_str!("../sql/turn_running.sql"), &[&partition])?;
    let (order, claimable) = if strict {
        (Order::Strict, 0)
    } else {
        let (now, most) = (tx.now.as_ms(), i64::from(slots));
        (Order::Any, count(tx, include_str!("../sql/turn_claimable.sql"), &[&partition, &now, &most])?)
    };
    Ok(per_key.lets_go_on(order, running, claimable))
}

fn comes_first(tx: &Tx<'_>, partition: &str, id: JobId) -> Result<bool, StoreError> {
    Ok(first(tx, partition)?.is_some_and(|(first, _)| first == id))
}

/// The first of the jobs in strict order that have not ended, and whether it waits for its turn.
fn first(tx: &Tx<'_>, partition: &str) -> Result<Option<(JobId, bool)>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/turn_first.sql")).sorted()?;
    let found =
        statement.query_row([partition], |row| Ok((JobId(Uuid::from_bytes(row.get(0)?)), row.get(1)?)));
    found.optional().sorted()
}

/// The next of the others that wait for their turn: by priority, then by due time, then by id.
fn next(tx: &Tx<'_>, lane: i64, partition: &str) -> Result<Option<JobId>, StoreError> {
    let known = tx.lanes.snapshot();
    let Some(queue) = known.get(lane).map(|lane| &lane.queue) else { return Ok(None) };
    let mut lanes: Vec<_> = known.iter().filter(|lane| lane.queue == *queue).collect();
    lanes.sort_by_key(|lane| std::cmp::Reverse(lane.priority));
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/turn_next.sql")).sorted()?;
    for peers in lanes.chunk_by(|a, b| a.priority == b.priority) {
        let mut first: Option<(i64, JobId)> = None;
        for lane in peers {
            let found = statement.query_row((partition, lane.number), |row| {
                Ok((row.get(0)?, JobId(Uuid::from_bytes(row.get(1)?))))
            });
            first = [first, found.optional().sorted()?].into_iter().flatten().min();
        }
        if let Some((_, id)) = first {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// How many jobs of a queue run: the counts as they were, and what this transaction has changed.
fn running_in(tx: &Tx<'_>, queue: &Queue) -> Result<u64, StoreError> {
    let known = tx.lanes.snapshot();
    let mut running = 0;
    for lane in known.iter().filter(|lane| lane.queue == *queue) {
        let mut statement = tx.conn.prepare_cached(include_str!("../sql/claim_running.sql")).sorted()?;
        let counted = statement.query_row((lane.number, State::Running.code()), |row| row.get(0));
        running +=
            counted.optional().sorted()?.unwrap_or(0_i64) + tx.tally.change(lane.number, State::Running);
    }
    Ok(u64::try_from(running).unwrap_or(0))
}

fn count(tx: &Tx<'_>, sql: &str, parameters: &[&dyn ToSql]) -> Result<u64, StoreError> {
    let mut statement = tx.conn.prepare_cached(sql).sorted()?;
    let count: i64 = statement.query_row(parameters, |row| row.get(0)).sorted()?;
    Ok(count.unsigned_abs())
}
