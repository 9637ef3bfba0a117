//! Adds jobs, each once.

use redrive_core::store::Enqueued;
use redrive_core::{JobId, NewJob, Start, StoreError, Timestamp};

use crate::homes::Home;
use crate::open::{Arguments, Inner, by_partition};
use crate::{answer, row, script};
use futures_util::future::try_join_all;

/// Checks what can be checked without the server's clock.
pub(crate) fn check(jobs: &[NewJob]) -> Result<(), StoreError> {
    for job in jobs {
        job.check()?;
        job.start.check()?;
    }
    Ok(())
}

/// Whether something may have become claimable.
pub(crate) fn wakes(enqueued: &Enqueued) -> bool {
    matches!(enqueued, Enqueued::Created(_) | Enqueued::Replaced(_))
}

pub(crate) async fn enqueue(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
    check_starts(inner, jobs.iter()).await?;
    let groups = by_partition(&homes(inner, jobs).await?);
    let calls = groups.iter().map(|(partition, members)| {
        let mut arguments = inner.arguments();
        arguments.count(members.len());
        members.iter().for_each(|n| row::write(&mut arguments, &jobs[*n]));
        inner.run(&script::ENQUEUE, *partition, arguments)
    });
    let mut answers = vec![None; jobs.len()];
    for ((partition, members), value) in groups.iter().zip(try_join_all(calls).await?) {
        let mut words = answer::texts(value)?.into_iter();
        for n in members {
            let (Some(word), Some(id)) = (words.next(), words.next()) else {
                return Err(answer::odd("every answer"));
            };
            let enqueued = read(&word, answer::id(&id)?)?;
            if let Enqueued::Created(id) = enqueued {
                inner.homes.learn(id, Home { partition: *partition, claim: None });
            }
            answers[*n] = Some(enqueued);
        }
    }
    answers.into_iter().map(|answer| answer.ok_or_else(|| answer::odd("every answer"))).collect()
}

fn read(word: &str, id: JobId) -> Result<Enqueued, StoreError> {
    Ok(match word {
        "created" => Enqueued::Created(id),
        "existing" => Enqueued::Existing(id),
        "conflict" => Enqueued::Conflict(id),
        "replaced" => Enqueued::Replaced(id),
        _ => return Err(answer::odd("what came of a job")),
    })
}

/// Children go where their parent is, so that they end with it and are counted for it in one write.
async fn homes(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<usize>, StoreError> {
    let parents: Vec<JobId> = jobs.iter().filter_map(|job| job.parent.map(|parent| parent.id)).collect();
    let mut homes = Vec::with_capacity(jobs.len());
    let known = if parents.is_empty() { Vec::new() } else { inner.get_homes(&parents).await? };
    let mut known = known.into_iter();
    for job in jobs {
        let with_parent = if job.parent.is_some() { known.next().flatten() } else { None };
        homes.push(with_parent.unwrap_or_else(|| inner.layout.partition_of(job)));
    }
    Ok(homes)
}

/// Refuses a start that is too far ahead: for an instant only the store's clock can tell.
pub(crate) async fn check_starts<'a>(
    inner: &Inner,
    jobs: impl Iterator<Item = &'a NewJob>,
) -> Result<(), StoreError> {
    let starts: Vec<Start> =
        jobs.map(|job| job.start).filter(|start| matches!(start, Start::At(_))).collect();
    if starts.is_empty() {
        return Ok(());
    }
    let now = now(inner).await?;
    for start in starts {
        start.resolve(now)?;
    }
    Ok(())
}

async fn now(inner: &Inner) -> Result<Timestamp, StoreError> {
    let [now, _] = answer::parts(inner.run(&script::STATS, 0, inner.arguments()).await?)?;
    answer::instant(now)
}

/// The arguments for jobs that a script adds beside what else it does.
pub(crate) fn write_all(arguments: &mut Arguments, jobs: &[NewJob]) {
    arguments.count(jobs.len());
    jobs.iter().for_each(|job| row::write(arguments, job));
}
