//! Checks how a store treats a damaged row: lists leave it out, and a read of the job reports the problem.

use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{JobId, Kind, NewJob, PolicyName, PolicyRef, Queue, State, StoreError};
use uuid::Uuid;

use crate::pages::search_all;

/// How many jobs the check enqueues.
const JOBS: u128 = 9;
/// The oldest job, two neighbours, and the newest job.
const DAMAGED: [u128; 4] = [1, 4, 5, 9];
/// More pages than any list can have.
const PAGES_MAX: usize = 100;

/// Enqueues jobs into an empty store, and returns those whose rows the caller must damage.
pub async fn enqueue_rows_to_damage(store: &dyn Backend) -> Vec<JobId> {
    store.enqueue((1..=JOBS).map(job).collect()).await.expect("enqueue");
    DAMAGED.map(id).to_vec()
}

/// Panics unless the store treats the damaged rows of [`enqueue_rows_to_damage`] as [`redrive_core::Store::get`],
/// [`redrive_core::Store::list`] and [`redrive_core::Store::search`] document it.
pub async fn check_damaged_rows(store: &dyn Backend) {
    let readable: Vec<JobId> = (1..=JOBS).rev().filter(|number| !DAMAGED.contains(number)).map(id).collect();
    for filter in filters() {
        for limit in [1, 2, 3, 100] {
            assert_eq!(list_all(store, &filter, limit).await, readable, "pages of {limit} by {filter:?}");
            for most in [1, 3, 100] {
                let found = search_all(store, &filter, limit, most).await.expect("search");
                let found: Vec<JobId> = found.iter().map(|job| job.id).collect();
                assert_eq!(found, readable, "pages of {limit} that examine {most} by {filter:?}");
            }
        }
    }
    for number in DAMAGED {
        let error = store.get(vec![id(number)]).await.expect_err("a damaged row cannot be read");
        assert!(
            matches!(&error, StoreError::Corrupt(text) if text.contains(&id(number).to_string())),
            "{error}"
        );
    }
    let found = store.get(readable.clone()).await.expect("get");
    assert!(found.iter().all(Option::is_some), "{found:?}");
}

fn filters() -> [Filter; 4] {
    let none = Filter::default;
    [
        none(),
        Filter { states: vec![State::Pending], ..none() },
        Filter { queue: Some(Queue::default()), ..none() },
        Filter { kind: Some(kind()), states: vec![State::Pending, State::Retrying], ..none() },
    ]
}

/// Reads all jobs that match the filter, page by page.
async fn list_all(store: &dyn Backend, filter: &Filter, limit: usize) -> Vec<JobId> {
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = store.list(filter.clone(), PageRequest { after, limit }).await.expect("list");
        found.extend(page.items.iter().map(|job| job.id));
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
    panic!("{filter:?}: pages of {limit} never end");
}

fn job(number: u128) -> NewJob {
    let policy = PolicyRef::first(PolicyName::new("default").expect("legal"));
    NewJob::new(id(number), kind(), policy, number.to_le_bytes().to_vec())
}

fn kind() -> Kind {
    Kind::new("work").expect("legal")
}

fn id(number: u128) -> JobId {
    JobId(Uuid::from_u128(number))
}
