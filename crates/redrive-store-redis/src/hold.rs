//! Holds jobs, and lets them go on.

use redrive_core::steps::Hold;
use redrive_core::{JobId, State, StoreError};

use crate::arguments::Arguments;
use crate::open::{Inner, Spread};
use crate::resume::MORE;
use crate::turns::Turn;
use crate::{answer, cancel, script};

pub(crate) async fn hold(inner: &Inner, ids: &[JobId]) -> Result<Vec<Hold>, StoreError> {
    inner.ask(&script::HOLD, ids, word_of).await
}

pub(crate) async fn unhold(inner: &Inner, ids: &[JobId]) -> Result<Vec<Hold>, StoreError> {
    // One after the other: whose turn it is depends on who went on before.
    let partitions = inner.partitions_of(ids).await?;
    let mut answers = Vec::with_capacity(ids.len());
    for (id, partition) in ids.iter().zip(partitions) {
        let word = unhold_one(inner, *id).await?;
        answers.push(match Turn::read(&word) {
            Some(turn) => {
                let goes_on = turn.take(inner, partition, *id).await?;
                Hold::Done(if goes_on { State::Pending } else { State::Waiting })
            }
            None => word_of(&word)?,
        });
    }
    inner.wake_if(answers.iter().any(|answer| matches!(answer, Hold::Done(state) if state.is_claimable())));
    Ok(answers)
}

async fn unhold_one(inner: &Inner, id: JobId) -> Result<String, StoreError> {
    loop {
        let spread = Spread::of(&script::UNHOLD, |arguments: &mut Arguments, _| arguments.id(id));
        let word = cancel::run(inner, &[id], spread, answer::text).await?.pop().unwrap_or_default();
        if word != MORE {
            return Ok(word);
        }
    }
}

fn word_of(word: &str) -> Result<Hold, StoreError> {
    Ok(match word.split_once(':') {
        Some((_, state)) => Hold::Ended(answer::state(state)?),
        None if word == "missing" => Hold::NotFound,
        None => Hold::Done(answer::state(word)?),
    })
}
