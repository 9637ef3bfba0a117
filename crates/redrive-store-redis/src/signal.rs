//! Leaves signals.

use redrive_core::steps::{Signal, Signalled};
use redrive_core::{JobId, StoreError};

use crate::arguments::Arguments;
use crate::open::{Inner, Spread};
use crate::{answer, script};

pub(crate) async fn signal(inner: &Inner, signals: &[Signal]) -> Result<Vec<Signalled>, StoreError> {
    let ids: Vec<JobId> = signals.iter().map(|signal| signal.job).collect();
    let read = |_, value| answer::texts(value)?.iter().map(|word| word_of(word)).collect();
    let add = |arguments: &mut Arguments, n: usize| {
        let Signal { job, id, name, value } = &signals[n];
        arguments.id(*job);
        arguments.text(id.simple());
        arguments.text(name);
        arguments.bytes(value);
    };
    inner.run_by_home(&ids, Spread::of(&script::SIGNAL, add), read).await
}

fn word_of(word: &str) -> Result<Signalled, StoreError> {
    Ok(match word {
        "kept" => Signalled::Kept,
        "missing" => Signalled::NotFound,
        state => Signalled::Ended(answer::state(state)?),
    })
}
