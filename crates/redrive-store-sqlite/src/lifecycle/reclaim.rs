//! Takes over jobs whose lease has expired.

use redrive_core::store::{ClaimedJobs, ReclaimRequest};
use redrive_core::{Job, Lease, next_epoch};
use redrive_sql::Statement;
use rusqlite::params;

use super::claim::no_jobs;
use super::leased_rows::LeasedRow;
use crate::error::Result;
use crate::row::{JobRow, RowReader};
use crate::sql::LIFECYCLE;
use crate::writer::Tx;

static EXPIRED_LEASES: Statement = LIFECYCLE.statement("expired_leases");
static RECLAIM: Statement = LIFECYCLE.statement("reclaim");

pub(crate) fn reclaim(tx: &mut Tx<'_>, request: &ReclaimRequest) -> Result<ClaimedJobs> {
    let mut reclaimed = no_jobs(tx);
    if tx.paused.is_sealed() || !tx.leased.ranges.has_expired(tx.conn, tx.now)? {
        return Ok(reclaimed);
    }
    let expired = read_expired(tx, request)?;
    let mut statement = tx.conn.prepare_cached(&RECLAIM)?;
    let until = tx.now.after(request.lease);
    tx.leased.ranges.note_lease_end(until);
    for row in expired {
        let (id, JobRow { seq, lane, partition, job, .. }) = (row.id(), row);
        statement.execute(params![seq, tx.now.as_ms(), until.as_ms()])?;
        match job {
            Ok(job) => {
                tx.leased.insert(id, LeasedRow { seq, lane, worker: job.worker.clone(), partition });
                reclaimed.jobs.push(Job { epoch: next_epoch(job.epoch), lease_until: Some(until), ..job });
            }
            Err(mut unreadable) => {
                unreadable.lease.epoch += 1;
                reclaimed.unreadable.push(unreadable);
            }
        }
    }
    Ok(reclaimed)
}

fn read_expired(tx: &Tx<'_>, request: &ReclaimRequest) -> Result<Vec<JobRow>> {
    let mut reader = RowReader::new(tx.lanes);
    let mut statement = tx.conn.prepare_cached(&EXPIRED_LEASES)?;
    let parameters = (tx.now.as_ms(), request.limit as i64, lanes_json(tx, request), held_json(request));
    let rows = statement.query_map(parameters, |row| reader.read(row))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The numbers of the lanes that have the requested kinds, as a JSON list, or `None` for all lanes.
fn lanes_json(tx: &Tx<'_>, request: &ReclaimRequest) -> Option<String> {
    if request.kinds.is_empty() {
        return None;
    }
    let known = tx.lanes.snapshot();
    let selected = known.iter().filter(|lane| request.kinds.contains(&lane.kind));
    let numbers: Vec<String> = selected.map(|lane| lane.number.to_string()).collect();
    Some(format!("[{}]", numbers.join(",")))
}

/// The leases that the caller holds, as a JSON list.
fn held_json(request: &ReclaimRequest) -> String {
    let name = |lease: &Lease| format!("\"{:X}:{}\"", lease.id.0.simple(), lease.epoch);
    let names: Vec<String> = request.held.iter().map(name).collect();
    format!("[{}]", names.join(","))
}
