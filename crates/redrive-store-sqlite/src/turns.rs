//! Whether there is room for a job in its queue and its partition, and whose turn it is.

use std::collections::HashMap;

use redrive_core::quota::{Bounds, Rate};
use redrive_core::{Job, JobId, Order, Queue, State, StoreError, Timestamp};
use rusqlite::{OptionalExtension, ToSql};
use uuid::Uuid;

use crate::error::Sorted;
use crate::quotas::scope;
use crate::resume::resume_one;
use crate::writer::Tx;

/// What a claim does with a due job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Take,
    /// Its queue has no room.
    PassOver,
    /// Its partition has none, or another comes first.
    SetAside,
    /// Its partition's rate is used up until then.
    PutOff(Timestamp),
}

/// What one claim has taken so far, by queue and by partition. It is counted once and kept up from there.
#[derive(Default)]
pub(crate) struct Rooms {
    running: HashMap<String, u64>,
    starts: HashMap<String, Starts>,
}

/// Starts within a rate's span, and how many this claim adds.
struct Starts {
    before: Vec<(Timestamp, u64)>,
    added: u64,
}

impl Rooms {
    /// Decides about a due job, which counts from then on if it is taken.
    pub(crate) fn admit(&mut self, tx: &Tx<'_>, job: &Job) -> Result<Admission, StoreError> {
        let quota = tx.quotas.get(&job.queue).copied().unwrap_or_default();
        if quota == Default::default() && job.partition.is_none() {
            return Ok(Admission::Take);
        }
        if self.queue_room(tx, &job.queue)? == 0 {
            return Ok(Admission::PassOver);
        }
        let Some(partition) = &job.partition else {
            self.take(tx, job.queue.as_str(), quota.whole())?;
            return Ok(Admission::Take);
        };
        let scope = scope(&job.queue, partition);
        if (partition.order == Order::Strict && !comes_first(tx, &scope, job.id)?)
            || self.free_slots(tx, &scope, quota.per_key)? == 0
        {
            return Ok(Admission::SetAside);
        }
        if let Some(rate) = quota.per_key.rate
            && let Some(at) = self.starts(tx, &scope, rate)?.frees(rate)
        {
            return Ok(Admission::PutOff(at));
        }
        self.take(tx, job.queue.as_str(), quota.whole())?;
        self.take(tx, &scope, quota.per_key)?;
        Ok(Admission::Take)
    }

    /// How many more of a queue may start now.
    pub(crate) fn queue_room(&mut self, tx: &Tx<'_>, queue: &Queue) -> Result<u64, StoreError> {
        let Some(quota) = tx.quotas.get(queue) else { return Ok(u64::MAX) };
        let (whole, scope) = (quota.whole(), queue.as_str());
        let running = match whole.concurrency {
            Some(_) => self.running(scope, || running_in(tx, queue))?,
            None => 0,
        };
        let started = match whole.rate {
            Some(rate) => self.starts(tx, scope, rate)?.count(),
            None => 0,
        };
        Ok(whole.room(running, started))
    }

    /// When the rate of a queue that has no room allows for another start.
    pub(crate) fn queue_frees(
        &mut self,
        tx: &Tx<'_>,
        queue: &Queue,
    ) -> Result<Option<Timestamp>, StoreError> {
        let Some(rate) = tx.quotas.get(queue).and_then(|quota| quota.rate) else { return Ok(None) };
        Ok(self.starts(tx, queue.as_str(), rate)?.frees(rate))
    }

    /// Writes down the starts that rates count.
    pub(crate) fn write(&self, tx: &Tx<'_>) -> Result<(), StoreError> {
        for (scope, starts) in self.starts.iter().filter(|(_, starts)| starts.added > 0) {
            let mut statement = tx.conn.prepare_cached(include_str!("../sql/claim_start.sql")).sorted()?;
            statement.execute((scope, tx.now.as_ms(), starts.added as i64)).sorted()?;
        }
        Ok(())
    }

    fn free_slots(&mut self, tx: &Tx<'_>, scope: &str, per_key: Bounds) -> Result<u64, StoreError> {
        let Some(_) = per_key.concurrency else { return Ok(u64::MAX) };
        let running =
            self.running(scope, || count(tx, include_str!("../sql/turn_running.sql"), &[&scope]))?;
        Ok(Bounds { rate: None, ..per_key }.room(running, 0))
    }

    fn running(
        &mut self,
        scope: &str,
        count: impl FnOnce() -> Result<u64, StoreError>,
    ) -> Result<u64, StoreError> {
        if let Some(running) = self.running.get(scope) {
            return Ok(*running);
        }
        Ok(*self.running.entry(scope.to_owned()).or_insert(count()?))
    }

    fn starts(&mut self, tx: &Tx<'_>, scope: &str, rate: Rate) -> Result<&mut Starts, StoreError> {
        if !self.starts.contains_key(scope) {
            let since = rate.since(tx.now).as_ms();
            let mut over = tx.conn.prepare_cached(include_str!("../sql/claim_starts_over.sql")).sorted()?;
            over.execute((scope, since)).sorted()?;
            let mut statement = tx.conn.prepare_cached(include_str!("../sql/claim_starts.sql")).sorted()?;
            let rows = statement.query_map((scope, since), |row| {
                Ok((Timestamp::from_ms(row.get(0)?), row.get::<_, i64>(1)?.unsigned_abs()))
            });
            let before = rows.sorted()?.collect::<rusqlite::Result<_>>().sorted()?;
            self.starts.insert(scope.to_owned(), Starts { before, added: 0 });
        }
        self.starts.get_mut(scope).ok_or_else(|| StoreError::Failed("starts were lost".into()))
    }

    fn take(&mut self, tx: &Tx<'_>, scope: &str, bounds: Bounds) -> Result<(), StoreError> {
        if let Some(running) = self.running.get_mut(scope) {
            *running += 1;
        }
        if let Some(rate) = bounds.rate {
            let now = tx.now;
            let starts = self.starts(tx, scope, rate)?;
            starts.added += 1;
            match starts.before.last_mut() {
                Some((at, jobs)) if *at == now => *jobs += 1,
                Some(_) | None => starts.before.push((now, 1)),
            }
        }
        Ok(())
    }
}

impl Starts {
    fn count(&self) -> u64 {
        self.before.iter().map(|(_, jobs)| jobs).sum()
    }

    /// When a rate that is used up allows for another start.
    fn frees(&self, rate: Rate) -> Option<Timestamp> {
        let over = self.count().checked_sub(u64::from(rate.count))?;
        let mut passed = 0;
        let mut starts = self.before.clone();
        starts.sort_unstable();
        starts.into_iter().find_map(|(at, jobs)| {
            passed += jobs;
            (passed > over).then(|| at.after(rate.per()))
        })
    }
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

/// The partition of a job, if it has one.
pub(crate) fn partition_of(tx: &Tx<'_>, id: JobId) -> Result<Option<String>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/partition.sql")).sorted()?;
    Ok(statement.query_row([id.0.as_bytes()], |row| row.get(0)).optional().sorted()?.flatten())
}

/// Whether it is a job's turn: it comes first, and there is room beside those that run or could at once.
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
    if per_key.concurrency.is_none() {
        return Ok(true);
    }
    let running = count(tx, include_str!("../sql/turn_running.sql"), &[&partition])?;
    let now = tx.now.as_ms();
    let claimable = count(tx, include_str!("../sql/turn_claimable.sql"), &[&partition, &now])?;
    Ok(Bounds { rate: None, ..per_key }.room(running, 0) > claimable)
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
        let mut statement = tx.conn.prepare_cached(include_str!("../sql/count.sql")).sorted()?;
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
