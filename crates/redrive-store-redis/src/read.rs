//! Reads jobs, their attempts, and counts.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use redrive_core::store::{Cursor, Filter, Page, Stats};
use redrive_core::{Attempt, Epoch, Job, JobId, Queue, State, StoreError};

use crate::entries;
use crate::inner::{Inner, ShardedCall};
use crate::lifecycle::claim;
use crate::row::{self, SEPARATOR};
use crate::script::{self, reply};

/// How many jobs the script `list` reads in one call.
const READ_MIN: usize = 64;
const READ_MAX: usize = 1_000;

pub(crate) async fn get(inner: &Inner, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
    let read = |_, value| reply::items(value)?.into_iter().map(reply::items).collect();
    let call = ShardedCall::new(&script::GET, |arguments, n| arguments.id(ids[n]));
    let rows: Vec<Vec<redis::Value>> = inner.run_for_jobs(ids, call, read).await?;
    let jobs = ids
        .iter()
        .zip(rows)
        .map(|(id, row)| if row.is_empty() { Ok(None) } else { row::read(*id, row).map(Some) });
    jobs.collect()
}

/// A page of jobs that match a filter, newest first.
pub(crate) async fn list(
    inner: &Inner,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
) -> Result<Page<Job>, StoreError> {
    let mut found: BTreeMap<JobId, Job> = BTreeMap::new();
    let mut positions = vec![Position::Before(after); inner.layout.shards];
    loop {
        let unread: Vec<(usize, Option<JobId>)> =
            positions.iter().enumerate().filter_map(|(shard, at)| Some((shard, at.before()?))).collect();
        if unread.is_empty() || is_page_complete(&found, &unread, limit) {
            break;
        }
        let calls = unread.iter().map(|(shard, before)| list_shard(inner, filter, *shard, *before, limit));
        for ((shard, _), (jobs, position)) in unread.iter().zip(try_join_all(calls).await?) {
            for job in jobs {
                inner.locations.insert_shard(job.id, *shard);
                if filter.matches(&job) {
                    found.insert(job.id, job);
                }
            }
            positions[*shard] = position;
        }
    }
    let newest = found.into_values().rev().take(limit + 1).collect();
    Ok(Page::from_items(newest, limit, |job| Cursor::Job(job.id)))
}

/// How far a shard has been read.
#[derive(Debug, Clone, Copy)]
enum Position {
    /// Jobs before this one are unread; `None` stands for all jobs.
    Before(Option<JobId>),
    End,
}

impl Position {
    fn before(self) -> Option<Option<JobId>> {
        match self {
            Self::Before(id) => Some(id),
            Self::End => None,
        }
    }
}

/// Whether a whole page and one more job are newer than every unread job.
fn is_page_complete(found: &BTreeMap<JobId, Job>, unread: &[(usize, Option<JobId>)], limit: usize) -> bool {
    let newest_unread: Option<Vec<JobId>> = unread.iter().map(|(_, before)| *before).collect();
    let Some(newest_unread) = newest_unread.and_then(|ids| ids.into_iter().max()) else { return false };
    found.range(newest_unread..).count() > limit
}

/// Jobs of a shard that may match the filter, and how far the shard has been read.
async fn list_shard(
    inner: &Inner,
    filter: &Filter,
    shard: usize,
    before: Option<JobId>,
    limit: usize,
) -> Result<(Vec<Job>, Position), StoreError> {
    let mut arguments = inner.arguments();
    arguments.text(index(&filter.states));
    arguments.optional_id(before);
    arguments.count((limit + 1).clamp(READ_MIN, READ_MAX));
    arguments.text(filter.states.iter().map(|state| state.code().to_string()).collect::<String>());
    arguments.text(
        filter.queue.as_ref().map(|queue| format!("{SEPARATOR}{queue}{SEPARATOR}")).unwrap_or_default(),
    );
    let [rows, last] = reply::parts(inner.run(&script::LIST, shard, arguments).await?)?;
    let mut jobs = Vec::new();
    for found in reply::items(rows)? {
        let [id, row] = reply::parts(found)?;
        match row::read(reply::id(&reply::text(id)?)?, reply::items(row)?) {
            Ok(job) => jobs.push(job),
            // `get` reports what is wrong with the row.
            Err(error) => tracing::error!(%error, "left an unreadable job out of a list"),
        }
    }
    let position = reply::optional_id(last)?.map_or(Position::End, |id| Position::Before(Some(id)));
    Ok((jobs, position))
}

/// The smallest index that contains every job in these states.
fn index(states: &[State]) -> &'static str {
    match states {
        [State::Dead] => "dead",
        [State::Waiting] => "awaits",
        _ => "ids",
    }
}

/// A page of the attempt log of a job, newest first.
pub(crate) async fn attempts(
    inner: &Inner,
    id: JobId,
    after: Option<Epoch>,
    limit: usize,
) -> Result<Page<Attempt>, StoreError> {
    let shard = inner.shards_of(&[id]).await?[0];
    let mut arguments = inner.arguments();
    arguments.id(id);
    arguments.text(after.map_or_else(|| "+inf".to_owned(), |epoch| epoch.to_string()));
    arguments.count(limit + 1);
    let lines = reply::texts(inner.run(&script::ATTEMPTS, shard, arguments).await?)?;
    let damaged = || StoreError::Corrupt(format!("job {id}: an attempt cannot be read"));
    let attempts: Option<Vec<Attempt>> = lines.iter().map(|line| entries::read_attempt(line)).collect();
    Ok(Page::from_items(attempts.ok_or_else(damaged)?, limit, |attempt| Cursor::Attempt(attempt.epoch)))
}

/// Counts by queue and state, which the scripts keep up to date.
pub(crate) async fn stats(inner: &Inner) -> Result<Stats, StoreError> {
    let mut stats = Stats::default();
    for value in inner.run_on_all_shards(&script::STATS, &inner.arguments()).await? {
        let [now, counts] = reply::parts(value)?;
        stats.now = reply::timestamp(now)?;
        for pair in reply::texts(counts)?.chunks_exact(2) {
            let (queue, state) = pair[0].split_once(SEPARATOR).ok_or_else(|| reply::unexpected("a queue"))?;
            let count: u64 = pair[1].parse().map_err(|_| reply::unexpected("a count"))?;
            *stats.counts.entry((Queue::new(queue)?, reply::state(state)?)).or_default() += count;
        }
    }
    let (_, heads) = claim::lane_heads(inner).await?;
    let oldest = heads.into_iter().flatten().map(|head| head.due).min();
    stats.oldest_due = oldest.filter(|due| *due <= stats.now);
    Ok(stats)
}
