//! Puts dead letters into groups: a bounded look at the newest of each reason.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Job, Reason, State, StoreError, Tenant, Timestamp};
use redrive_delivery::KIND;

use crate::walk::{Walked, walk};
use crate::wire::filter::Wanted;
use crate::wire::group::{DeadLetterGroup, DeadLetterGroups, GroupExample};

/// Dead letters of one reason that are looked at.
const REASON_ITEMS: usize = 1_000;

/// Which dead letters, and how long to look for them.
#[derive(Debug, Clone)]
pub(crate) struct Dead {
    pub(crate) tenant: Option<Tenant>,
    /// Those that died at or after this instant.
    pub(crate) since: Option<Timestamp>,
    pub(crate) patience: Duration,
}

/// The groups, the largest first.
pub(crate) async fn groups(store: &dyn Backend, dead: &Dead) -> Result<DeadLetterGroups, StoreError> {
    let mut found = DeadLetterGroups { items: Vec::new(), looked_at: 0, complete: true };
    for reason in Reason::ALL {
        let filter = Filter {
            states: vec![State::Dead],
            tenant: dead.tenant.clone(),
            reason: Some(reason),
            finished_from: dead.since,
            ..Filter::default()
        };
        let wanted = Wanted { filter, text: None };
        let patience = dead.patience / Reason::ALL.len() as u32;
        let walked = walk(store, &wanted, PageRequest::first(REASON_ITEMS), patience).await?;
        found.complete &= walked.next.is_none();
        found.looked_at += walked.items.len() as u64;
        found.items.extend(of_reason(reason, &walked));
    }
    found.items.sort_by_key(|group| std::cmp::Reverse((group.count, group.newest_at)));
    Ok(found)
}

fn of_reason(reason: Reason, walked: &Walked) -> impl Iterator<Item = DeadLetterGroup> {
    let mut groups: BTreeMap<(String, String), DeadLetterGroup> = BTreeMap::new();
    for job in &walked.items {
        let (kind, target) = (job.kind.to_string(), target(job));
        let at = job.finished_at.unwrap_or(job.created_at).as_ms();
        let group = groups.entry((kind.clone(), target.clone())).or_insert_with(|| DeadLetterGroup {
            reason: reason.into(),
            kind,
            target,
            count: 0,
            at_least: walked.next.is_some(),
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

/// Where a job was going.
fn target(job: &Job) -> String {
    match job.subject.as_deref() {
        Some(subject) if job.kind.as_str() == KIND => place(subject).to_owned(),
        Some(subject) => subject.to_owned(),
        None => job.kind.to_string(),
    }
}

/// Scheme and host of an address, as it begins.
fn place(address: &str) -> &str {
    let host = address.find("://").map_or(0, |scheme| scheme + 3);
    let end = address[host..].find(['/', '?', '#']).map_or(address.len(), |end| host + end);
    &address[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_how_an_address_begins() {
        for (address, begins) in [
            ("https://a.example/hook?x=/", "https://a.example"),
            ("http://a.example:8080", "http://a.example:8080"),
            ("http://[::1]:80?x", "http://[::1]:80"),
            ("order-7", "order-7"),
        ] {
            assert_eq!(place(address), begins);
        }
    }
}
