//! Ends jobs, or requests their end, with everything below them. A script ends a bounded number of jobs; a job below which
//! something is left has a mark, and whoever left one works it off before it returns. [`crate::sweep`] does so after a crash.

use redis::Value;
use redrive_core::store::Cancelled;
use redrive_core::{JobId, StoreError};

use crate::arguments::Arguments;
use crate::open::{Inner, Spread};
use crate::{answer, script, turns};

pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
    let spread = Spread::of(&script::CANCEL, |arguments: &mut Arguments, n| arguments.id(ids[n]));
    run(inner, ids, spread, |word| word_of(&answer::text(word)?)).await
}

fn word_of(word: &str) -> Result<Cancelled, StoreError> {
    Ok(match word {
        "done" => Cancelled::Done,
        "requested" => Cancelled::Requested,
        "missing" => Cancelled::NotFound,
        state => Cancelled::Ended(answer::state(state)?),
    })
}

/// Runs a script that may end jobs and answers with a word for each of `ids`. When this returns, everything below jobs that it
/// ended early has ended too, and jobs whose turn came by that are due.
pub(crate) async fn run<T>(
    inner: &Inner,
    ids: &[JobId],
    spread: Spread<impl Fn(&mut Arguments), impl Fn(&mut Arguments, usize)>,
    word: impl Fn(Value) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut aftermaths = Vec::new();
    let read = |partition, value| {
        let (answers, aftermath) = Aftermath::read(partition, value)?;
        aftermaths.push(aftermath);
        answer::items(answers)?.into_iter().map(&word).collect()
    };
    let answers = inner.run_by_home(ids, spread, read).await?;
    for aftermath in aftermaths {
        aftermath.follow_up(inner).await?;
    }
    Ok(answers)
}

/// What a script left for its caller to do, as `aftermath` in `closing.lua` says it.
pub(crate) struct Aftermath {
    partition: usize,
    /// Keys under which a job has left its place.
    freed: Vec<String>,
    /// Whether it requested the end of a running job.
    requested: bool,
    /// Whether something is left to end below jobs that have ended.
    is_left: bool,
}

impl Aftermath {
    /// Reads an answer, and returns what the script says beside it.
    pub(crate) fn read(partition: usize, value: Value) -> Result<(Value, Self), StoreError> {
        let [answers, freed, requested, left] = answer::parts(value)?;
        let freed = answer::texts(freed)?;
        let (requested, is_left) = (requested == Value::Int(1), left == Value::Int(1));
        Ok((answers, Self { partition, freed, requested, is_left }))
    }

    /// Tells workers of requests, lets the jobs go on whose turn has come, and ends what is left.
    pub(crate) async fn follow_up(self, inner: &Inner) -> Result<(), StoreError> {
        let (partition, is_left) = (self.partition, self.is_left);
        self.pass_on(inner).await?;
        if is_left { work_off(inner, partition).await } else { Ok(()) }
    }

    async fn pass_on(self, inner: &Inner) -> Result<(), StoreError> {
        inner.cancel_requested_if(self.requested);
        turns::pass_on(inner, self.partition, self.freed).await
    }
}

/// Ends what is left below jobs of a partition that have ended, a bounded number in each script.
pub(crate) async fn work_off(inner: &Inner, partition: usize) -> Result<(), StoreError> {
    loop {
        let value = inner.run(&script::CLOSE, partition, inner.arguments()).await?;
        let (_, aftermath) = Aftermath::read(partition, value)?;
        let is_left = aftermath.is_left;
        aftermath.pass_on(inner).await?;
        if !is_left {
            return Ok(());
        }
    }
}

/// The same for all partitions.
pub(crate) async fn work_off_all(inner: &Inner) -> Result<(), StoreError> {
    for partition in 0..inner.layout.partitions {
        work_off(inner, partition).await?;
    }
    Ok(())
}
