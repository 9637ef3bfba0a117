//! Leases due jobs: priority first, then due time, then id, across all lanes that match.

use std::cmp::Reverse;

use redrive_core::rooms::Admission;
use redrive_core::store::{ClaimRequest, Claimed, Wake};
use redrive_core::time::ceil_ms;
use redrive_core::{Queue, State, StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Sorted;
use crate::lanes::Lane;
use crate::leases::Place;
use crate::row::{Read, Reader};
use crate::runs::runs;
use crate::turns::Counted;
use crate::writer::Tx;

pub(crate) fn claim(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<Claimed, StoreError> {
    let known = tx.lanes.snapshot();
    let mut lanes: Vec<&Lane> =
        known.iter().filter(|lane| wants(request, lane) && !tx.paused.holds(lane)).collect();
    lanes.sort_by_key(|lane| Reverse(lane.priority));
    let mut claimed = none(tx);
    let mut rooms = Counted::default();
    let mut open = lanes.clone();
    for _ in 0..ROUNDS_MAX {
        let due = due(tx, &open, request.limit - claimed.jobs.len() - claimed.unreadable.len())?;
        let wanted = due.len();
        let (taken, full) = admit(tx, &mut rooms, due)?;
        let all = taken.len() == wanted;
        lease(tx, request, taken, &mut claimed)?;
        if all {
            break;
        }
        open.retain(|lane| !full.contains(&lane.queue));
    }
    rooms.write(tx)?;
    claimed.next_due = next_due(tx, &mut rooms, &lanes)?;
    Ok(claimed)
}

/// How often a claim looks on when it had to set jobs aside; what is due then is left to the next one.
const ROUNDS_MAX: usize = 16;

/// Those of the due jobs that there is room for, and the queues that are full. Jobs whose partition has no room leave the
/// index of claimable ones, so that no later claim meets them again.
fn admit(
    tx: &mut Tx<'_>,
    rooms: &mut Counted,
    due: Vec<Read>,
) -> Result<(Vec<Read>, Vec<Queue>), StoreError> {
    let (mut taken, mut full) = (Vec::with_capacity(due.len()), Vec::new());
    for read in due {
        let admission = read
            .job
            .as_ref()
            .map_or(Ok(Admission::Take), |job| rooms.admit(tx, job, read.partition.as_deref()))?;
        match admission {
            Admission::Take => taken.push(read),
            Admission::PassOver => full.extend(read.job.map(|job| job.queue)),
            Admission::SetAside => set_aside(tx, &read)?,
            Admission::PutOff(at) => {
                let mut statement =
                    tx.conn.prepare_cached(include_str!("../sql/claim_put_off.sql")).sorted()?;
                statement.execute((read.seq, at.as_ms())).sorted()?;
            }
        }
    }
    Ok((taken, full))
}

fn set_aside(tx: &mut Tx<'_>, read: &Read) -> Result<(), StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/claim_aside.sql")).sorted()?;
    statement.execute([read.seq]).sorted()?;
    tx.tally.leave(read.lane, state(read), 1);
    tx.tally.enter(read.lane, State::Waiting, 1);
    Ok(())
}

fn state(read: &Read) -> State {
    read.job.as_ref().map_or(State::Pending, |job| job.state)
}

fn wants(request: &ClaimRequest, lane: &Lane) -> bool {
    (request.queues.is_empty() || request.queues.contains(&lane.queue))
        && (request.kinds.is_empty() || request.kinds.contains(&lane.kind))
}

/// The first `limit` due rows: each lane of a priority gives its own first ones, in order, and they are merged.
fn due(tx: &Tx<'_>, lanes: &[&Lane], limit: usize) -> Result<Vec<Read>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/claim_due.sql")).sorted()?;
    let mut reader = Reader::new(tx.lanes);
    let mut due: Vec<Read> = Vec::new();
    for peers in lanes.chunk_by(|a, b| a.priority == b.priority) {
        let start = due.len();
        let wanted = (limit - start) as i64;
        for lane in peers {
            let mut rows = statement.query((lane.number, tx.now.as_ms(), wanted)).sorted()?;
            while let Some(row) = rows.next().sorted()? {
                due.push(reader.read(row).sorted()?);
            }
        }
        if peers.len() > 1 {
            due[start..].sort_by_key(|read| (read.next_run_at, read.id()));
        }
        due.truncate(limit);
        if due.len() == limit {
            break;
        }
    }
    Ok(due)
}

fn lease(
    tx: &mut Tx<'_>,
    request: &ClaimRequest,
    due: Vec<Read>,
    claimed: &mut Claimed,
) -> Result<(), StoreError> {
    take(tx, request, &due)?;
    claimed.jobs.reserve(due.len());
    for read in due {
        let (id, state, Read { seq, lane, partition, job, .. }) = (read.id(), state(&read), read);
        tx.leases.took(id, Place { seq, lane, worker: Some(request.worker.clone()), partition });
        tx.tally.leave(lane, state, 1);
        tx.tally.enter(lane, State::Running, 1);
        match job {
            Ok(mut job) => {
                job.state = State::Running;
                job.attempt += 1;
                job.epoch += 1;
                job.started_at = Some(tx.now);
                job.lease_until = Some(tx.now.after(job.lease.unwrap_or(request.lease)));
                job.worker = Some(request.worker.clone());
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

/// Jobs that were enqueued together tend to be due together, so most claims are one statement.
fn take(tx: &Tx<'_>, request: &ClaimRequest, due: &[Read]) -> Result<(), StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/claim.sql")).sorted()?;
    let mut seqs: Vec<i64> = due.iter().map(|read| read.seq).collect();
    seqs.sort_unstable();
    for run in runs(&seqs, |seq| *seq, |_, _| true) {
        let (first, last) = (seqs[run.start], seqs[run.end - 1]);
        let lease_ms = ceil_ms(request.lease);
        statement
            .execute(params![first, last, tx.now.as_ms(), lease_ms, request.worker.as_str()])
            .sorted()?;
    }
    Ok(())
}

/// An answer without jobs.
pub(crate) fn none(tx: &Tx<'_>) -> Claimed {
    Claimed { jobs: Vec::new(), unreadable: Vec::new(), now: tx.now, next_due: None, wake: Wake(tx.wakes) }
}

/// When the next job is due that its queue has room for, or when a used up rate makes room.
fn next_due(tx: &Tx<'_>, rooms: &mut Counted, lanes: &[&Lane]) -> Result<Option<Timestamp>, StoreError> {
    let mut next = None;
    for lane in lanes {
        let mut first = first_due(tx.conn, lane.number)?;
        if rooms.queue_room(tx, &lane.queue)? == 0 {
            let free = rooms.queue_frees(&lane.queue);
            first = first.zip(free).map(|(first, free)| first.max(free));
        }
        next = [next, first].into_iter().flatten().min();
    }
    Ok(next)
}

/// When the next job of a lane is due.
pub(crate) fn first_due(conn: &Connection, lane: i64) -> Result<Option<Timestamp>, StoreError> {
    let mut statement = conn.prepare_cached(include_str!("../sql/claim_next.sql")).sorted()?;
    let first = statement.query_row([lane], |row| row.get(0)).optional().sorted()?;
    Ok(first.map(Timestamp::from_ms))
}
