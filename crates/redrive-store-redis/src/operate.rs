//! Actions of operators: cancel, redrive, run now, discard, pause.

use redrive_core::steps::PauseResult;
use redrive_core::store::{CancelResult, DiscardResult, RedriveResult, RunNowResult};
use redrive_core::{JobId, State, StoreError};

use crate::inner::{Inner, ShardedCall};
use crate::lifecycle::job_tree;
use crate::limits::SlotWait;
use crate::script::{self, Arguments, reply};
use crate::steps::ASK_AGAIN;

pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<Vec<CancelResult>, StoreError> {
    let call = ShardedCall::new(&script::CANCEL, |arguments: &mut Arguments, n| arguments.id(ids[n]));
    let parse = |value| {
        Ok(match reply::text(value)?.as_str() {
            "done" => CancelResult::Done,
            "requested" => CancelResult::Requested,
            "missing" => CancelResult::NotFound,
            state => CancelResult::Ended(reply::state(state)?),
        })
    };
    job_tree::run(inner, ids, call, parse).await
}

pub(crate) async fn redrive(inner: &Inner, ids: &[JobId]) -> Result<Vec<RedriveResult>, StoreError> {
    let parse = |word: &str| {
        Ok(match word {
            "done" => RedriveResult::Done,
            "missing" => RedriveResult::NotFound,
            state => RedriveResult::NotDead(reply::state(state)?),
        })
    };
    inner.run_for_ids(&script::REDRIVE, ids, parse).await
}

pub(crate) async fn run_now(inner: &Inner, ids: &[JobId]) -> Result<Vec<RunNowResult>, StoreError> {
    let parse = |word: &str| {
        Ok(match word {
            "done" => RunNowResult::Done,
            "missing" => RunNowResult::NotFound,
            state => RunNowResult::NotWaiting(reply::state(state)?),
        })
    };
    inner.run_for_ids(&script::RUN_NOW, ids, parse).await
}

pub(crate) async fn discard(inner: &Inner, ids: &[JobId]) -> Result<Vec<DiscardResult>, StoreError> {
    let parse = |word: &str| {
        Ok(match word {
            "done" => DiscardResult::Done,
            "missing" => DiscardResult::NotFound,
            state => DiscardResult::NotDead(reply::state(state)?),
        })
    };
    inner.run_for_ids(&script::DISCARD, ids, parse).await
}

pub(crate) async fn pause(inner: &Inner, ids: &[JobId]) -> Result<Vec<PauseResult>, StoreError> {
    inner.run_for_ids(&script::PAUSE, ids, parse_pause).await
}

/// Unpauses jobs one after the other: whether a job gets a slot depends on the jobs before it.
pub(crate) async fn unpause(inner: &Inner, ids: &[JobId]) -> Result<Vec<PauseResult>, StoreError> {
    let shards = inner.shards_of(ids).await?;
    let mut results = Vec::with_capacity(ids.len());
    for (id, shard) in ids.iter().zip(shards) {
        let word = unpause_one(inner, *id).await?;
        results.push(match SlotWait::parse(&word) {
            Some(wait) => {
                let granted = wait.grant_if_free(inner, shard, *id).await?;
                PauseResult::Done(if granted { State::Pending } else { State::Waiting })
            }
            None => parse_pause(&word)?,
        });
    }
    let is_claimable =
        |result: &PauseResult| matches!(result, PauseResult::Done(state) if state.is_claimable());
    inner.wake_if(results.iter().any(is_claimable));
    Ok(results)
}

async fn unpause_one(inner: &Inner, id: JobId) -> Result<String, StoreError> {
    loop {
        let call = ShardedCall::new(&script::UNPAUSE, |arguments: &mut Arguments, _| arguments.id(id));
        let word = job_tree::run(inner, &[id], call, reply::text).await?.pop().unwrap_or_default();
        if word != ASK_AGAIN {
            return Ok(word);
        }
    }
}

fn parse_pause(word: &str) -> Result<PauseResult, StoreError> {
    Ok(match word.split_once(':') {
        Some((_, state)) => PauseResult::Ended(reply::state(state)?),
        None if word == "missing" => PauseResult::NotFound,
        None => PauseResult::Done(reply::state(word)?),
    })
}
