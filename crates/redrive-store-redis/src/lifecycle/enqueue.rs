//! Adds jobs, each at most once.

use std::collections::HashMap;

use redrive_core::store::EnqueueResult;
use redrive_core::{JobId, NewJob, Start, StoreError, Timestamp};

use crate::inner::{Inner, ShardedCall};
use crate::row;
use crate::script::{self, Arguments, reply};
use crate::shards::JobLocation;

/// Whether a job may have become claimable.
pub(crate) fn is_claimable(result: &EnqueueResult) -> bool {
    matches!(result, EnqueueResult::Created(_) | EnqueueResult::Replaced(_))
}

pub(crate) async fn enqueue(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<EnqueueResult>, StoreError> {
    check_starts(inner, jobs.iter()).await?;
    let call =
        ShardedCall::new(&script::ENQUEUE, |arguments: &mut Arguments, n| row::write(arguments, &jobs[n]));
    let read = |shard, value| {
        let words = reply::texts(value)?;
        let results = words.chunks_exact(2).map(|pair| parse(&pair[0], reply::id(&pair[1])?));
        let results = results.inspect(|result| {
            if let Ok(EnqueueResult::Created(id)) = result {
                inner.locations.insert(*id, JobLocation { shard, claim: None });
            }
        });
        results.collect()
    };
    inner.run_on_shards(&shards(inner, jobs).await?, call, read).await
}

/// What an enqueue of each job would find, without adding it.
pub(crate) async fn find(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
    let call = ShardedCall::new(&script::FIND, |arguments: &mut Arguments, n| {
        let (job, idempotency) = (&jobs[n], jobs[n].idempotency.as_ref());
        arguments.id(job.id);
        arguments.text(&job.tenant);
        arguments.text(idempotency.map(|asked| asked.key.as_str()).unwrap_or_default());
        arguments.text(idempotency.map(|asked| hex::encode(asked.fingerprint)).unwrap_or_default());
    });
    let read = |_, value| {
        let words = reply::texts(value)?;
        let parse_one = |pair: &[String]| match pair[0].as_str() {
            "free" => Ok(None),
            word => parse(word, reply::id(&pair[1])?).map(Some),
        };
        words.chunks_exact(2).map(parse_one).collect()
    };
    inner.run_on_shards(&shards(inner, jobs).await?, call, read).await
}

fn parse(word: &str, id: JobId) -> Result<EnqueueResult, StoreError> {
    Ok(match word {
        "created" => EnqueueResult::Created(id),
        "existing" => EnqueueResult::Existing(id),
        "conflict" => EnqueueResult::Conflict(id),
        "replaced" => EnqueueResult::Replaced(id),
        _ => return Err(reply::unexpected("the result of an enqueue")),
    })
}

/// The shard of each new job. A child goes to the shard of its parent, so that one script can count it and end it with the parent.
async fn shards(inner: &Inner, jobs: &[NewJob]) -> Result<Vec<usize>, StoreError> {
    let parents: Vec<JobId> = jobs.iter().filter_map(|job| job.parent.map(|parent| parent.id)).collect();
    if parents.is_empty() {
        return Ok(jobs.iter().map(|job| inner.layout.shard_of(job)).collect());
    }
    let found = inner.locate(&parents).await?;
    let mut known: HashMap<JobId, usize> =
        parents.into_iter().zip(found).filter_map(|(id, shard)| Some((id, shard?))).collect();
    let mut shards = Vec::with_capacity(jobs.len());
    for job in jobs {
        let of_parent = job.parent.and_then(|parent| known.get(&parent.id).copied());
        let shard = of_parent.unwrap_or_else(|| inner.layout.shard_of(job));
        // A parent may be in the same batch, before its children.
        known.entry(job.id).or_insert(shard);
        shards.push(shard);
    }
    Ok(shards)
}

/// Refuses a start that is too far in the future. An absolute start is compared with the store's clock.
pub(crate) async fn check_starts<'a>(
    inner: &Inner,
    jobs: impl Iterator<Item = &'a NewJob>,
) -> Result<(), StoreError> {
    let mut absolute = Vec::new();
    for start in jobs.map(|job| job.start) {
        start.check()?;
        if matches!(start, Start::At(_)) {
            absolute.push(start);
        }
    }
    if absolute.is_empty() {
        return Ok(());
    }
    let now = now(inner).await?;
    absolute.into_iter().try_for_each(|start| start.resolve(now).map(drop))?;
    Ok(())
}

async fn now(inner: &Inner) -> Result<Timestamp, StoreError> {
    let [now, _] = reply::parts(inner.run(&script::STATS, 0, inner.arguments()).await?)?;
    reply::timestamp(now)
}

/// Writes the jobs that a script adds in addition to its other work.
pub(crate) fn write_all(arguments: &mut Arguments, jobs: &[NewJob]) {
    arguments.count(jobs.len());
    jobs.iter().for_each(|job| row::write(arguments, job));
}
