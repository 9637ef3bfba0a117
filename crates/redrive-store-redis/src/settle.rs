//! Applies verdicts under leases.

use redis::Value;
use redrive_core::store::{Settled, Settlement};
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, State, StoreError, Verdict};

use crate::arguments::{Arguments, Fields};
use crate::attempts;
use crate::open::{Inner, Spread, Way};
use crate::{answer, cancel, enqueue, row, script};

pub(crate) async fn settle(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
    enqueue::check_starts(inner, settlements.iter().flat_map(|settlement| &settlement.follow_ups)).await?;
    let mut settled = Vec::with_capacity(settlements.len());
    for batch in batches(settlements) {
        settled.extend(if batch.iter().all(Settlement::is_plain) {
            complete(inner, batch).await?
        } else {
            apply(inner, batch).await?
        });
    }
    let goes_on = settled.iter().any(|each| matches!(each, Settled::Applied(state) if state.is_claimable()));
    inner.wake_if(goes_on || settlements.iter().any(|settlement| !settlement.follow_ups.is_empty()));
    Ok(settled)
}

/// What can be settled at once: a follow-up under a key is added only after those went on whose turn had come before it.
fn batches(settlements: &[Settlement]) -> impl Iterator<Item = &[Settlement]> {
    let bounded = |settlement: &Settlement| settlement.follow_ups.iter().any(|job| job.partition.is_some());
    settlements
        .chunk_by(move |one, other| one.is_plain() == other.is_plain() && !bounded(one) && !bounded(other))
}

/// Successes with nothing more to say.
async fn complete(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
    let add = |arguments: &mut Arguments, n: usize| arguments.lease(inner, settlements[n].lease);
    let word = |value| {
        let applied = value == Value::Int(1);
        Ok(if applied { Settled::Applied(State::Succeeded) } else { Settled::LeaseLost })
    };
    cancel::run(inner, &ids(settlements), Spread::of(&script::COMPLETE, add), word).await
}

async fn apply(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
    let spread = Spread {
        script: &script::SETTLE,
        way: Way::Shared,
        begin: |arguments: &mut Arguments| arguments.count(inner.options.attempts_kept),
        add: |arguments: &mut Arguments, n: usize| write(inner, arguments, &settlements[n]),
    };
    let word = |value| {
        Ok(match answer::text(value)?.as_str() {
            "lost" => Settled::LeaseLost,
            state => Settled::Applied(answer::state(state)?),
        })
    };
    cancel::run(inner, &ids(settlements), spread, word).await
}

fn ids(settlements: &[Settlement]) -> Vec<JobId> {
    settlements.iter().map(|settlement| settlement.lease.id).collect()
}

/// One settlement, in the order in which `settle.lua` reads it.
fn write(inner: &Inner, arguments: &mut Arguments, settlement: &Settlement) {
    let effect = settlement.verdict.effect();
    arguments.lease(inner, settlement.lease);
    arguments.text(effect.state.code());
    arguments.text(effect.state_if_cancelling.code());
    arguments.text(effect.wait.map(|wait| ceil_ms(wait).to_string()).unwrap_or_default());
    arguments.text(effect.refund);
    arguments.text(ceil_ms(effect.budget_pause));
    let mut fields = Fields::default();
    fields.text("error", settlement.error.as_ref());
    fields.text("status", settlement.status);
    fields.text("awaits", settlement.verdict.awaits().map(row::awaits_name));
    fields.text("reason", settlement.verdict.reason());
    fields.bytes("output", settlement.verdict.output());
    if let Verdict::Retry(wait) = settlement.verdict {
        fields.text("wait", Some(ceil_ms(wait)));
    }
    fields.bytes("entry", settlement.entry.as_ref().map(attempts::write).as_deref());
    arguments.extend(fields);
    enqueue::write_all(arguments, &settlement.follow_ups);
}
