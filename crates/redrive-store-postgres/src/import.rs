//! What another store has had, on its way in.

use std::collections::BTreeSet;

use redrive_core::transfer::{Held, Imported, Parcel, Promise, Slot};
use redrive_core::{Job, JobId, NewJob, StoreError, Timestamp};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::enqueue::Query;
use crate::error::{Sorted, nothing};
use crate::import_columns as columns;
use crate::lanes::Lanes;
use crate::locks;
use crate::open::Inner;
use crate::pool::Parameter;

/// Rows of a log, steps or signals in one statement.
const ROWS: usize = 500;

pub(crate) async fn import(inner: &Inner, parcels: &[Parcel]) -> Result<Vec<Imported>, StoreError> {
    let lanes: Vec<NewJob> = parcels.iter().map(|parcel| lane_of(&parcel.job)).collect();
    let lanes = inner.lanes.with(&inner.pool, &lanes).await?;
    let importing = inner.pool.transaction(async |client| {
        locks::lock_imports(client).await?;
        let mut imported = Vec::with_capacity(parcels.len());
        while imported.len() < parcels.len() {
            let round = distinct(&parcels[imported.len()..]);
            imported.extend(import_round(client, &lanes, inner.manual_now(), round).await?);
        }
        Ok(imported)
    });
    importing.await
}

/// A job that would come into the same lane.
fn lane_of(job: &Job) -> NewJob {
    NewJob {
        queue: job.queue.clone(),
        priority: job.priority,
        partition: job.partition.clone(),
        ..NewJob::new(job.id, job.kind.clone(), job.policy.clone(), Vec::new())
    }
}

/// The first parcels that have neither an id nor a key in common; hardly any batch needs a second round.
fn distinct(parcels: &[Parcel]) -> &[Parcel] {
    let (mut ids, mut keys, mut uniques) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let repeats = parcels.iter().position(|Parcel { job, unique, .. }| {
        !ids.insert(job.id)
            || job.key.as_ref().is_some_and(|key| !keys.insert((&job.tenant, key)))
            || unique.as_ref().is_some_and(|held| !uniques.insert((&job.tenant, &job.kind, &held.key)))
    });
    let count = repeats.unwrap_or(parcels.len());
    &parcels[..count]
}

async fn import_round(
    client: &Client,
    lanes: &Lanes,
    now: Option<i64>,
    parcels: &[Parcel],
) -> Result<Vec<Imported>, StoreError> {
    let keys: Vec<Key<'_>> = parcels.iter().map(Key::of).collect();
    let seen = look(client, now, &keys).await?;
    let answers: Vec<Imported> = keys.iter().zip(&seen).map(|(key, seen)| seen.answer(key.id)).collect();
    let comes = |answer: &Imported| matches!(answer, Imported::Created | Imported::Replaced);
    let coming: Vec<(&Parcel, &Seen)> = parcels
        .iter()
        .zip(&seen)
        .zip(&answers)
        .filter(|(_, answer)| comes(answer))
        .map(|(parcel, _)| parcel)
        .collect();
    if !coming.is_empty() {
        add(client, lanes, &coming).await?;
    }
    Ok(answers)
}

/// What a job is looked up by.
struct Key<'a> {
    id: Uuid,
    tenant: &'a str,
    key: Option<&'a str>,
    kind: &'a str,
    unique: Option<&'a str>,
}

impl<'a> Key<'a> {
    fn of(parcel: &'a Parcel) -> Self {
        let Parcel { job, unique, .. } = parcel;
        Self {
            id: job.id.0,
            tenant: job.tenant.as_str(),
            key: job.key.as_ref().map(|key| key.as_str()),
            kind: job.kind.as_str(),
            unique: unique.as_ref().map(|held| held.key.as_str()),
        }
    }
}

/// What is there of it.
struct Seen {
    there: bool,
    filling: bool,
    named: Option<Uuid>,
    holder: Option<Uuid>,
    in_force: bool,
}

impl Seen {
    fn answer(&self, id: Uuid) -> Imported {
        let holder = self.holder.filter(|_| self.in_force);
        match [self.named, holder].into_iter().flatten().find(|other| *other != id) {
            _ if self.there && !self.filling => Imported::Kept,
            Some(other) => Imported::Conflict(JobId(other)),
            None if self.there => Imported::Replaced,
            None => Imported::Created,
        }
    }
}

async fn look(client: &Client, now: Option<i64>, keys: &[Key<'_>]) -> Result<Vec<Seen>, StoreError> {
    let each = || keys.iter();
    let ids: Vec<Uuid> = each().map(|key| key.id).collect();
    let tenants: Vec<&str> = each().map(|key| key.tenant).collect();
    let names: Vec<Option<&str>> = each().map(|key| key.key).collect();
    let kinds: Vec<&str> = each().map(|key| key.kind).collect();
    let uniques: Vec<Option<&str>> = each().map(|key| key.unique).collect();
    let parameters: [Parameter<'_>; 6] = [
        (&now, Type::INT8),
        (&ids, Type::UUID_ARRAY),
        (&tenants, Type::TEXT_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&kinds, Type::TEXT_ARRAY),
        (&uniques, Type::TEXT_ARRAY),
    ];
    let rows = client.typed(include_str!("../sql/import_look.sql"), &parameters).await?;
    let seen = |row: &Row| {
        Ok(Seen {
            there: row.try_get("there").sorted()?,
            filling: row.try_get("filling").sorted()?,
            named: row.try_get("named").sorted()?,
            holder: row.try_get("holder").sorted()?,
            in_force: row.try_get("in_force").sorted()?,
        })
    };
    rows.iter().map(seen).collect()
}

/// Adds jobs with all that belongs to them in the place of what was there.
async fn add(client: &Client, lanes: &Lanes, coming: &[(&Parcel, &Seen)]) -> Result<(), StoreError> {
    let parcels: Vec<&Parcel> = coming.iter().map(|(parcel, _)| *parcel).collect();
    let ids: Vec<Uuid> = parcels.iter().map(|parcel| parcel.job.id.0).collect();
    client.typed(include_str!("../sql/import_remove.sql"), &[(&ids, Type::UUID_ARRAY)]).await?;
    let rows = columns::jobs(&parcels, lanes)?;
    let added = client.typed(include_str!("../sql/import.sql"), &columns::parameters(&rows)).await?;
    let added: i64 = added.first().ok_or_else(nothing)?.try_get("added").sorted()?;
    let held = |(parcel, seen): &(&Parcel, &Seen)| {
        let Held { key, until } = parcel.unique.clone()?;
        let (tenant, kind) = (parcel.job.tenant.clone(), parcel.job.kind.clone());
        Some(Hold { tenant, kind, key, job: parcel.job.id, until, holder: seen.holder })
    };
    let holds: Vec<Hold> = coming.iter().filter_map(held).collect();
    let given = give(client, &holds).await?.len();
    if added != parcels.len() as i64 || given != holds.len() {
        return Err(StoreError::Busy("a key of a job was taken while it was imported".into()));
    }
    add_belongings(client, &parcels).await
}

async fn add_belongings(client: &Client, parcels: &[&Parcel]) -> Result<(), StoreError> {
    let log: Vec<_> =
        parcels.iter().flat_map(|parcel| parcel.log.iter().map(|each| (parcel.job.id, each))).collect();
    for some in log.chunks(ROWS) {
        let rows = columns::attempts(some);
        client.typed(include_str!("../sql/import_attempts.sql"), &columns::parameters(&rows)).await?;
    }
    let steps: Vec<_> =
        parcels.iter().flat_map(|parcel| parcel.steps.iter().map(|each| (parcel.job.id, each))).collect();
    for some in steps.chunks(ROWS) {
        let rows = columns::steps(some);
        client.typed(include_str!("../sql/import_steps.sql"), &columns::parameters(&rows)).await?;
    }
    let signals: Vec<_> =
        parcels.iter().flat_map(|parcel| parcel.signals.iter().map(|each| (parcel.job.id, each))).collect();
    for some in signals.chunks(ROWS) {
        let rows = columns::signals(some);
        client.typed(include_str!("../sql/import_signals.sql"), &columns::parameters(&rows)).await?;
    }
    Ok(())
}

/// A unique key to give to a job, and who was seen to hold it.
pub(crate) struct Hold {
    pub(crate) tenant: redrive_core::Tenant,
    pub(crate) kind: redrive_core::Kind,
    pub(crate) key: redrive_core::UniqueKey,
    pub(crate) job: JobId,
    pub(crate) until: Option<Timestamp>,
    pub(crate) holder: Option<Uuid>,
}

/// Gives unique keys to jobs; brings back which got theirs.
async fn give(client: &Client, holds: &[Hold]) -> Result<BTreeSet<Uuid>, StoreError> {
    if holds.is_empty() {
        return Ok(BTreeSet::new());
    }
    let rows = columns::holds(holds);
    let given = client.typed(include_str!("../sql/import_uniques.sql"), &columns::parameters(&rows)).await?;
    given.iter().map(|row| row.try_get(0).sorted()).collect()
}

pub(crate) async fn import_promises(inner: &Inner, promises: &[Promise]) -> Result<Vec<bool>, StoreError> {
    let importing = inner.pool.transaction(async |client| {
        locks::lock_imports(client).await?;
        let mut taken = Vec::with_capacity(promises.len());
        for promise in promises {
            taken.push(import_promise(client, inner.manual_now(), promise).await?);
        }
        Ok(taken)
    });
    importing.await
}

async fn import_promise(client: &Client, now: Option<i64>, promise: &Promise) -> Result<bool, StoreError> {
    let Promise { tenant, kind, key, job, until } = promise.clone();
    let asked = Key {
        id: job.0,
        tenant: tenant.as_str(),
        key: None,
        kind: kind.as_str(),
        unique: Some(key.as_str()),
    };
    let seen = look(client, now, &[asked]).await?.pop().ok_or_else(nothing)?;
    if seen.in_force && seen.holder != Some(job.0) {
        return Ok(false);
    }
    let hold = Hold { tenant, kind, key, job, until: Some(until), holder: seen.holder };
    Ok(!give(client, &[hold]).await?.is_empty())
}

pub(crate) async fn import_records(inner: &Inner, slots: &[Slot]) -> Result<Vec<bool>, StoreError> {
    let mut written = Vec::with_capacity(slots.len());
    let importing = inner.pool.transaction(async |client| {
        while written.len() < slots.len() {
            let (mut seen, rest) = (BTreeSet::new(), &slots[written.len()..]);
            let repeats = rest.iter().position(|slot| !seen.insert((&slot.kind, &slot.id)));
            let round = &rest[..repeats.unwrap_or(rest.len())];
            let rows = columns::records(round);
            let sql = include_str!("../sql/import_records.sql");
            let done = client.typed(sql, &columns::parameters(&rows)).await?;
            let place = |row: &Row| Ok((row.try_get(0).sorted()?, row.try_get(1).sorted()?));
            let done: BTreeSet<(String, String)> =
                done.iter().map(place).collect::<Result<_, StoreError>>()?;
            written.extend(round.iter().map(|slot| done.contains(&(slot.kind.clone(), slot.id.clone()))));
        }
        Ok(())
    });
    importing.await?;
    Ok(written)
}
