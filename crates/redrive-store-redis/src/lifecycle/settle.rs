//! Applies verdicts under leases, and renews leases.

use std::time::Duration;

use redis::Value;
use redrive_core::store::{ExtendResult, SettleResult, Settlement};
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, Lease, State, StoreError, Verdict};

use super::enqueue;
use crate::inner::{CallConnections, Inner, ShardedCall};
use crate::lifecycle::job_tree;
use crate::script::{self, Arguments, Fields, reply};
use crate::{entries, row};

pub(crate) async fn settle(
    inner: &Inner,
    settlements: &[Settlement],
) -> Result<Vec<SettleResult>, StoreError> {
    enqueue::check_starts(inner, settlements.iter().flat_map(|settlement| &settlement.follow_ups)).await?;
    let mut settled = Vec::with_capacity(settlements.len());
    for batch in batches(settlements) {
        settled.extend(if batch.iter().all(Settlement::is_plain) {
            settle_successes(inner, batch).await?
        } else {
            apply(inner, batch).await?
        });
    }
    let retries =
        settled.iter().any(|result| matches!(result, SettleResult::Applied(state) if state.is_claimable()));
    inner.wake_if(retries || settlements.iter().any(|settlement| !settlement.follow_ups.is_empty()));
    Ok(settled)
}

/// Splits settlements into batches that one script can settle. A follow-up job with a partition key ends a batch: jobs that already
/// wait for a slot under the key get it first.
fn batches(settlements: &[Settlement]) -> impl Iterator<Item = &[Settlement]> {
    let adds_keyed =
        |settlement: &Settlement| settlement.follow_ups.iter().any(|job| job.partition.is_some());
    settlements.chunk_by(move |one, other| {
        one.is_plain() == other.is_plain() && !adds_keyed(one) && !adds_keyed(other)
    })
}

/// Settles successes that have no output, log entry or follow-ups.
async fn settle_successes(
    inner: &Inner,
    settlements: &[Settlement],
) -> Result<Vec<SettleResult>, StoreError> {
    let add = |arguments: &mut Arguments, n: usize| arguments.lease(inner, settlements[n].lease);
    let parse = |value| {
        let applied = value == Value::Int(1);
        Ok(if applied { SettleResult::Applied(State::Succeeded) } else { SettleResult::LeaseLost })
    };
    job_tree::run(inner, &ids(settlements), ShardedCall::new(&script::SETTLE_SUCCESSES, add), parse).await
}

async fn apply(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
    let call = ShardedCall {
        script: &script::SETTLE,
        connections: CallConnections::Shared,
        begin: |arguments: &mut Arguments| arguments.count(inner.options.attempts_kept),
        add: |arguments: &mut Arguments, n: usize| write(inner, arguments, &settlements[n]),
    };
    let parse = |value| {
        Ok(match reply::text(value)?.as_str() {
            "lost" => SettleResult::LeaseLost,
            state => SettleResult::Applied(reply::state(state)?),
        })
    };
    job_tree::run(inner, &ids(settlements), call, parse).await
}

fn ids(settlements: &[Settlement]) -> Vec<JobId> {
    settlements.iter().map(|settlement| settlement.lease.id).collect()
}

/// Writes one settlement, in the order in which the script `settle` reads it.
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
    fields.text("awaits", settlement.verdict.awaits().map(row::wait_name));
    fields.text("reason", settlement.verdict.reason());
    fields.bytes("output", settlement.verdict.output());
    if let Verdict::Retry(wait) = settlement.verdict {
        fields.text("wait", Some(ceil_ms(wait)));
    }
    fields.bytes("entry", settlement.entry.as_ref().map(entries::write_report).as_deref());
    arguments.fields(fields);
    enqueue::write_all(arguments, &settlement.follow_ups);
}

/// Renews leases on a connection of their own, so that heartbeats get through however busy the others are.
pub(crate) async fn extend(
    inner: &Inner,
    leases: &[Lease],
    span: Duration,
) -> Result<Vec<ExtendResult>, StoreError> {
    let ids: Vec<JobId> = leases.iter().map(|lease| lease.id).collect();
    let call = ShardedCall {
        script: &script::EXTEND,
        connections: CallConnections::Heartbeats,
        begin: |arguments: &mut Arguments| arguments.text(span.as_millis()),
        add: |arguments: &mut Arguments, n: usize| arguments.lease(inner, leases[n]),
    };
    let parse = |word: &String| match word.as_str() {
        "renewed" => ExtendResult::Renewed,
        "cancel" => ExtendResult::CancelRequested,
        _ => ExtendResult::LeaseLost,
    };
    let read = |_, value| Ok(reply::texts(value)?.iter().map(parse).collect());
    inner.run_for_jobs(&ids, call, read).await
}
