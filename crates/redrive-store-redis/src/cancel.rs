//! Ends jobs, or asks for their end, with everything below them.

use redrive_core::store::Cancelled;
use redrive_core::{JobId, StoreError};

use crate::open::Inner;
use crate::{answer, script, turns};

pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
    let freed = std::sync::Mutex::new(Vec::new());
    let read = |partition, value| {
        let [answers, scopes] = answer::parts(value)?;
        let scopes = answer::texts(scopes)?;
        freed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((partition, scopes));
        answer::texts(answers)?.iter().map(|word| word_of(word)).collect()
    };
    let cancelled =
        inner.run_by_home(&script::CANCEL, ids, |_| {}, |arguments, n| arguments.id(ids[n]), read).await?;
    for (partition, scopes) in freed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        turns::pass_on(inner, partition, scopes).await?;
    }
    Ok(cancelled)
}

fn word_of(word: &str) -> Result<Cancelled, StoreError> {
    Ok(match word {
        "done" => Cancelled::Done,
        "requested" => Cancelled::Requested,
        "missing" => Cancelled::NotFound,
        state => Cancelled::Ended(answer::state(state)?),
    })
}
