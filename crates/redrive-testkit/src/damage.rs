//! What every store does with a row that someone has damaged: pages go on without it, and asking for it names the problem.

use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{JobId, Kind, NewJob, PolicyName, PolicyRef, Queue, State, StoreError};
use uuid::Uuid;

use crate::look_through::look_through;

/// Jobs of the check, by their ids.
const JOBS: u128 = 9;
/// The oldest, two side by side, and the newest.
const DAMAGED: [u128; 4] = [1, 4, 5, 9];
/// More pages than there can be.
const PAGES_MAX: usize = 100;

/// Enqueues jobs into an empty store, and returns those whose rows the caller must make unreadable.
pub async fn enqueue_rows_to_damage(store: &dyn Backend) -> Vec<JobId> {
    store.enqueue((1..=JOBS).map(job).collect()).await.expect("enqueue");
    DAMAGED.map(id).to_vec()
}

/// Panics where a store does not do what [`redrive_core::Store::get`], [`redrive_core::Store::list`] and
/// [`redrive_core::Store::look`] say about the damaged rows of [`enqueue_rows_to_damage`].
pub async fn check_damaged_rows(store: &dyn Backend) {
    let readable: Vec<JobId> = (1..=JOBS).rev().filter(|number| !DAMAGED.contains(number)).map(id).collect();
    for filter in filters() {
        for limit in [1, 2, 3, 100] {
            assert_eq!(list_through(store, &filter, limit).await, readable, "pages of {limit} by {filter:?}");
            for most in [1, 3, 100] {
                let looked = look_through(store, &filter, limit, most).await.expect("look");
                let looked: Vec<JobId> = looked.iter().map(|job| job.id).collect();
                assert_eq!(looked, readable, "looks of {limit} out of {most} by {filter:?}");
            }
        }
    }
    for number in DAMAGED {
        let error = store.get(vec![id(number)]).await.expect_err("it cannot be read");
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

/// Everything that matches, page by page.
async fn list_through(store: &dyn Backend, filter: &Filter, limit: usize) -> Vec<JobId> {
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
