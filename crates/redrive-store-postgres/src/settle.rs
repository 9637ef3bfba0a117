//! Applies verdicts under their leases, each with its log entry and what follows it.

use std::collections::{HashMap, HashSet};

use redrive_core::limits::HORIZON;
use redrive_core::store::{Settled, Settlement};
use redrive_core::time::ceil_ms;
use redrive_core::{Lease, NewJob, Reason, Start, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::columns::Columns;
use crate::enqueue;
use crate::error::{Sorted, nothing};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;

pub(crate) async fn settle(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
    let rows = if settlements.iter().all(Settlement::is_plain) {
        plain(inner, settlements).await?
    } else {
        full(inner, settlements).await?
    };
    let mut states = HashMap::with_capacity(rows.len());
    for row in &rows {
        let Some(id) = row.try_get::<_, Option<Uuid>>("id").sorted()? else { continue };
        let (epoch, code): (i64, i16) = (row.try_get("epoch").sorted()?, row.try_get("state").sorted()?);
        let state = row::state(code);
        let state = state.ok_or_else(|| StoreError::Corrupt(format!("job {id}: {code} is no state")))?;
        states.insert((id, epoch), state);
    }
    // The first of several settlements under one lease is the one that was made.
    let results = settlements.iter().map(|each| states.remove(&key(each.lease)));
    Ok(results.map(|state| state.map_or(Settled::LeaseLost, Settled::Applied)).collect())
}

async fn plain(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Row>, StoreError> {
    let mut leases: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    let (ids, epochs): (Vec<Uuid>, Vec<i64>) = leases.into_iter().map(key).unzip();
    let now = inner.manual_now();
    let sql = include_str!("../sql/settle_plain.sql");
    inner.pool.query(sql, &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY), (&epochs, Type::INT8_ARRAY)]).await
}

async fn full(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Row>, StoreError> {
    for settlement in settlements {
        enqueue::check(&settlement.follow_ups)?;
    }
    let follow_ups: Vec<NewJob> = settlements.iter().flat_map(|each| each.follow_ups.clone()).collect();
    let lanes = inner.lanes.with(&inner.pool, &follow_ups).await?;
    inner.expect(&follow_ups);
    let given = Given::new(settlements, &lanes)?;
    let (now, horizon) = (inner.manual_now(), ceil_ms(HORIZON));
    let mut parameters: Vec<Parameter<'_>> = vec![(&now, Type::INT8), (&horizon, Type::INT8)];
    parameters.extend(given.parameters());
    let rows = inner.pool.query(include_str!("../sql/settle.sql"), &parameters).await?;
    if rows.first().ok_or_else(nothing)?.try_get("late").sorted()? {
        return Err(Start::too_far().into());
    }
    Ok(rows)
}

fn key(lease: Lease) -> (Uuid, i64) {
    (lease.id.0, lease.epoch as i64)
}

/// Settlements as columns, in the order of `settle.sql`.
#[derive(Default)]
struct Given<'a> {
    ids: Vec<Uuid>,
    epochs: Vec<i64>,
    states: Vec<i16>,
    states_if_cancelling: Vec<i16>,
    waits: Vec<Option<i64>>,
    refunds: Vec<i32>,
    budget_pauses: Vec<i64>,
    errors: Vec<Option<&'a str>>,
    statuses: Vec<Option<i32>>,
    reasons: Vec<Option<&'static str>>,
    outputs: Vec<Option<&'a [u8]>>,
    entries: Entries<'a>,
    parents: Vec<Uuid>,
    parent_epochs: Vec<i64>,
    follow_ups: Columns<'a>,
}

/// Log entries as columns.
#[derive(Default)]
struct Entries<'a> {
    jobs: Vec<Uuid>,
    epochs: Vec<i64>,
    runs: Vec<i32>,
    attempts: Vec<i32>,
    started_at: Vec<i64>,
    durations: Vec<i64>,
    outcomes: Vec<&'a str>,
    errors: Vec<Option<&'a str>>,
    details: Vec<Option<&'a str>>,
}

impl<'a> Given<'a> {
    /// Ordered by id, so that writers of the same rows wait for each other in the same order.
    fn new(settlements: &'a [Settlement], lanes: &Lanes) -> Result<Self, StoreError> {
        let mut seen = HashSet::with_capacity(settlements.len());
        let mut firsts: Vec<&Settlement> =
            settlements.iter().filter(|settlement| seen.insert(settlement.lease)).collect();
        let follow_ups = firsts.iter().flat_map(|settlement| &settlement.follow_ups);
        let mut given = Self { follow_ups: Columns::new(follow_ups, lanes)?, ..Self::default() };
        for settlement in &firsts {
            let (id, epoch) = key(settlement.lease);
            given.parents.extend(settlement.follow_ups.iter().map(|_| id));
            given.parent_epochs.extend(settlement.follow_ups.iter().map(|_| epoch));
        }
        firsts.sort_by_key(|settlement| settlement.lease);
        for settlement in firsts {
            given.push(settlement);
        }
        Ok(given)
    }

    fn push(&mut self, settlement: &'a Settlement) {
        let effect = settlement.verdict.effect();
        let (id, epoch) = key(settlement.lease);
        self.ids.push(id);
        self.epochs.push(epoch);
        self.states.push(effect.state.code().into());
        self.states_if_cancelling.push(effect.state_if_cancelling.code().into());
        self.waits.push(effect.wait.map(ceil_ms));
        self.refunds.push(effect.refund as i32);
        self.budget_pauses.push(ceil_ms(effect.budget_pause));
        self.errors.push(settlement.error.as_deref());
        self.statuses.push(settlement.status.map(i32::from));
        self.reasons.push(settlement.verdict.reason().map(Reason::name));
        self.outputs.push(settlement.verdict.output());
        if let Some(entry) = &settlement.entry {
            let entries = &mut self.entries;
            entries.jobs.push(id);
            entries.epochs.push(epoch);
            entries.runs.push(entry.run as i32);
            entries.attempts.push(entry.attempt as i32);
            entries.started_at.push(entry.started_at.as_ms());
            entries.durations.push(ceil_ms(entry.duration));
            entries.outcomes.push(&entry.outcome);
            entries.errors.push(entry.error.as_deref());
            entries.details.push(entry.detail.as_deref());
        }
    }

    fn parameters(&self) -> Vec<Parameter<'_>> {
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&self.ids, Type::UUID_ARRAY),
            (&self.epochs, Type::INT8_ARRAY),
            (&self.states, Type::INT2_ARRAY),
            (&self.states_if_cancelling, Type::INT2_ARRAY),
            (&self.waits, Type::INT8_ARRAY),
            (&self.refunds, Type::INT4_ARRAY),
            (&self.budget_pauses, Type::INT8_ARRAY),
            (&self.errors, Type::TEXT_ARRAY),
            (&self.statuses, Type::INT4_ARRAY),
            (&self.reasons, Type::TEXT_ARRAY),
            (&self.outputs, Type::BYTEA_ARRAY),
            (&self.entries.jobs, Type::UUID_ARRAY),
            (&self.entries.epochs, Type::INT8_ARRAY),
            (&self.entries.runs, Type::INT4_ARRAY),
            (&self.entries.attempts, Type::INT4_ARRAY),
            (&self.entries.started_at, Type::INT8_ARRAY),
            (&self.entries.durations, Type::INT8_ARRAY),
            (&self.entries.outcomes, Type::TEXT_ARRAY),
            (&self.entries.errors, Type::TEXT_ARRAY),
            (&self.entries.details, Type::TEXT_ARRAY),
            (&self.parents, Type::UUID_ARRAY),
            (&self.parent_epochs, Type::INT8_ARRAY),
        ];
        parameters.extend(self.follow_ups.parameters());
        parameters
    }
}
