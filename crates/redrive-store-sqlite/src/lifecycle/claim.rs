//! Leases due jobs: by priority, then due time, then id, across all lanes that the request selects.

use std::cmp::Reverse;
use std::time::Duration;

use redrive_core::capacity::{Admission, Candidate};
use redrive_core::store::{ClaimRequest, ClaimedJobs, UnreadableJob, WakeToken};
use redrive_core::time::ceil_ms;
use redrive_core::{Epoch, Job, JobId, Queue, State, Timestamp, next_epoch};
use redrive_sql::Statement;
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::consecutive_ranges;
use super::leased_rows::LeasedRow;
use crate::error::Result;
use crate::lanes::{Lane, Lanes, SharedLanes};
use crate::limits::ClaimCapacity;
use crate::row::RowReader;
use crate::sql::LIFECYCLE;
use crate::writer::Tx;

static CLAIM_DUE: Statement = LIFECYCLE.statement("claim_due");
static CLAIM: Statement = LIFECYCLE.statement("claim");
static READ_CLAIMED: Statement = LIFECYCLE.statement("read_claimed");
static WAIT_FOR_SLOT: Statement = LIFECYCLE.statement("wait_for_slot");
static DELAY: Statement = LIFECYCLE.statement("delay");
static FIRST_DUE: Statement = LIFECYCLE.statement("first_due");

/// How often one claim reads more due jobs because it could not take those that it had read. It leaves the rest to the
/// next claim.
const ROUNDS_MAX: usize = 16;

/// The writer reads up to this many claimed jobs itself. More are read after the commit, in parallel with the writer,
/// because the writer is the bottleneck of a busy store.
const READ_ON_WRITER_MAX: usize = 32;

/// The result of a claim on the writer.
pub(crate) struct Claim {
    /// The result, without the jobs in `unread`.
    pub(crate) claimed: ClaimedJobs,
    /// Rows that were leased, but not read yet, in the order of the claim.
    pub(crate) unread: Vec<ClaimedRow>,
}

/// A row that was leased by a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimedRow {
    seq: i64,
    /// The epoch of the lease.
    epoch: Epoch,
}

/// A due job, with the columns that the writer needs to lease it.
struct DueRow {
    seq: i64,
    id: JobId,
    lane: i64,
    next_run_at: i64,
    state: State,
    epoch: Epoch,
    lease: Option<Duration>,
    /// The scope of its partition: the queue and the partition key.
    partition: Option<String>,
    strict: bool,
}

/// Leases due jobs. Reads them too if they are few.
pub(crate) fn claim(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<Claim> {
    let mut claim = lease_due(tx, request)?;
    if claim.unread.len() <= READ_ON_WRITER_MAX {
        let rows = std::mem::take(&mut claim.unread);
        add_jobs(&mut claim.claimed, read_rows(tx.conn, tx.lanes, &rows)?);
    }
    Ok(claim)
}

fn lease_due(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<Claim> {
    let known = tx.lanes.snapshot();
    let mut lanes: Vec<&Lane> =
        known.iter().filter(|lane| selects(request, lane) && !tx.paused.excludes(lane)).collect();
    lanes.sort_by_key(|lane| Reverse(lane.priority));
    let mut claim = Claim { claimed: no_jobs(tx), unread: Vec::new() };
    let mut capacity = ClaimCapacity::default();
    let mut open_lanes = lanes.clone();
    for _ in 0..ROUNDS_MAX {
        let due = read_due(tx, &open_lanes, request.limit - claim.unread.len())?;
        let due_count = due.len();
        let (admitted, full_queues) = admit(tx, &known, &mut capacity, due)?;
        let all_admitted = admitted.len() == due_count;
        lease(tx, request, admitted, &mut claim.unread)?;
        if all_admitted {
            break;
        }
        open_lanes.retain(|lane| !full_queues.contains(&lane.queue));
    }
    capacity.record_starts(tx)?;
    claim.claimed.next_due = next_due(tx, &mut capacity, &lanes)?;
    Ok(claim)
}

/// Divides due jobs into those that the limits allow to start, and the queues that are full. A job whose partition is
/// full leaves the index of claimable jobs, so that later claims do not read it again.
fn admit(
    tx: &mut Tx<'_>,
    lanes: &Lanes,
    capacity: &mut ClaimCapacity,
    due: Vec<DueRow>,
) -> Result<(Vec<DueRow>, Vec<Queue>)> {
    if tx.limits.is_empty() && due.iter().all(|row| row.partition.is_none()) {
        return Ok((due, Vec::new()));
    }
    let (mut admitted, mut full_queues) = (Vec::with_capacity(due.len()), Vec::new());
    for row in due {
        let Some(Lane { queue, .. }) = lanes.get(row.lane) else { continue };
        let candidate = Candidate { id: row.id, partition: row.partition.as_deref(), strict: row.strict };
        match capacity.admit(tx, queue, candidate)? {
            Admission::Take => admitted.push(row),
            Admission::Skip => full_queues.push(queue.clone()),
            Admission::WaitForSlot => {
                tx.conn.prepare_cached(&WAIT_FOR_SLOT)?.execute([row.seq])?;
                tx.counts.transition(row.lane, row.state, State::Waiting);
            }
            Admission::Delay(until) => {
                tx.conn.prepare_cached(&DELAY)?.execute((row.seq, until.as_ms()))?;
            }
        }
    }
    Ok((admitted, full_queues))
}

fn selects(request: &ClaimRequest, lane: &Lane) -> bool {
    (request.queues.is_empty() || request.queues.contains(&lane.queue))
        && (request.kinds.is_empty() || request.kinds.contains(&lane.kind))
}

/// The first `limit` due jobs. Each lane of a priority contributes its first jobs, which are then merged by due time.
fn read_due(tx: &Tx<'_>, lanes: &[&Lane], limit: usize) -> Result<Vec<DueRow>> {
    let mut statement = tx.conn.prepare_cached(&CLAIM_DUE)?;
    let mut due: Vec<DueRow> = Vec::new();
    for peers in lanes.chunk_by(|a, b| a.priority == b.priority) {
        let start = due.len();
        let missing = (limit - start) as i64;
        for lane in peers {
            let mut rows = statement.query((lane.number, tx.now.as_ms(), missing))?;
            while let Some(row) = rows.next()? {
                due.push(DueRow::read(row, lane.number)?);
            }
        }
        if peers.len() > 1 {
            due[start..].sort_by_key(|row| (row.next_run_at, row.id));
        }
        due.truncate(limit);
        if due.len() == limit {
            break;
        }
    }
    Ok(due)
}

impl DueRow {
    fn read(row: &Row<'_>, lane: i64) -> rusqlite::Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            id: JobId(Uuid::from_bytes(row.get(1)?)),
            lane,
            next_run_at: row.get(2)?,
            // The index has no jobs in other states.
            state: if row.get::<_, i64>(3)? == 0 { State::Pending } else { State::Retrying },
            epoch: row.get::<_, i64>(4)? as Epoch,
            lease: row.get::<_, Option<i64>>(5)?.map(|ms| Duration::from_millis(ms.try_into().unwrap_or(0))),
            partition: row.get(6)?,
            strict: row.get(7)?,
        })
    }
}

/// Leases the rows `due` and adds them to `leased`.
fn lease(
    tx: &mut Tx<'_>,
    request: &ClaimRequest,
    due: Vec<DueRow>,
    leased: &mut Vec<ClaimedRow>,
) -> Result<()> {
    write_leases(tx, request, &due)?;
    leased.reserve(due.len());
    for DueRow { seq, id, lane, state, epoch, lease, partition, .. } in due {
        tx.leased.insert(id, LeasedRow { seq, lane, worker: Some(request.worker.clone()), partition });
        tx.leased.ranges.note_lease_end(tx.now.after(lease.unwrap_or(request.lease)));
        tx.counts.transition(lane, state, State::Running);
        leased.push(ClaimedRow { seq, epoch: next_epoch(epoch) });
    }
    Ok(())
}

/// Writes the leases. Jobs that were enqueued together are often due together, so that most claims need one statement.
fn write_leases(tx: &mut Tx<'_>, request: &ClaimRequest, due: &[DueRow]) -> Result<()> {
    let mut statement = tx.conn.prepare_cached(&CLAIM)?;
    let mut seqs: Vec<i64> = due.iter().map(|row| row.seq).collect();
    seqs.sort_unstable();
    for range in consecutive_ranges(&seqs, |seq| *seq, |_, _| true) {
        let (first, last) = (seqs[range.start], seqs[range.end - 1]);
        let lease_ms = ceil_ms(request.lease);
        statement.execute(params![first, last, tx.now.as_ms(), lease_ms, request.worker.as_str()])?;
        tx.leased.ranges.add(first, last);
    }
    Ok(())
}

/// A job, or what could not be read of it.
type ReadJob = Result<Job, UnreadableJob>;

/// Reads the jobs of leased rows, in the same order. A row whose epoch has changed is left out: its lease expired after
/// the claim, and another worker has the job.
pub(crate) fn read_rows(
    conn: &Connection,
    lanes: &SharedLanes,
    leased: &[ClaimedRow],
) -> Result<Vec<ReadJob>> {
    let mut by_seq: Vec<(ClaimedRow, usize)> = leased.iter().copied().zip(0..).collect();
    by_seq.sort_unstable_by_key(|(row, _)| row.seq);
    let mut jobs: Vec<Option<ReadJob>> = leased.iter().map(|_| None).collect();
    let mut reader = RowReader::new(lanes);
    let mut statement = conn.prepare_cached(&READ_CLAIMED)?;
    for range in consecutive_ranges(&by_seq, |(row, _)| row.seq, |_, _| true) {
        let range = &by_seq[range];
        let (first, last) = (range[0].0.seq, range[range.len() - 1].0.seq);
        let mut rows = statement.query((first, last))?;
        while let Some(row) = rows.next()? {
            let row = reader.read(row)?;
            let (leased, position) = range[(row.seq - first) as usize];
            jobs[position] = (row.epoch() == leased.epoch).then_some(row.job);
        }
    }
    Ok(jobs.into_iter().flatten().collect())
}

/// Adds jobs to the result of a claim.
pub(crate) fn add_jobs(claimed: &mut ClaimedJobs, jobs: Vec<ReadJob>) {
    claimed.jobs.reserve(jobs.len());
    for job in jobs {
        match job {
            Ok(job) => claimed.jobs.push(job),
            Err(unreadable) => claimed.unreadable.push(unreadable),
        }
    }
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
