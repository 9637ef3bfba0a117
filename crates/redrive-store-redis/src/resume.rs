//! Makes jobs due for which what they wait for has come.

use redrive_core::{JobId, StoreError};

use crate::cancel::Aftermath;
use crate::open::Inner;
use crate::turns::Turn;
use crate::{answer, script};

/// A script's word for a job that it must be asked about again: it has ended some of its children, not all.
pub(crate) const MORE: &str = "more";

pub(crate) async fn resume(inner: &Inner, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    let partitions = inner.partitions_of(ids).await?;
    let mut resumed = Vec::with_capacity(ids.len());
    while resumed.len() < ids.len() {
        let from = resumed.len();
        let partition = partitions[from];
        let here = partitions[from..].iter().take_while(|of| **of == partition).count();
        resumed.extend(resume_some(inner, partition, &ids[from..from + here]).await?);
    }
    inner.wake_if(resumed.contains(&true));
    Ok(resumed)
}

/// Resumes the first of the jobs, up to one that waits for its turn, or before one to ask about again.
async fn resume_some(inner: &Inner, partition: usize, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    let mut arguments = inner.arguments();
    arguments.count(ids.len());
    ids.iter().for_each(|id| arguments.id(*id));
    let (words, aftermath) =
        Aftermath::read(partition, inner.run(&script::RESUME, partition, arguments).await?)?;
    aftermath.follow_up(inner).await?;
    let words = answer::texts(words)?;
    let mut resumed = Vec::with_capacity(words.len());
    for (id, word) in ids.iter().zip(words.iter().filter(|word| *word != MORE)) {
        resumed.push(match Turn::read(word) {
            Some(turn) => turn.take(inner, partition, *id).await?,
            None => word == "yes",
        });
    }
    Ok(resumed)
}
