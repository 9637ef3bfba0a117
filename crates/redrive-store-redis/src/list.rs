//! Jobs that match a filter, newest first, page after page.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use redrive_core::store::{Cursor, Filter, Page};
use redrive_core::{Job, JobId, State, StoreError};

use crate::open::Inner;
use crate::row::SEPARATOR;
use crate::{answer, row, script};

/// Jobs that a script looks at.
const LOOKED_AT_MIN: usize = 64;
const LOOKED_AT_MAX: usize = 1_000;

pub(crate) async fn list(
    inner: &Inner,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
) -> Result<Page<Job>, StoreError> {
    let mut found: BTreeMap<JobId, Job> = BTreeMap::new();
    // How far each partition was looked through; none is to its end.
    let mut reached: Vec<Option<Reached>> = vec![Some(Reached(after)); inner.layout.partitions];
    loop {
        let behind: Vec<(usize, Option<JobId>)> =
            reached.iter().enumerate().filter_map(|(n, at)| at.map(|Reached(at)| (n, at))).collect();
        if behind.is_empty() || is_whole(&found, &behind, limit) {
            break;
        }
        let calls = behind.iter().map(|(partition, before)| look(inner, filter, *partition, *before, limit));
        for ((partition, _), (jobs, stopped)) in behind.iter().zip(try_join_all(calls).await?) {
            for job in jobs {
                inner.homes.learn_partition(job.id, *partition);
                if filter.matches(&job) {
                    found.insert(job.id, job);
                }
            }
            reached[*partition] = stopped.map(|at| Reached(Some(at)));
        }
    }
    let newest = found.into_values().rev().take(limit + 1).collect();
    Ok(Page::cut(newest, limit, |job| Cursor::Job(job.id)))
}

/// Where a partition goes on: after this job, or from the start.
#[derive(Debug, Clone, Copy)]
struct Reached(Option<JobId>);

/// Whether a whole page, and one more, lies before everything that was not looked at.
fn is_whole(found: &BTreeMap<JobId, Job>, behind: &[(usize, Option<JobId>)], limit: usize) -> bool {
    let newest_unseen = behind.iter().map(|(_, at)| *at);
    let Some(newest_unseen) =
        newest_unseen.collect::<Option<Vec<JobId>>>().and_then(|ids| ids.into_iter().max())
    else {
        return false;
    };
    found.range(newest_unseen..).count() > limit
}

/// Jobs of a partition in a likely state and queue, and where it stopped if there are more.
async fn look(
    inner: &Inner,
    filter: &Filter,
    partition: usize,
    before: Option<JobId>,
    limit: usize,
) -> Result<(Vec<Job>, Option<JobId>), StoreError> {
    let mut arguments = inner.arguments();
    arguments.text(index(&filter.states));
    arguments.text(before.map(|id| id.0.simple().to_string()).unwrap_or_default());
    arguments.count((limit + 1).clamp(LOOKED_AT_MIN, LOOKED_AT_MAX));
    arguments.text(filter.states.iter().map(|state| state.code().to_string()).collect::<String>());
    arguments.text(
        filter.queue.as_ref().map(|queue| format!("{SEPARATOR}{queue}{SEPARATOR}")).unwrap_or_default(),
    );
    let [rows, stopped] = answer::parts(inner.run(&script::LIST, partition, arguments).await?)?;
    let mut jobs = Vec::new();
    for found in answer::items(rows)? {
        let [id, row] = answer::parts(found)?;
        match row::read(answer::id(&answer::text(id)?)?, answer::items(row)?) {
            Ok(job) => jobs.push(job),
            // A list goes on without a damaged row; asking for the row itself says what is wrong with it.
            Err(error) => tracing::error!(%error, "left out of a list"),
        }
    }
    let stopped = answer::text(stopped)?;
    Ok((jobs, if stopped.is_empty() { None } else { Some(answer::id(&stopped)?) }))
}

/// The narrowest list of ids that has all in these states.
fn index(states: &[State]) -> &'static str {
    match states {
        [State::Dead] => "dead",
        [State::Waiting] => "awaits",
        _ => "ids",
    }
}
