//! Remembers steps under their leases, each once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redrive_core::steps::{Memory, Remembered, Step};
use redrive_core::{JobId, Lease, NewJob, Start, StoreError};
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::enqueue::{self, Limit, Query};
use crate::error::{Sorted, nothing};
use crate::gather::{self, Gather, Shared};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::recall;

pub(crate) async fn remember(
    inner: &Arc<Inner>,
    memories: Vec<Memory>,
) -> Result<Vec<Remembered>, StoreError> {
    if memories.iter().all(is_plain) {
        gather::together(inner, memories).await
    } else {
        one_by_one(inner, &memories).await
    }
}

/// A step and nothing more, as most are.
fn is_plain(memory: &Memory) -> bool {
    memory.children.is_empty() && memory.takes.is_none()
}

impl Shared for Memory {
    type Answer = Remembered;

    fn gather(inner: &Inner) -> &Gather<Self> {
        &inner.memories
    }

    async fn run(inner: &Inner, memories: &[Self]) -> Result<Vec<Remembered>, StoreError> {
        keep(&*inner.pool, memories).await
    }
}

/// Remembers steps without children and signals.
async fn keep(to: &(impl Query + Sync), memories: &[Memory]) -> Result<Vec<Remembered>, StoreError> {
    let held = write(to, memories).await?;
    let (mut seen, mut before) = (HashSet::new(), Vec::new());
    let mut answers = Vec::with_capacity(memories.len());
    for (turn, memory) in memories.iter().enumerate() {
        let kept = held.get(&turn).copied();
        if kept == Some(true) && seen.insert(place(memory)) {
            answers.push(Remembered::Kept(memory.step.clone()));
        } else {
            before.extend(kept.map(|_| turn));
            answers.push(Remembered::LeaseLost);
        }
    }
    if !before.is_empty() {
        // A step that is gone again by now was forgotten after the job's end, and the lease was lost by then.
        for (turn, step) in look_up(to, memories, &before).await? {
            answers[turn] = Remembered::Before(step);
        }
    }
    Ok(answers)
}

/// Runs `remember.sql`; says for which memories the lease held, and whether their place was free.
async fn write(to: &(impl Query + Sync), memories: &[Memory]) -> Result<HashMap<usize, bool>, StoreError> {
    let each = || memories.iter();
    let jobs: Vec<Uuid> = each().map(|memory| memory.lease.id.0).collect();
    let epochs: Vec<i64> = each().map(|memory| memory.lease.epoch as i64).collect();
    let places: Vec<i64> = each().map(|memory| memory.step.place.into()).collect();
    let kinds: Vec<i16> = each().map(|memory| memory.step.kind.code().into()).collect();
    let names: Vec<&str> = each().map(|memory| memory.step.name.as_str()).collect();
    let values: Vec<&[u8]> = each().map(|memory| memory.step.value.as_slice()).collect();
    let parameters: [Parameter<'_>; 6] = [
        (&jobs, Type::UUID_ARRAY),
        (&epochs, Type::INT8_ARRAY),
        (&places, Type::INT8_ARRAY),
        (&kinds, Type::INT2_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&values, Type::BYTEA_ARRAY),
    ];
    let rows = to.typed(include_str!("../sql/remember.sql"), &parameters).await?;
    rows.iter().map(|row| Ok((turn(row.try_get("turn").sorted()?), row.try_get("kept").sorted()?))).collect()
}

/// What is remembered where these memories would go, each with its turn.
async fn look_up(
    to: &(impl Query + Sync),
    memories: &[Memory],
    turns: &[usize],
) -> Result<Vec<(usize, Step)>, StoreError> {
    let (jobs, places): (Vec<Uuid>, Vec<i64>) = turns.iter().map(|turn| place(&memories[*turn])).unzip();
    let parameters: [Parameter<'_>; 2] = [(&jobs, Type::UUID_ARRAY), (&places, Type::INT8_ARRAY)];
    let rows = to.typed(include_str!("../sql/remember_before.sql"), &parameters).await?;
    rows.iter().map(|row| Ok((turns[turn(row.try_get("turn").sorted()?)], recall::step(row)?))).collect()
}

/// Remembers steps in a transaction that holds their jobs, so that each statement sees what those before it did.
async fn one_by_one(inner: &Inner, memories: &[Memory]) -> Result<Vec<Remembered>, StoreError> {
    let children: Vec<NewJob> = memories.iter().flat_map(|memory| memory.children.clone()).collect();
    enqueue::check(&children)?;
    let lanes = inner.lanes.with(&inner.pool, &children).await?;
    inner.expect(&children);
    let limit = Limit::new(inner.manual_now(), &children);
    let remembering = inner.pool.transaction(async |client| {
        let held = lock(client, &limit, memories).await?;
        let mut answers = Vec::with_capacity(memories.len());
        for memory in memories {
            answers.push(match held.get(&memory.lease) {
                None => Remembered::LeaseLost,
                Some(Held { cancel_requested: true }) if !memory.children.is_empty() => {
                    before(client, memory).await?.map_or(Remembered::CancelRequested, Remembered::Before)
                }
                Some(_) => remember_one(client, &lanes, limit.now, memory).await?,
            });
        }
        Ok(answers)
    });
    remembering.await
}

/// A job whose lease still holds.
struct Held {
    cancel_requested: bool,
}

/// Locks the jobs whose leases still hold.
async fn lock(
    client: &Client,
    limit: &Limit,
    memories: &[Memory],
) -> Result<HashMap<Lease, Held>, StoreError> {
    let ids: Vec<Uuid> = memories.iter().map(|memory| memory.lease.id.0).collect();
    let epochs: Vec<i64> = memories.iter().map(|memory| memory.lease.epoch as i64).collect();
    let children: Vec<bool> = memories.iter().map(|memory| !memory.children.is_empty()).collect();
    let mut parameters: Vec<Parameter<'_>> = limit.parameters().to_vec();
    parameters.extend([
        (&ids as _, Type::UUID_ARRAY),
        (&epochs as _, Type::INT8_ARRAY),
        (&children as _, Type::BOOL_ARRAY),
    ]);
    let rows = client.typed(include_str!("../sql/remember_lock.sql"), &parameters).await?;
    if rows.first().ok_or_else(nothing)?.try_get("late").sorted()? {
        return Err(Start::too_far().into());
    }
    let mut held = HashMap::new();
    for row in &rows {
        if let Some(id) = row.try_get::<_, Option<Uuid>>("id").sorted()? {
            let epoch = row.try_get::<_, i64>("epoch").sorted()?.unsigned_abs();
            let cancel_requested = row.try_get("cancel_requested").sorted()?;
            held.insert(Lease { id: JobId(id), epoch }, Held { cancel_requested });
        }
    }
    Ok(held)
}

async fn remember_one(
    client: &Client,
    lanes: &Lanes,
    now: Option<i64>,
    memory: &Memory,
) -> Result<Remembered, StoreError> {
    let answer = match memory.takes {
        Some(signal) => take(client, memory, signal).await?,
        None => keep(client, std::slice::from_ref(memory)).await?.pop().ok_or_else(nothing)?,
    };
    if matches!(answer, Remembered::Kept(_)) {
        enqueue::add_all(&mut &*client, lanes, now, &memory.children).await?;
    }
    Ok(answer)
}

/// Remembers a step and takes its signal.
async fn take(client: &Client, memory: &Memory, signal: Uuid) -> Result<Remembered, StoreError> {
    let Memory { lease, step, .. } = memory;
    let (place, kind) = (i64::from(step.place), i16::from(step.kind.code()));
    let parameters: [Parameter<'_>; 6] = [
        (&lease.id.0, Type::UUID),
        (&place, Type::INT8),
        (&kind, Type::INT2),
        (&step.name.as_str(), Type::TEXT),
        (&step.value.as_slice(), Type::BYTEA),
        (&signal, Type::UUID),
    ];
    let rows = client.typed(include_str!("../sql/remember_signal.sql"), &parameters).await?;
    if !rows.is_empty() {
        return Ok(Remembered::Kept(step.clone()));
    }
    Ok(before(client, memory).await?.map_or(Remembered::NoSignal, Remembered::Before))
}

/// What is remembered where a memory would go.
async fn before(client: &Client, memory: &Memory) -> Result<Option<Step>, StoreError> {
    Ok(look_up(client, std::slice::from_ref(memory), &[0]).await?.pop().map(|(_, step)| step))
}

/// Where a memory goes.
fn place(memory: &Memory) -> (Uuid, i64) {
    (memory.lease.id.0, memory.step.place.into())
}

/// An ordinality as an index.
fn turn(ordinality: i64) -> usize {
    usize::try_from(ordinality - 1).unwrap_or(usize::MAX)
}
