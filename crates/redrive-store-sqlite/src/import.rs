//! What another store has had, on its way in.

use redrive_core::time::ceil_ms;
use redrive_core::transfer::{BEING_FILLED, Held, Imported, Parcel, Promise, SEALED, Slot};
use redrive_core::{Attempt, Job, JobId, Order, Reason, StoreError, Timestamp};
use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

use crate::awaits;
use crate::discard::remove;
use crate::error::Sorted;
use crate::writer::Tx;
use crate::{get, records, remember, unique};

pub(crate) fn import(tx: &mut Tx<'_>, parcels: &[Parcel]) -> Result<Vec<Imported>, StoreError> {
    let filling = records::is_there(tx.conn, SEALED, BEING_FILLED)?;
    parcels.iter().map(|parcel| import_one(tx, parcel, filling)).collect()
}

fn import_one(tx: &mut Tx<'_>, parcel: &Parcel, filling: bool) -> Result<Imported, StoreError> {
    let id = parcel.job.id;
    let there = get::state(tx.conn, id)?;
    if there.is_some() && !filling {
        return Ok(Imported::Kept);
    }
    if let Some(other) = in_the_way(tx, parcel)? {
        return Ok(Imported::Conflict(other));
    }
    if let Some((lane, state)) = there {
        remove(tx, include_str!("../sql/import_remove.sql"), id, lane, state)?;
        tx.leases.gave_back(id);
    }
    let mut release = tx.conn.prepare_cached(include_str!("../sql/import_release.sql")).sorted()?;
    release.execute([id.0.as_bytes()]).sorted()?;
    add(tx, parcel)?;
    *tx.wake = true;
    Ok(if there.is_some() { Imported::Replaced } else { Imported::Created })
}

/// The other job that has a key of this one.
fn in_the_way(tx: &Tx<'_>, parcel: &Parcel) -> Result<Option<JobId>, StoreError> {
    let Parcel { job, unique, .. } = parcel;
    if let Some(key) = &job.key {
        let mut by_key = tx.conn.prepare_cached(include_str!("../sql/enqueue_by_key.sql")).sorted()?;
        let holder = by_key.query_row((job.tenant.as_str(), key.as_str()), |row| row.get(0));
        let holder = holder.optional().sorted()?.map(|id| JobId(Uuid::from_bytes(id)));
        if let Some(other) = holder.filter(|other| *other != job.id) {
            return Ok(Some(other));
        }
    }
    let Some(Held { key, .. }) = unique else { return Ok(None) };
    let holder = unique::in_force(tx, &job.tenant, &job.kind, key)?;
    Ok(holder.filter(|other| *other != job.id))
}

fn add(tx: &mut Tx<'_>, parcel: &Parcel) -> Result<(), StoreError> {
    let job = &parcel.job;
    let lane = tx.lanes.number(tx.conn, &job.queue, &job.kind, job.priority)?;
    add_row(tx, lane, job, parcel.fingerprint.as_ref())?;
    tx.tally.enter(lane, job.state, 1);
    for attempt in &parcel.log {
        log(tx, job.id, attempt)?;
    }
    for step in &parcel.steps {
        remember::add(tx, job.id, step)?;
    }
    let mut signal = tx.conn.prepare_cached(include_str!("../sql/import_signal.sql")).sorted()?;
    for received in &parcel.signals {
        let (job, id) = (job.id.0.as_bytes(), received.id.as_bytes());
        signal.execute(params![job, id, received.name.as_str(), received.value, received.taken]).sorted()?;
    }
    match &parcel.unique {
        Some(Held { key, until }) => unique::give(tx, (&job.tenant, &job.kind, key), job.id, *until),
        None => Ok(()),
    }
}

fn add_row(tx: &Tx<'_>, lane: i64, job: &Job, fingerprint: Option<&[u8; 32]>) -> Result<(), StoreError> {
    let awaits = awaits::Columns::of(job.awaits.as_ref());
    let ms = |at: Option<Timestamp>| at.map(Timestamp::as_ms);
    let mut insert = tx.conn.prepare_cached(include_str!("../sql/import.sql")).sorted()?;
    let added = insert.execute(params![
        job.id.0.as_bytes(),
        lane,
        job.state.code(),
        job.next_run_at.as_ms(),
        job.run,
        job.attempt,
        job.epoch as i64,
        job.created_at.as_ms(),
        job.began_at.as_ms(),
        ms(job.started_at),
        ms(job.lease_until),
        ms(job.finished_at),
        job.wait.map(ceil_ms),
        job.timeout.map(ceil_ms),
        job.cancel_requested,
        job.tenant.as_str(),
        job.policy.to_string(),
        job.worker.as_ref().map(redrive_core::WorkerId::as_str),
        job.key.as_ref().map(redrive_core::IdempotencyKey::as_str),
        fingerprint.map(<[u8; 32]>::as_slice),
        job.reason.map(Reason::name),
        job.last_error,
        job.metadata,
        job.payload,
        job.output,
        job.lease.map(ceil_ms),
        job.subject,
        job.last_status,
        job.parent.map(|parent| parent.id.0.into_bytes()),
        job.parent.map(|parent| parent.branch),
        job.held,
        awaits.code,
        awaits.name,
        awaits.branch,
        awaits.failures,
        job.partition.as_ref().map(|partition| partition.scope(&job.queue)),
        job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict),
        job.parent.is_some_and(|parent| parent.detached),
    ]);
    added.sorted().map(drop)
}

fn log(tx: &Tx<'_>, id: JobId, attempt: &Attempt) -> Result<(), StoreError> {
    let entry = &attempt.entry;
    let mut insert = tx.conn.prepare_cached(include_str!("../sql/settle_entry.sql")).sorted()?;
    let logged = insert.execute(params![
        id.0.as_bytes(),
        attempt.epoch as i64,
        entry.run,
        entry.attempt,
        entry.started_at.as_ms(),
        ceil_ms(entry.duration),
        entry.outcome,
        entry.error,
        entry.detail,
        attempt.worker.as_ref().map(redrive_core::WorkerId::as_str),
        attempt.led_to.code(),
        attempt.wait.map(ceil_ms),
        attempt.next_run_at.map(Timestamp::as_ms),
    ]);
    logged.sorted().map(drop)
}

pub(crate) fn import_records(tx: &mut Tx<'_>, slots: &[Slot]) -> Result<Vec<bool>, StoreError> {
    let mut statement = tx.conn.prepare_cached(include_str!("../sql/import_record.sql")).sorted()?;
    let mut written = Vec::with_capacity(slots.len());
    for Slot { kind, id, version, value } in slots {
        written.push(statement.execute(params![kind, id, *version as i64, value]).sorted()? == 1);
    }
    if written.contains(&true) {
        tx.paused.reload(tx.conn)?;
        tx.quotas.reload(tx.conn)?;
        *tx.wake = true;
    }
    Ok(written)
}

pub(crate) fn import_promises(tx: &mut Tx<'_>, promises: &[Promise]) -> Result<Vec<bool>, StoreError> {
    let take = |promise: &Promise| {
        let Promise { tenant, kind, key, job, until } = promise;
        let free = unique::in_force(tx, tenant, kind, key)?.is_none_or(|holder| holder == *job);
        if free {
            unique::give(tx, (tenant, kind, key), *job, Some(*until))?;
        }
        Ok(free)
    };
    promises.iter().map(take).collect()
}
