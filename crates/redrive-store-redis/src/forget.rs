//! Forgets the steps of dead jobs.

use redrive_core::steps::Forgotten;
use redrive_core::{JobId, StoreError};

use crate::open::Inner;
use crate::{answer, script};

pub(crate) async fn forget(inner: &Inner, ids: &[JobId]) -> Result<Vec<Forgotten>, StoreError> {
    let word = |word: &str| {
        Ok(match word {
            "done" => Forgotten::Done,
            "missing" => Forgotten::NotFound,
            state => Forgotten::NotDead(answer::state(state)?),
        })
    };
    inner.ask(&script::FORGET, ids, word).await
}
