//! Makes jobs due now that wait for their time.

use redrive_core::store::RunNow;
use redrive_core::{JobId, StoreError};

use crate::open::Inner;
use crate::{answer, script};

pub(crate) async fn run_now(inner: &Inner, ids: &[JobId]) -> Result<Vec<RunNow>, StoreError> {
    let word = |word: &str| {
        Ok(match word {
            "done" => RunNow::Done,
            "missing" => RunNow::NotFound,
            state => RunNow::NotWaiting(answer::state(state)?),
        })
    };
    inner.ask(&script::RUN_NOW, ids, word).await
}
