//! Removes dead jobs with their logs.

use redrive_core::store::Discarded;
use redrive_core::{JobId, StoreError};

use crate::open::Inner;
use crate::{answer, script};

pub(crate) async fn discard(inner: &Inner, ids: &[JobId]) -> Result<Vec<Discarded>, StoreError> {
    let word = |word: &str| {
        Ok(match word {
            "done" => Discarded::Done,
            "missing" => Discarded::NotFound,
            state => Discarded::NotDead(answer::state(state)?),
        })
    };
    inner.ask(&script::DISCARD, ids, word).await
}
