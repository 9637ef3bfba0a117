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
        while let (Some(word), Some(before)) = (answers.next(), answers.next()) {
            remembered.push(read_one(&answer::text(word)?, &answer::bytes(before)?)?);
        }
        Ok(remembered)
    };
    let add = |arguments: &mut Arguments, n: usize| {
        let Memory { lease, step, children, takes } = &memories[n];
        arguments.lease(inner, *lease);
        arguments.text(step.place);
        arguments.bytes(&recall::write(step));
        arguments.text(takes.map(|signal| signal.simple().to_string()).unwrap_or_default());
        enqueue::write_all(arguments, children);
    };
    let answers: Vec<Answer> = inner.run_by_home(&ids, Spread::of(&script::REMEMBER, add), read).await?;
    let of_memory = |(memory, answer): (&Memory, Answer)| match answer {
        Answer::Kept => Remembered::Kept(memory.step.clone()),
        Answer::Refused(why) => why,
    };
    Ok(memories.iter().zip(answers).map(of_memory).collect())
}

/// What the script says about one memory.
enum Answer {
    Kept,
    Refused(Remembered),
}

fn read_one(word: &str, before: &[u8]) -> Result<Answer, StoreError> {
    Ok(match word {
        "kept" => Answer::Kept,
        "before" => Answer::Refused(Remembered::Before(recall::read(before)?)),
        "cancel" => Answer::Refused(Remembered::CancelRequested),
        "nosignal" => Answer::Refused(Remembered::NoSignal),
        _ => Answer::Refused(Remembered::LeaseLost),
    })
}
