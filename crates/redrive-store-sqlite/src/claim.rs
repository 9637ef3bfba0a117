//! Leases due jobs: priority first, then due time, then id, across all lanes that match.

use std::cmp::Reverse;

use redrive_core::store::{ClaimRequest, Claimed, Wake};
use redrive_core::time::ceil_ms;
use redrive_core::{State, StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Sorted;
use crate::lanes::Lane;
use crate::leases::Place;
use crate::row::{Read, Reader};
use crate::runs::runs;
use crate::writer::Tx;

pub(crate) fn claim(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<Claimed, StoreError> {
    let known = tx.lanes.snapshot();
    let mut lanes: Vec<&Lane> =
        known.iter().filter(|lane| wants(request, lane) && !tx.paused.holds(lane)).collect();
    lanes.sort_by_key(|lane| Reverse(lane.priority));
    let due = due(tx, &lanes, request.limit)?;
    let claimed = lease(tx, request, due)?;
    let next_due = next_due(tx, &lanes)?;
    Ok(Claimed { next_due, ..claimed })
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

fn lease(tx: &mut Tx<'_>, request: &ClaimRequest, due: Vec<Read>) -> Result<Claimed, StoreError> {
    take(tx, request, &due)?;
    let mut claimed = none(tx);
    claimed.jobs.reserve(due.len());
    for read in due {
        let (id, Read { seq, lane, job, .. }) = (read.id(), read);
        let state = job.as_ref().map_or(State::Pending, |job| job.state);
        tx.leases.took(id, Place { seq, lane, worker: Some(request.worker.clone()) });
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
    Ok(claimed)
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

fn next_due(tx: &Tx<'_>, lanes: &[&Lane]) -> Result<Option<Timestamp>, StoreError> {
    let mut next = None;
    for lane in lanes {
        let first = first_due(tx.conn, lane.number)?;
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
