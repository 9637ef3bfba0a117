//! Ends jobs, or asks for their end, with everything below them.

use redrive_core::store::Cancelled;
use redrive_core::{JobId, StoreError};

use crate::arguments::Arguments;
use crate::open::{Inner, Spread};
use crate::{answer, script, turns};

pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
    let spread = Spread::of(&script::CANCEL, |arguments: &mut Arguments, n| arguments.id(ids[n]));
    turns::run_and_pass_on(inner, ids, spread, |word| word_of(&answer::text(word)?)).await
}

fn word_of(word: &str) -> Result<Cancelled, StoreError> {
    Ok(match word {
        "done" => Cancelled::Done,
        "requested" => Cancelled::Requested,
        "missing" => Cancelled::NotFound,
        state => Cancelled::Ended(answer::state(state)?),
    })
}
