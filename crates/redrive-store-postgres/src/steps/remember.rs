//! Reads the steps of jobs, and stores new ones under their leases, each once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redrive_core::steps::{NewStep, RememberResult, Step, StepKind};
use redrive_core::{JobId, Lease, NewJob, Start, StepName};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::call_batcher::{self, Batchable, CallBatcher};
use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::lifecycle::enqueue::{self, HorizonCheck};
use crate::limits::locks;
use crate::open::Inner;
use crate::pool::Executor;
use crate::pool::Parameter;
use crate::sql;

static RECALL: Statement = sql::STEPS.statement("recall");
static REMEMBER: Statement = sql::STEPS.statement("remember");
static FIND_STEPS: Statement = sql::STEPS.statement("find_steps");
static LOCK_STEPS: Statement = sql::STEPS.statement("lock_steps");
static LOCK_LEASES: Statement = sql::STEPS.statement("lock_leases");
static REMEMBER_SIGNAL: Statement = sql::STEPS.statement("remember_signal");

pub(crate) async fn recall(inner: &Inner, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>> {
    let (from, limit) = (i64::from(from), i64::try_from(limit).unwrap_or(i64::MAX));
    let sql = &RECALL;
    let rows =
        inner.pool.query(sql, &[(&id.0, Type::UUID), (&from, Type::INT8), (&limit, Type::INT8)]).await?;
    rows.iter().map(read_step).collect()
}

pub(crate) fn read_step(row: &Row) -> Result<Step> {
    let (place, code): (i64, i16) = (row.try_get("place")?, row.try_get("kind")?);
    let damaged = |problem: &str| Error::corrupt(format!("the step at place {place}: {problem}"));
    Ok(Step {
        place: u32::try_from(place).map_err(|_| damaged("the place is out of range"))?,
        name: StepName::new(row.try_get::<_, &str>("name")?)?,
        kind: u8::try_from(code)
            .ok()
            .and_then(StepKind::from_code)
            .ok_or_else(|| damaged(&format!("kind {code} does not exist")))?,
        value: row.try_get("value")?,
    })
}

pub(crate) async fn remember(inner: &Arc<Inner>, new_steps: Vec<NewStep>) -> Result<Vec<RememberResult>> {
    if new_steps.iter().all(is_plain) {
        call_batcher::run_batched(inner, new_steps).await
    } else {
        one_by_one(inner, &new_steps).await
    }
}

/// Whether a step has neither children nor a signal. Most steps have neither.
fn is_plain(new_step: &NewStep) -> bool {
    new_step.children.is_empty() && new_step.takes.is_none()
}

impl Batchable for NewStep {
    type Output = RememberResult;

    fn batcher(inner: &Inner) -> &CallBatcher<Self> {
        &inner.remember_batcher
    }

    async fn run(inner: &Inner, new_steps: &[Self]) -> Result<Vec<RememberResult>> {
        store_plain(&*inner.pool, new_steps).await
    }
}

/// Stores steps without children and signals.
async fn store_plain(on: &(impl Executor + Sync), new_steps: &[NewStep]) -> Result<Vec<RememberResult>> {
    let held = write(on, new_steps).await?;
    let (mut places, mut taken) = (HashSet::new(), Vec::new());
    let mut results = Vec::with_capacity(new_steps.len());
    for (index, new_step) in new_steps.iter().enumerate() {
        let kept = held.get(&index).copied();
        if kept == Some(true) && places.insert(place(new_step)) {
            results.push(RememberResult::Stored(new_step.step.clone()));
        } else {
            taken.extend(kept.map(|_| index));
            results.push(RememberResult::LeaseLost);
        }
    }
    if !taken.is_empty() {
        // A step that is gone by now was removed after the end of the job, so the lease was lost too.
        for (index, step) in find_existing(on, new_steps, &taken).await? {
            results[index] = RememberResult::AlreadyStored(step);
        }
    }
    Ok(results)
}

/// Runs the statement `remember`. Returns the indexes of the steps whose lease held, and whether their place was free.
async fn write(on: &(impl Executor + Sync), new_steps: &[NewStep]) -> Result<HashMap<usize, bool>> {
    let each = || new_steps.iter();
    let jobs: Vec<Uuid> = each().map(|new_step| new_step.lease.id.0).collect();
    let epochs: Vec<i64> = each().map(|new_step| new_step.lease.epoch as i64).collect();
    let places: Vec<i64> = each().map(|new_step| new_step.step.place.into()).collect();
    let kinds: Vec<i16> = each().map(|new_step| new_step.step.kind.code().into()).collect();
    let names: Vec<&str> = each().map(|new_step| new_step.step.name.as_str()).collect();
    let values: Vec<&[u8]> = each().map(|new_step| new_step.step.value.as_slice()).collect();
    let parameters: [Parameter<'_>; 6] = [
        (&jobs, Type::UUID_ARRAY),
        (&epochs, Type::INT8_ARRAY),
        (&places, Type::INT8_ARRAY),
        (&kinds, Type::INT2_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&values, Type::BYTEA_ARRAY),
    ];
    let rows = on.run(&REMEMBER, &parameters).await?;
    rows.iter().map(|row| Ok((index(row.try_get("ordinal")?), row.try_get("kept")?))).collect()
}

/// Reads the steps at the places of these new steps, each with its index.
async fn find_existing(
    on: &(impl Executor + Sync),
    new_steps: &[NewStep],
    indexes: &[usize],
) -> Result<Vec<(usize, Step)>> {
    let (jobs, places): (Vec<Uuid>, Vec<i64>) = indexes.iter().map(|index| place(&new_steps[*index])).unzip();
    let parameters: [Parameter<'_>; 2] = [(&jobs, Type::UUID_ARRAY), (&places, Type::INT8_ARRAY)];
    let rows = on.run(&FIND_STEPS, &parameters).await?;
    rows.iter().map(|row| Ok((indexes[index(row.try_get("ordinal")?)], read_step(row)?))).collect()
}

/// Stores steps in a transaction that locks their jobs, so that each statement sees the effects of those before it.
async fn one_by_one(inner: &Inner, new_steps: &[NewStep]) -> Result<Vec<RememberResult>> {
    let children: Vec<NewJob> = new_steps.iter().flat_map(|new_step| new_step.children.clone()).collect();
    enqueue::check(&children)?;
    let lanes = inner.use_lanes(&children).await?;
    inner.lower_positions(&children);
    let horizon = HorizonCheck::new(inner.manual_now(), &children);
    let storing = inner.pool.transaction(async |client| {
        let held = lock(client, &horizon, new_steps).await?;
        let mut results = Vec::with_capacity(new_steps.len());
        for new_step in new_steps {
            results.push(match held.get(&new_step.lease) {
                None => RememberResult::LeaseLost,
                Some(HeldLease { cancel_requested: true }) if !new_step.children.is_empty() => {
                    existing_step(client, new_step)
                        .await?
                        .map_or(RememberResult::CancelRequested, RememberResult::AlreadyStored)
                }
                Some(_) => remember_one(client, &lanes, horizon.now, new_step).await?,
            });
        }
        Ok(results)
    });
    storing.await
}

/// A job whose lease still holds.
struct HeldLease {
    cancel_requested: bool,
}

/// Locks jobs against other calls that store steps for them, and the claims of those whose leases still hold.
async fn lock(
    client: &Client,
    horizon: &HorizonCheck,
    new_steps: &[NewStep],
) -> Result<HashMap<Lease, HeldLease>> {
    let ids: Vec<Uuid> = new_steps.iter().map(|new_step| new_step.lease.id.0).collect();
    let epochs: Vec<i64> = new_steps.iter().map(|new_step| new_step.lease.epoch as i64).collect();
    let children: Vec<bool> = new_steps.iter().map(|new_step| !new_step.children.is_empty()).collect();
    let mut stripes: Vec<i32> = ids.iter().map(|id| locks::stripe_of_job(*id)).collect();
    stripes.sort_unstable();
    stripes.dedup();
    let parameters: [Parameter<'_>; 2] = [(&locks::CLASS_OF_JOBS, Type::INT4), (&stripes, Type::INT4_ARRAY)];
    client.run(&LOCK_STEPS, &parameters).await?;
    let mut parameters: Vec<Parameter<'_>> = horizon.parameters().to_vec();
    parameters.extend([
        (&ids as _, Type::UUID_ARRAY),
        (&epochs as _, Type::INT8_ARRAY),
        (&children as _, Type::BOOL_ARRAY),
    ]);
    let rows = client.run(&LOCK_LEASES, &parameters).await?;
    if rows.first().ok_or_else(Error::no_row)?.try_get("late")? {
        return Err(Start::too_far().into());
    }
    let mut held = HashMap::new();
    for row in &rows {
        if let Some(id) = row.try_get::<_, Option<Uuid>>("id")? {
            let epoch = row.try_get::<_, i64>("epoch")?.unsigned_abs();
            let cancel_requested = row.try_get("cancel_requested")?;
            held.insert(Lease { id: JobId(id), epoch }, HeldLease { cancel_requested });
        }
    }
    Ok(held)
}

async fn remember_one(
    client: &Client,
    lanes: &Lanes,
    now: Option<i64>,
    new_step: &NewStep,
) -> Result<RememberResult> {
    let result = match new_step.takes {
        Some(signal) => take_signal(client, new_step, signal).await?,
        None => store_plain(client, std::slice::from_ref(new_step)).await?.pop().ok_or_else(Error::no_row)?,
    };
    if matches!(result, RememberResult::Stored(_)) {
        enqueue::add_all(&mut &*client, lanes, now, &new_step.children).await?;
    }
    Ok(result)
}

/// Stores a step and takes its signal.
async fn take_signal(client: &Client, new_step: &NewStep, signal: Uuid) -> Result<RememberResult> {
    let NewStep { lease, step, .. } = new_step;
    let (place, kind) = (i64::from(step.place), i16::from(step.kind.code()));
    let parameters: [Parameter<'_>; 6] = [
        (&lease.id.0, Type::UUID),
        (&place, Type::INT8),
        (&kind, Type::INT2),
        (&step.name.as_str(), Type::TEXT),
        (&step.value.as_slice(), Type::BYTEA),
        (&signal, Type::UUID),
    ];
    let rows = client.run(&REMEMBER_SIGNAL, &parameters).await?;
    if !rows.is_empty() {
        return Ok(RememberResult::Stored(step.clone()));
    }
    Ok(existing_step(client, new_step).await?.map_or(RememberResult::NoSignal, RememberResult::AlreadyStored))
}

/// Reads the step at the place of a new step.
async fn existing_step(client: &Client, new_step: &NewStep) -> Result<Option<Step>> {
    Ok(find_existing(client, std::slice::from_ref(new_step), &[0]).await?.pop().map(|(_, step)| step))
}

/// The key of a new step in the table.
fn place(new_step: &NewStep) -> (Uuid, i64) {
    (new_step.lease.id.0, new_step.step.place.into())
}

/// The index of an item by its ordinal number, which counts from 1.
fn index(ordinal: i64) -> usize {
    usize::try_from(ordinal - 1).unwrap_or(usize::MAX)
}
