//! Adds jobs, each once.

use std::collections::HashMap;

use redrive_core::store::Enqueued;
use redrive_core::{JobId, NewJob, Start, StoreError, Timestamp};

use crate::arguments::Arguments;
use crate::homes::Home;
use crate::open::{Inner, Spread};
use crate::row::hex;
use crate::{answer, row, script};

/// Whether something may have become claimable.
pub(crate) fn wakes(enqueued: &Enqueued) -> bool {
    matches!(enqueued, Enqueued::Created(_) | Enqueued::Replaced(_))
}

pub(crate) async fn enqueue(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
    check_starts(inner, jobs.iter()).await?;
    let spread = Spread::of(&script::ENQUEUE, |arguments: &mut Arguments, n| row::write(arguments, &jobs[n]));
    let read_all = |partition, value| {
        let words = answer::texts(value)?;
        let each = words.chunks_exact(2).map(|pair| read(&pair[0], answer::id(&pair[1])?));
        let each = each.inspect(|answer| {
            if let Ok(Enqueued::Created(id)) = answer {
                inner.homes.learn(*id, Home { partition, claim: None });
            }
        });
        each.collect()
    };
    inner.run_in(&homes(inner, jobs).await?, spread, read_all).await
}

/// What an enqueue of each job would find in its way.
pub(crate) async fn find(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Option<Enqueued>>, StoreError> {
    let spread = Spread::of(&script::FIND, |arguments: &mut Arguments, n| {
        let (job, asked) = (&jobs[n], jobs[n].idempotency.as_ref());
        arguments.id(job.id);
        arguments.text(&job.tenant);
        arguments.text(asked.map(|asked| asked.key.as_str()).unwrap_or_default());
        arguments.text(asked.map(|asked| hex(&asked.fingerprint)).unwrap_or_default());
    });
    let read_all = |_, value| {
        let words = answer::texts(value)?;
        let one = |pair: &[String]| match pair[0].as_str() {
            "free" => Ok(None),
            word => read(word, answer::id(&pair[1])?).map(Some),
        };
        words.chunks_exact(2).map(one).collect()
    };
    inner.run_in(&homes(inner, jobs).await?, spread, read_all).await
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
    if parents.is_empty() {
        return Ok(jobs.iter().map(|job| inner.layout.partition_of(job)).collect());
    }
    let found = inner.get_homes(&parents).await?;
    let mut known: HashMap<JobId, usize> =
        parents.into_iter().zip(found).filter_map(|(id, home)| Some((id, home?))).collect();
    let mut homes = Vec::with_capacity(jobs.len());
    for job in jobs {
        let with_parent = job.parent.and_then(|parent| known.get(&parent.id).copied());
        let home = with_parent.unwrap_or_else(|| inner.layout.partition_of(job));
        // A parent may come in the same batch, before its children.
        known.entry(job.id).or_insert(home);
        homes.push(home);
    }
    Ok(homes)
}

/// Refuses a start that is too far ahead: for an instant only the store's clock can tell.
pub(crate) async fn check_starts<'a>(
    inner: &Inner,
    jobs: impl Iterator<Item = &'a NewJob>,
) -> Result<(), StoreError> {
    let mut instants = Vec::new();
    for start in jobs.map(|job| job.start) {
        start.check()?;
        if matches!(start, Start::At(_)) {
            instants.push(start);
        }
    }
    if instants.is_empty() {
        return Ok(());
    }
    let now = now(inner).await?;
    instants.into_iter().try_for_each(|start| start.resolve(now).map(drop))?;
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
