//! Groups dead letters by reason, kind and target. It reads a bounded number of the newest ones of each reason.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::store::{Backend, PageRequest};
use redrive_core::{Job, Reason, State, StoreError};
use redrive_delivery::KIND;

use crate::job_search::{SearchResult, search_jobs};
use crate::selection::JobSelection;
use redrive_wire::group::{DeadLetterGroup, DeadLetterGroups, GroupExample};

/// Dead letters that are read for each reason.
const PER_REASON_MAX: usize = 1_000;

/// Groups the dead letters among the selected jobs. The search ends after `time_limit`.
pub(crate) async fn group_dead_letters(
    store: &dyn Backend,
    selected: &JobSelection,
    time_limit: Duration,
) -> Result<DeadLetterGroups, StoreError> {
    let mut dead = selected.clone();
    dead.filter.states = vec![State::Dead];
    let reasons = selected.filter.reason.map_or(Reason::ALL.to_vec(), |reason| vec![reason]);
    let time_limit = time_limit / reasons.len() as u32;
    let mut groups = DeadLetterGroups::none();
    for reason in reasons {
        dead.filter.reason = Some(reason);
        let found = search_jobs(store, &dead, PageRequest::first(PER_REASON_MAX), time_limit).await?;
        groups.complete &= found.next.is_none();
        groups.examined += found.items.len() as u64;
        groups.items.extend(group_by_target(reason, &found));
    }
    groups.items.sort_by_key(|group| std::cmp::Reverse((group.count, group.newest_at)));
    Ok(groups)
}

fn group_by_target(reason: Reason, found: &SearchResult) -> impl Iterator<Item = DeadLetterGroup> {
    let mut groups: BTreeMap<(String, String), DeadLetterGroup> = BTreeMap::new();
    for job in &found.items {
        let (kind, target) = (job.kind.to_string(), group_target(job));
        let at = job.finished_at.unwrap_or(job.created_at).as_ms();
        let group = groups.entry((kind.clone(), target.clone())).or_insert_with(|| DeadLetterGroup {
            reason: reason.into(),
            kind,
            target,
            count: 0,
            at_least: found.next.is_some(),
            newest_at: at,
            oldest_at: at,
            example: example(job, at),
        });
        group.count += 1;
        group.oldest_at = group.oldest_at.min(at);
        if at > group.newest_at {
            group.newest_at = at;
            group.example = example(job, at);
        }
    }
    groups.into_values()
}

fn example(job: &Job, finished_at: i64) -> GroupExample {
    GroupExample { job_id: job.id.to_string(), error: job.last_error.clone(), finished_at }
}

/// The target by which a job is grouped: the origin of a task, the target of another job, or its kind if it has none.
fn group_target(job: &Job) -> String {
    match job.target.as_deref() {
        Some(target) if job.kind.as_str() == KIND => origin_prefix(target).to_owned(),
        Some(target) => target.to_owned(),
        None => job.kind.to_string(),
    }
}

/// The part of an address up to the end of the host and port, as it is written.
fn origin_prefix(address: &str) -> &str {
    let host = address.find("://").map_or(0, |scheme| scheme + 3);
    let end = address[host..].find(['/', '?', '#']).map_or(address.len(), |end| host + end);
    &address[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_an_address_ends_before_its_path() {
        for (address, prefix) in [
            ("https://a.example/hook?x=/", "https://a.example"),
            ("http://a.example:8080", "http://a.example:8080"),
            ("http://[::1]:80?x", "http://[::1]:80"),
            ("order-7", "order-7"),
        ] {
            assert_eq!(origin_prefix(address), prefix);
        }
    }
}
