//! Leases due jobs: by priority, then due time, then id, across all lanes that the request selects.

use std::cmp::Reverse;

use redrive_core::capacity::Admission;
use redrive_core::store::{ClaimRequest, ClaimedJobs, WakeToken};
use redrive_core::time::ceil_ms;
use redrive_core::{Queue, State, Timestamp};
use redrive_sql::Statement;
use rusqlite::{Connection, OptionalExtension, params};

use super::consecutive_ranges;
use super::leased_rows::LeasedRow;
use crate::error::Result;
use crate::lanes::Lane;
use crate::limits::ClaimCapacity;
use crate::row::{JobRow, RowReader};
use crate::sql::LIFECYCLE;
use crate::writer::Tx;

static CLAIM_DUE: Statement = LIFECYCLE.statement("claim_due");
static CLAIM: Statement = LIFECYCLE.statement("claim");
static WAIT_FOR_SLOT: Statement = LIFECYCLE.statement("wait_for_slot");
static DELAY: Statement = LIFECYCLE.statement("delay");
static FIRST_DUE: Statement = LIFECYCLE.statement("first_due");

/// How often one claim reads more due jobs because it could not take those that it had read. It leaves the rest to the
/// next claim.
const ROUNDS_MAX: usize = 16;

pub(crate) fn claim(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<ClaimedJobs> {
    let known = tx.lanes.snapshot();
    let mut lanes: Vec<&Lane> =
        known.iter().filter(|lane| selects(request, lane) && !tx.paused.excludes(lane)).collect();
    lanes.sort_by_key(|lane| Reverse(lane.priority));
    let mut claimed = no_jobs(tx);
    let mut capacity = ClaimCapacity::default();
    let mut open_lanes = lanes.clone();
    for _ in 0..ROUNDS_MAX {
        let limit = request.limit - claimed.jobs.len() - claimed.unreadable.len();
        let due = read_due(tx, &open_lanes, limit)?;
        let due_count = due.len();
        let (admitted, full_queues) = admit(tx, &mut capacity, due)?;
        let all_admitted = admitted.len() == due_count;
        lease(tx, request, admitted, &mut claimed)?;
        if all_admitted {
            break;
        }
        open_lanes.retain(|lane| !full_queues.contains(&lane.queue));
    }
    capacity.record_starts(tx)?;
    claimed.next_due = next_due(tx, &mut capacity, &lanes)?;
    Ok(claimed)
}

/// Divides due jobs into those that the limits allow to start, and the queues that are full. A job whose partition is
/// full leaves the index of claimable jobs, so that later claims do not read it again.
fn admit(
    tx: &mut Tx<'_>,
    capacity: &mut ClaimCapacity,
    due: Vec<JobRow>,
) -> Result<(Vec<JobRow>, Vec<Queue>)> {
    let (mut admitted, mut full_queues) = (Vec::with_capacity(due.len()), Vec::new());
    for row in due {
        let admission = match &row.job {
            Ok(job) => capacity.admit(tx, job, row.partition.as_deref())?,
            Err(_) => Admission::Take,
        };
        match admission {
            Admission::Take => admitted.push(row),
            Admission::Skip => full_queues.extend(row.job.map(|job| job.queue)),
            Admission::WaitForSlot => {
                tx.conn.prepare_cached(&WAIT_FOR_SLOT)?.execute([row.seq])?;
                tx.counts.transition(row.lane, state(&row), State::Waiting);
            }
            Admission::Delay(until) => {
                tx.conn.prepare_cached(&DELAY)?.execute((row.seq, until.as_ms()))?;
            }
        }
    }
    Ok((admitted, full_queues))
}

fn state(row: &JobRow) -> State {
    row.job.as_ref().map_or(State::Pending, |job| job.state)
}

fn selects(request: &ClaimRequest, lane: &Lane) -> bool {
    (request.queues.is_empty() || request.queues.contains(&lane.queue))
        && (request.kinds.is_empty() || request.kinds.contains(&lane.kind))
}

/// The first `limit` due jobs. Each lane of a priority contributes its first jobs, which are then merged by due time.
fn read_due(tx: &Tx<'_>, lanes: &[&Lane], limit: usize) -> Result<Vec<JobRow>> {
    let mut statement = tx.conn.prepare_cached(&CLAIM_DUE)?;
    let mut reader = RowReader::new(tx.lanes);
    let mut due: Vec<JobRow> = Vec::new();
    for peers in lanes.chunk_by(|a, b| a.priority == b.priority) {
        let start = due.len();
        let missing = (limit - start) as i64;
        for lane in peers {
            let mut rows = statement.query((lane.number, tx.now.as_ms(), missing))?;
            while let Some(row) = rows.next()? {
                due.push(reader.read(row)?);
            }
        }
        if peers.len() > 1 {
            due[start..].sort_by_key(|row| (row.next_run_at, row.id()));
        }
        due.truncate(limit);
        if due.len() == limit {
            break;
        }
    }
    Ok(due)
}

fn lease(tx: &mut Tx<'_>, request: &ClaimRequest, due: Vec<JobRow>, claimed: &mut ClaimedJobs) -> Result<()> {
    write_leases(tx, request, &due)?;
    claimed.jobs.reserve(due.len());
    for row in due {
        let (id, state, JobRow { seq, lane, partition, job, .. }) = (row.id(), state(&row), row);
        let worker = Some(request.worker.clone());
        tx.leased.insert(id, LeasedRow { seq, lane, worker: worker.clone(), partition });
        tx.counts.transition(lane, state, State::Running);
        match job {
            Ok(mut job) => {
                job.state = State::Running;
                job.attempt += 1;
                job.epoch += 1;
                job.started_at = Some(tx.now);
                job.lease_until = Some(tx.now.after(job.lease.unwrap_or(request.lease)));
                job.worker = worker;
                job.awaits = None;
                claimed.jobs.push(job);
            }
            Err(mut unreadable) => {
                unreadable.lease.epoch += 1;
                unreadable.attempt += 1;
                claimed.unreadable.push(unreadable);
            }
        }
    }
    Ok(())
}

/// Writes the leases. Jobs that were enqueued together are often due together, so that most claims need one statement.
fn write_leases(tx: &Tx<'_>, request: &ClaimRequest, due: &[JobRow]) -> Result<()> {
    let mut statement = tx.conn.prepare_cached(&CLAIM)?;
    let mut seqs: Vec<i64> = due.iter().map(|row| row.seq).collect();
    seqs.sort_unstable();
    for range in consecutive_ranges(&seqs, |seq| *seq, |_, _| true) {
        let (first, last) = (seqs[range.start], seqs[range.end - 1]);
        let lease_ms = ceil_ms(request.lease);
        statement.execute(params![first, last, tx.now.as_ms(), lease_ms, request.worker.as_str()])?;
    }
    Ok(())
}

/// A result without jobs.
pub(crate) fn no_jobs(tx: &Tx<'_>) -> ClaimedJobs {
    ClaimedJobs {
        jobs: Vec::new(),
        unreadable: Vec::new(),
        now: tx.now,
        next_due: None,
        wake: WakeToken(tx.wakes),
    }
}

/// The time of the next claim that can succeed: the first due time of a queue with free slots, or the time at which a
/// rate limit allows another start.
fn next_due(tx: &Tx<'_>, capacity: &mut ClaimCapacity, lanes: &[&Lane]) -> Result<Option<Timestamp>> {
    let mut next = None;
    for lane in lanes {
        let mut first = first_due(tx.conn, lane.number)?;
        if capacity.free_queue_slots(tx, &lane.queue)? == 0 {
            let free_at = capacity.queue_free_at(&lane.queue);
            first = first.zip(free_at).map(|(first, free_at)| first.max(free_at));
        }
        next = [next, first].into_iter().flatten().min();
    }
    Ok(next)
}

/// When the first claimable job of a lane is due.
pub(crate) fn first_due(conn: &Connection, lane: i64) -> Result<Option<Timestamp>> {
    let mut statement = conn.prepare_cached(&FIRST_DUE)?;
    let first = statement.query_row([lane], |row| row.get(0)).optional()?;
    Ok(first.map(Timestamp::from_ms))
}
