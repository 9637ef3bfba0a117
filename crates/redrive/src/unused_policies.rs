//! Removes inline policies that no job and no schedule refers to.
//!
//! A job never loses its policy. A pass first lists the candidates: the policies that nobody has stored for two days, with the
//! versions of their records. Then it searches for references. It removes a record only if the record still has the listed version.
//!
//! - A job that was enqueued before the candidates were listed is found by the search over all jobs.
//! - Every enqueue stores its policy first, with [`catalog::put_inline`], at most one hour before. If the policy was stored before
//!   the candidates were listed, then its record was less than a day old, so it is not a candidate. If the policy was stored after
//!   that, the call rewrote the old record, so its version has changed and the removal fails. If the removal came first, the
//!   call created the record again.
//!
//! The two days include almost one day for an enqueue that commits late in the transaction of a caller, and for clocks that
//! differ.
//!
//! Old versions of named policies stay. Their records do not say when they were last used, so no version is known to be unused.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use redrive_core::catalog::{self, INLINE_UNUSED_AGE, PolicyContent};
use redrive_core::records::{RecordEdit, RecordValue, Records};
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::transfer::Seal;
use redrive_core::{StoreError, Timestamp};
use serde::{Deserialize, Serialize};

use crate::schedule::record::schedules;
use crate::{Error, Redrive};

/// The prefix of the ids of inline policies.
const INLINE: &str = "inline:";
/// Time between two passes, over all nodes of a store.
const PASS_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Time between two checks whether a pass is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The largest number of policies that one pass removes.
const CANDIDATES_MAX: usize = 10_000;
/// The number of jobs that one query reads.
const PAGE_ITEMS: usize = 200;
/// The pause after each query, so that the search takes little of the store's capacity.
const PAGE_PAUSE: Duration = Duration::from_millis(10);

/// The start of the last pass. There is one record, with the id `last`.
#[derive(Serialize, Deserialize)]
struct PolicyCollection {
    at: Timestamp,
}

impl RecordValue for PolicyCollection {
    const KIND: &'static str = "policy.collection";
}

/// The versions of records that may be removed, by id.
type Candidates = HashMap<String, u64>;

impl Redrive {
    /// Removes unused inline policies, once a day on one of the nodes of a store.
    pub(crate) async fn collect_policies_daily(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            match self.collect_policies_if_due().await {
                Ok(policies) => tracing::debug!(policies, "unused inline policies removed"),
                Err(error) => tracing::warn!(%error, "unused inline policies could not be removed"),
            }
        }
    }

    /// Removes unused inline policies and returns their number. Does nothing if a node has started to do so within the last day.
    ///
    /// A worker calls this regularly. A program without a worker should call it from time to time.
    pub async fn collect_policies_if_due(&self) -> Result<usize, Error> {
        let now = crate::client::wall_clock();
        let begin = |last: Option<PolicyCollection>| {
            let is_recent = last.is_some_and(|last| now.since(last.at) < PASS_INTERVAL);
            let begin = RecordEdit::Put(PolicyCollection { at: now }, true);
            Ok::<_, StoreError>(if is_recent { RecordEdit::Keep(false) } else { begin })
        };
        let backend = &**self.backend();
        if !Records::new(backend).update("last", begin).await? {
            return Ok(0);
        }
        collect(backend, now).await.map_err(Error::from)
    }
}

async fn collect(backend: &dyn Backend, now: Timestamp) -> Result<usize, StoreError> {
    let candidates = find_candidates(backend, now).await?;
    if candidates.is_empty() {
        return Ok(0);
    }
    let unused = keep_unreferenced(backend, candidates).await?;
    // A move copies records before jobs. At its end it copies the records again, in case a policy was removed between this check and
    // the first copy.
    if !Records::<Seal>::new(backend).is_empty().await? {
        return Ok(0);
    }
    remove(backend, unused).await
}

/// Lists the inline policies that nobody has stored for two days. A record from an earlier release has no time of last use:
/// it counts as used now.
async fn find_candidates(backend: &dyn Backend, now: Timestamp) -> Result<Candidates, StoreError> {
    let policies = catalog::contents(backend);
    let (mut candidates, mut after) = (Candidates::new(), None::<String>);
    while candidates.len() < CANDIDATES_MAX {
        let page = policies.page(INLINE, after.as_deref(), PAGE_ITEMS).await?;
        for record in page.items {
            match record.value.last_used_at {
                Some(used_at) if now.since(used_at) >= INLINE_UNUSED_AGE => {
                    candidates.insert(record.id, record.version);
                }
                Some(_) => {}
                None => {
                    let dated = PolicyContent { last_used_at: Some(now), ..record.value };
                    policies.replace(&record.id, record.version, &dated).await?;
                }
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    Ok(candidates)
}

/// Drops the candidates that a schedule or a job refers to.
async fn keep_unreferenced(
    backend: &dyn Backend,
    mut candidates: Candidates,
) -> Result<Candidates, StoreError> {
    for schedule in schedules(backend).all("").await? {
        candidates.remove(&schedule.value.template.policy.to_string());
    }
    let mut page = PageRequest::first(PAGE_ITEMS);
    while !candidates.is_empty() {
        let jobs = backend.list(Filter::default(), page).await?;
        let referenced: HashSet<String> = jobs.items.iter().map(|job| job.policy.to_string()).collect();
        candidates.retain(|id, _| !referenced.contains(id));
        match jobs.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
        tokio::time::sleep(PAGE_PAUSE).await;
    }
    Ok(candidates)
}

/// Removes the records that still have the listed versions.
async fn remove(backend: &dyn Backend, unused: Candidates) -> Result<usize, StoreError> {
    let mut removed = 0;
    for (id, version) in unused {
        removed += usize::from(catalog::contents(backend).remove_version(&id, version).await?);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use redrive_core::policy::presets;
    use redrive_core::{JobId, Kind, NewJob, Policy, PolicyRef};
    use redrive_store_sqlite::SqliteStore;
    use uuid::Uuid;

    use super::*;
    use crate::Schedule;

    const HOUR: Duration = Duration::from_secs(60 * 60);
    const START: Timestamp = Timestamp::from_ms(1_000_000_000_000);

    #[derive(Serialize, Deserialize)]
    struct Report;

    impl crate::Task for Report {
        const KIND: &'static str = "report";
        type Output = ();
    }

    async fn enqueue(store: &dyn Backend, policy: &PolicyRef) {
        let kind = Kind::new("work").unwrap();
        let job = NewJob::new(JobId(Uuid::now_v7()), kind, policy.clone(), Vec::new());
        store.enqueue(vec![job]).await.unwrap();
    }

    async fn put(store: &dyn Backend, policy: &Policy, now: Timestamp) -> PolicyRef {
        catalog::put_inline(store, policy, now).await.unwrap()
    }

    async fn exists(store: &dyn Backend, policy: &PolicyRef) -> bool {
        catalog::content(store, policy).await.unwrap().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_inline_policy_is_removed_unless_a_job_or_a_schedule_refers_to_it() {
        let store = SqliteStore::open_in_memory().unwrap();
        let unused = put(&store, &presets::once(), START).await;
        let by_job = put(&store, &presets::quadratic(), START).await;
        enqueue(&store, &by_job).await;
        let by_schedule = put(&store, &presets::upload(), START).await;
        let redrive = Redrive::on(std::sync::Arc::new(store.clone()));
        let hourly = Schedule::every(HOUR).unwrap();
        redrive.schedule("hourly", hourly, Report).policy(presets::upload()).await.unwrap();

        assert_eq!(
            collect(&store, START.after(INLINE_UNUSED_AGE - HOUR)).await.unwrap(),
            0,
            "not old enough"
        );
        assert_eq!(collect(&store, START.after(INLINE_UNUSED_AGE)).await.unwrap(), 1);
        assert!(!exists(&store, &unused).await);
        assert!(exists(&store, &by_job).await && exists(&store, &by_schedule).await);
    }

    #[tokio::test]
    async fn a_job_that_is_enqueued_during_the_search_keeps_its_policy() {
        let store = SqliteStore::open_in_memory().unwrap();
        put(&store, &presets::once(), START).await;
        let now = START.after(INLINE_UNUSED_AGE);
        let candidates = find_candidates(&store, now).await.unwrap();
        let unused = keep_unreferenced(&store, candidates).await.unwrap();
        assert_eq!(unused.len(), 1);

        // The search has passed the position of this job.
        let policy = put(&store, &presets::once(), now).await;
        enqueue(&store, &policy).await;
        assert_eq!(remove(&store, unused).await.unwrap(), 0);
        assert!(exists(&store, &policy).await);
    }

    #[tokio::test]
    async fn a_removed_policy_is_stored_again_for_the_next_job() {
        let store = SqliteStore::open_in_memory().unwrap();
        let policy = put(&store, &presets::once(), START).await;
        let now = START.after(INLINE_UNUSED_AGE);
        assert_eq!(collect(&store, now).await.unwrap(), 1);
        assert_eq!(put(&store, &presets::once(), now).await, policy);
        assert!(exists(&store, &policy).await);
    }

    #[tokio::test]
    async fn a_policy_of_an_earlier_release_gets_its_time_from_the_first_pass() {
        let store = SqliteStore::open_in_memory().unwrap();
        let reference = PolicyRef::inline(&presets::once());
        let undated = PolicyContent { policy: presets::once(), last_used_at: None };
        catalog::contents(&store).create(&reference.to_string(), &undated).await.unwrap();
        assert_eq!(collect(&store, START).await.unwrap(), 0);
        assert_eq!(collect(&store, START.after(INLINE_UNUSED_AGE - HOUR)).await.unwrap(), 0);
        assert_eq!(collect(&store, START.after(INLINE_UNUSED_AGE)).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn nothing_is_removed_while_the_store_is_sealed() {
        let store = SqliteStore::open_in_memory().unwrap();
        put(&store, &presets::once(), START).await;
        let seal = Seal { transfer: Uuid::nil(), other: "sqlite:b.db".to_owned(), at: START, done: false };
        Records::new(&store).create(redrive_core::transfer::BEING_FILLED, &seal).await.unwrap();
        assert_eq!(collect(&store, START.after(INLINE_UNUSED_AGE)).await.unwrap(), 0);
    }
}
