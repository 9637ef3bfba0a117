//! Takes over leases that have run out.

use redrive_core::store::{Claimed, ReclaimRequest};
use redrive_core::{Job, Lease, StoreError};
use rusqlite::params;

use crate::claim;
use crate::error::Sorted;
use crate::leases::Place;
use crate::row::{Read, Reader};
use crate::writer::Tx;

pub(crate) fn reclaim(tx: &mut Tx<'_>, request: &ReclaimRequest) -> Result<Claimed, StoreError> {
    if tx.paused.is_sealed() {
        return Ok(claim::none(tx));
    }
    let expired = expired(tx, request)?;
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/reclaim.sql")).sorted()?;
    let until = tx.now.after(request.lease);
    let mut claimed = claim::none(tx);
    for read in expired {
        let (id, Read { seq, lane, partition, job, .. }) = (read.id(), read);
        statement.execute(params![seq, tx.now.as_ms(), until.as_ms()]).sorted()?;
        match job {
            Ok(job) => {
                tx.leases.took(id, Place { seq, lane, worker: job.worker.clone(), partition });
                claimed.jobs.push(Job { epoch: job.epoch + 1, lease_until: Some(until), ..job });
            }
            Err(mut unreadable) => {
                unreadable.lease.epoch += 1;
                claimed.unreadable.push(unreadable);
            }
        }
    }
    Ok(claimed)
}

fn expired(tx: &Tx<'_>, request: &ReclaimRequest) -> Result<Vec<Read>, StoreError> {
    let mut reader = Reader::new(tx.lanes);
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/reclaim_expired.sql")).sorted()?;
    let parameters = (tx.now.as_ms(), request.limit as i64, lanes(tx, request), held(request));
    let rows = statement.query_map(parameters, |row| reader.read(row)).sorted()?;
    rows.collect::<rusqlite::Result<_>>().sorted()
}

/// The numbers of the lanes with the wanted kinds, as a JSON list; none when all are wanted.
fn lanes(tx: &Tx<'_>, request: &ReclaimRequest) -> Option<String> {
    if request.kinds.is_empty() {
        return None;
    }
    let known = tx.lanes.snapshot();
    let wanted = known.iter().filter(|lane| request.kinds.contains(&lane.kind));
    let numbers: Vec<String> = wanted.map(|lane| lane.number.to_string()).collect();
    Some(format!("[{}]", numbers.join(",")))
}

/// The leases that the caller holds, as a JSON list.
fn held(request: &ReclaimRequest) -> String {
    let name = |lease: &Lease| format!("\"{:X}:{}\"", lease.id.0.simple(), lease.epoch);
    let names: Vec<String> = request.held.iter().map(name).collect();
    format!("[{}]", names.join(","))
}
