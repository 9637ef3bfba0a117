//! Holds jobs, and lets them go on.

use redrive_core::steps::Hold;
use redrive_core::{JobId, State, StoreError};

use crate::open::Inner;
use crate::turns::Turn;
use crate::{answer, script};

pub(crate) async fn hold(inner: &Inner, ids: &[JobId]) -> Result<Vec<Hold>, StoreError> {
    inner.ask(&script::HOLD, ids, word_of).await
}

pub(crate) async fn unhold(inner: &Inner, ids: &[JobId]) -> Result<Vec<Hold>, StoreError> {
    // One after the other: whose turn it is depends on who went on before.
    let partitions = inner.partitions_of(ids).await?;
    let mut answers = Vec::with_capacity(ids.len());
    for (id, partition) in ids.iter().zip(partitions) {
        let mut words = inner.ask(&script::UNHOLD, &[*id], |word| Ok(word.to_owned())).await?;
        let word = words.pop().unwrap_or_default();
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

fn word_of(word: &str) -> Result<Hold, StoreError> {
    Ok(match word.split_once(':') {
        Some((_, state)) => Hold::Ended(answer::state(state)?),
        None if word == "missing" => Hold::NotFound,
        None => Hold::Done(answer::state(word)?),
    })
}
