//! The limits of queues and partition keys, and the slots under them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use redrive_core::capacity::{Admission, Candidate, Capacity, RecentStarts};
use redrive_core::queue_limits::{Limits, QUEUE_LIMITS, Rate};
use redrive_core::{JobId, Order, Queue, QueueLimits, State, Timestamp};
use redrive_sql::Statement;
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use crate::error::Result;
use crate::records::scan;
use crate::sql::LIMITS;
use crate::steps::resume_one;
use crate::writer::Tx;

static COUNT_IN_LANE: Statement = LIMITS.statement("count_in_lane");
static COUNT_RUNNING_IN_PARTITION: Statement = LIMITS.statement("count_running_in_partition");
static COUNT_CLAIMABLE_IN_PARTITION: Statement = LIMITS.statement("count_claimable_in_partition");
static FIRST_IN_ORDER: Statement = LIMITS.statement("first_in_order");
static NEXT_FOR_SLOT: Statement = LIMITS.statement("next_for_slot");
static INSERT_STARTS: Statement = LIMITS.statement("insert_starts");
static RECENT_STARTS: Statement = LIMITS.statement("recent_starts");
static DELETE_OLD_STARTS: Statement = LIMITS.statement("delete_old_starts");

/// The limits of all queues that have some, as the writer last read them. No other process writes, so they are current.
#[derive(Debug, Default)]
pub(crate) struct CachedLimits(BTreeMap<String, QueueLimits>);

impl CachedLimits {
    /// The limits of a queue, if it has any.
    pub(crate) fn get(&self, queue: &Queue) -> Option<&QueueLimits> {
        if self.0.is_empty() { None } else { self.0.get(queue.as_str()) }
    }

    /// Whether no queue has limits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the limits from the file.
    pub(crate) fn reload(&mut self, conn: &Connection) -> Result<()> {
        let records = scan(conn, QUEUE_LIMITS, "", usize::MAX >> 1)?;
        self.0 = records.into_iter().map(|record| (record.id, QueueLimits::read(&record.value))).collect();
        Ok(())
    }
}

/// The free capacity during one claim. It counts each queue and partition once, when the claim first reads one of its
/// jobs.
#[derive(Default)]
pub(crate) struct ClaimCapacity(Capacity);

impl ClaimCapacity {
    /// Decides whether a due job may start. A job that may start counts from then on.
    pub(crate) fn admit(
        &mut self,
        tx: &Tx<'_>,
        queue: &Queue,
        candidate: Candidate<'_>,
    ) -> Result<Admission> {
        if tx.limits.get(queue).is_none() && candidate.partition.is_none() {
            return Ok(Admission::Take);
        }
        self.count_queue(tx, queue)?;
        if let Some(partition) = candidate.partition {
            let limits = self.0.limits_of(queue).per_key;
            self.count(tx, partition, limits, || count_running(tx, partition))?;
            if candidate.strict {
                let first = first_in_order(tx, partition)?;
                self.0.first.extend(first.map(|first| (partition.to_owned(), first.id)));
            }
        }
        Ok(self.0.admit(queue, candidate))
    }

    /// How many more jobs of a queue may start now.
    pub(crate) fn free_queue_slots(&mut self, tx: &Tx<'_>, queue: &Queue) -> Result<u64> {
        self.count_queue(tx, queue)?;
        Ok(self.0.free_queue_slots(queue))
    }

    /// When the rate limit of a full queue allows another start.
    pub(crate) fn queue_free_at(&self, queue: &Queue) -> Option<Timestamp> {
        self.0.queue_free_at(queue)
    }

    /// Writes the starts of this claim for the rate limits.
    pub(crate) fn record_starts(&self, tx: &Tx<'_>) -> Result<()> {
        for (scope, starts) in self.0.starts.iter().filter(|(_, starts)| starts.added > 0) {
            let mut statement = tx.conn.prepare_cached(&INSERT_STARTS)?;
            statement.execute((scope, tx.now.as_ms(), starts.added as i64))?;
        }
        Ok(())
    }

    fn count_queue(&mut self, tx: &Tx<'_>, queue: &Queue) -> Result<()> {
        let Some(limits) = tx.limits.get(queue).copied() else { return Ok(()) };
        self.0.now = tx.now;
        self.0.limits.insert(queue.as_str().to_owned(), limits);
        self.count(tx, queue.as_str(), limits.queue_wide(), || count_running_in_queue(tx, queue))
    }

    /// Counts the running jobs and recent starts that `limits` apply to, unless they were counted before.
    fn count(
        &mut self,
        tx: &Tx<'_>,
        scope: &str,
        limits: Limits,
        count_running: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        if limits.concurrency.is_some() && !self.0.running.contains_key(scope) {
            self.0.running.insert(scope.to_owned(), count_running()?);
        }
        if let Some(rate) = limits.rate
            && !self.0.starts.contains_key(scope)
        {
            let before = recent_starts(tx, scope, rate)?;
            self.0.starts.insert(scope.to_owned(), RecentStarts { before, added: 0 });
        }
        Ok(())
    }
}

/// The starts within the interval of a rate limit. Deletes those before it.
fn recent_starts(tx: &Tx<'_>, scope: &str, rate: Rate) -> Result<Vec<(Timestamp, u64)>> {
    let since = rate.since(tx.now).as_ms();
    tx.conn.prepare_cached(&DELETE_OLD_STARTS)?.execute((scope, since))?;
    let mut statement = tx.conn.prepare_cached(&RECENT_STARTS)?;
    let rows = statement.query_map((scope, since), |row| {
        Ok((Timestamp::from_ms(row.get(0)?), row.get::<_, i64>(1)?.unsigned_abs()))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The number of running jobs of a queue: the stored counts, and what this transaction has changed.
fn count_running_in_queue(tx: &Tx<'_>, queue: &Queue) -> Result<u64> {
    let known = tx.lanes.snapshot();
    let mut running = 0;
    for lane in known.iter().filter(|lane| lane.queue == *queue) {
        let mut statement = tx.conn.prepare_cached(&COUNT_IN_LANE)?;
        let stored = statement.query_row((lane.number, State::Running.code()), |row| row.get(0));
        running += stored.optional()?.unwrap_or(0_i64) + tx.counts.difference(lane.number, State::Running);
    }
    Ok(u64::try_from(running).unwrap_or(0))
}

fn count_running(tx: &Tx<'_>, partition: &str) -> Result<u64> {
    let mut statement = tx.conn.prepare_cached(&COUNT_RUNNING_IN_PARTITION)?;
    Ok(statement.query_row([partition], |row| row.get::<_, i64>(0))?.unsigned_abs())
}

/// Resumes waiting jobs of a partition for which a slot is free, after one of its jobs has freed a slot.
pub(crate) fn offer_free_slots(tx: &mut Tx<'_>, lane: i64, partition: Option<&str>) -> Result<()> {
    let Some(partition) = partition else { return Ok(()) };
    if let Some(FirstInOrder { id, waits_for_slot: true }) = first_in_order(tx, partition)? {
        resume_one(tx, id)?;
    }
    while let Some(next) = next_for_slot(tx, lane, partition)? {
        if !resume_one(tx, next)? {
            break;
        }
    }
    Ok(())
}

/// Whether a job that waits for a slot can have one. Jobs that are claimable already come first; no more of them are
/// counted than there are slots.
pub(crate) fn has_free_slot(
    tx: &Tx<'_>,
    id: JobId,
    lane: i64,
    partition: Option<&str>,
    strict: bool,
) -> Result<bool> {
    let Some(partition) = partition else { return Ok(true) };
    if strict && first_in_order(tx, partition)?.is_none_or(|first| first.id != id) {
        return Ok(false);
    }
    let known = tx.lanes.snapshot();
    let limits = known.get(lane).and_then(|lane| tx.limits.get(&lane.queue));
    let per_key = limits.map(|limits| limits.per_key).unwrap_or_default();
    let Some(slots) = per_key.concurrency else { return Ok(true) };
    let running = count_running(tx, partition)?;
    if strict {
        return Ok(per_key.may_resume(Order::Strict, running, 0));
    }
    let mut statement = tx.conn.prepare_cached(&COUNT_CLAIMABLE_IN_PARTITION)?;
    let claimable: i64 =
        statement.query_row((partition, tx.now.as_ms(), i64::from(slots)), |row| row.get(0))?;
    Ok(per_key.may_resume(Order::Any, running, claimable.unsigned_abs()))
}

/// The first job in strict order of a partition that has not ended.
struct FirstInOrder {
    id: JobId,
    waits_for_slot: bool,
}

fn first_in_order(tx: &Tx<'_>, partition: &str) -> Result<Option<FirstInOrder>> {
    let mut statement = tx.conn.prepare_cached(&FIRST_IN_ORDER)?;
    let first = statement.query_row([partition], |row| {
        Ok(FirstInOrder { id: JobId(Uuid::from_bytes(row.get(0)?)), waits_for_slot: row.get(1)? })
    });
    Ok(first.optional()?)
}

/// The job without strict order that gets the next free slot of a partition: by priority, then due time, then id.
fn next_for_slot(tx: &Tx<'_>, lane: i64, partition: &str) -> Result<Option<JobId>> {
    let known = tx.lanes.snapshot();
    let Some(queue) = known.get(lane).map(|lane| &lane.queue) else { return Ok(None) };
    let mut lanes: Vec<_> = known.iter().filter(|lane| lane.queue == *queue).collect();
    lanes.sort_by_key(|lane| Reverse(lane.priority));
    let mut statement = tx.conn.prepare_cached(&NEXT_FOR_SLOT)?;
    for peers in lanes.chunk_by(|a, b| a.priority == b.priority) {
        let mut first: Option<(i64, JobId)> = None;
        for lane in peers {
            let found = statement.query_row((partition, lane.number), |row| {
                Ok((row.get(0)?, JobId(Uuid::from_bytes(row.get(1)?))))
            });
            first = [first, found.optional()?].into_iter().flatten().min();
        }
        if let Some((_, id)) = first {
            return Ok(Some(id));
        }
    }
    Ok(None)
}
