//! Gives dead jobs a fresh run.

use redrive_core::store::Redriven;
use redrive_core::{JobId, StoreError};

use crate::open::Inner;
use crate::{answer, script};

pub(crate) async fn redrive(inner: &Inner, ids: &[JobId]) -> Result<Vec<Redriven>, StoreError> {
    let word = |word: &str| {
        Ok(match word {
            "done" => Redriven::Done,
            "missing" => Redriven::NotFound,
            state => Redriven::NotDead(answer::state(state)?),
        })
    };
    inner.ask(&script::REDRIVE, ids, word).await
}
