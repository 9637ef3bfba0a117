//! Remembers steps under their leases.

use redrive_core::steps::{Memory, Remembered};
use redrive_core::{JobId, StoreError};

use crate::arguments::Arguments;
use crate::open::{Inner, Spread};
use crate::{answer, enqueue, recall, script};

pub(crate) async fn remember(inner: &Inner, memories: &[Memory]) -> Result<Vec<Remembered>, StoreError> {
    enqueue::check_starts(inner, memories.iter().flat_map(|memory| &memory.children)).await?;
    let ids: Vec<JobId> = memories.iter().map(|memory| memory.lease.id).collect();
    let read = |_, value| {
        let mut answers = answer::items(value)?.into_iter();
        let mut remembered = Vec::new();
        while let (Some(word), Some(step)) = (answers.next(), answers.next()) {
            let step = answer::bytes(step)?;
            remembered.push(match answer::text(word)?.as_str() {
                "kept" => Remembered::Kept(recall::read(&step)?),
                "before" => Remembered::Before(recall::read(&step)?),
                "nosignal" => Remembered::NoSignal,
                _ => Remembered::LeaseLost,
            });
        }
        Ok(remembered)
    };
    let add = |arguments: &mut Arguments, n: usize| {
        let Memory { lease, step, children, takes } = &memories[n];
        arguments.lease(inner, *lease);
        arguments.text(step.place);
        arguments.bytes(&recall::write(step));
        arguments.bytes(&step.value);
        arguments.text(takes.as_ref().map(ToString::to_string).unwrap_or_default());
        enqueue::write_all(arguments, children);
    };
    inner.run_by_home(&ids, Spread::of(&script::REMEMBER, add), read).await
}
