//! Attempts: the log of a job, newest first, page by page.

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Cursor, PageRequest};
use redrive_core::{JobId, Verdict, lease_count};

use super::chapter;
use super::fixture::{StoreFixture, job_id, ms, rejected};

chapter!("attempts":
    shows_the_newest_first,
    pages_follow_each_other,
    belong_to_their_job,
    an_unknown_job_has_none,
    a_cursor_of_another_list_is_refused,
    a_limit_out_of_range_is_refused,
);

async fn shows_the_newest_first(fixture: StoreFixture) {
    let id = enqueue_and_attempt(&fixture, 12).await;
    let page = fixture.store.attempts(id, PageRequest::first(100)).await.expect("attempts");
    let newest_first: Vec<u32> = (1..=12).rev().collect();
    assert!(page.items.is_sorted_by(|newer, older| newer.epoch > older.epoch), "{:?}", page.items);
    assert_eq!(page.items.iter().map(|a| lease_count(a.epoch)).collect::<Vec<_>>(), newest_first);
    assert_eq!(page.items.iter().map(|a| a.entry.attempt).collect::<Vec<_>>(), newest_first);
}

async fn pages_follow_each_other(fixture: StoreFixture) {
    let id = enqueue_and_attempt(&fixture, 6).await;
    let mut whole = fixture.log(id).await;
    whole.reverse();
    for limit in [1, 4, 6, 7] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = fixture.store.attempts(id, PageRequest { after, limit }).await.expect("attempts");
            assert!(page.items.len() == limit || page.next.is_none());
            seen.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
            assert_eq!(after, seen.last().map(|a| Cursor::Attempt(a.epoch)));
        }
        assert_eq!(seen, whole, "{limit}");
    }
}

async fn belong_to_their_job(fixture: StoreFixture) {
    let (one, two) = (enqueue_and_attempt(&fixture, 1).await, enqueue_and_attempt(&fixture, 2).await);
    assert_eq!((fixture.log(one).await.len(), fixture.log(two).await.len()), (1, 2));
}

async fn an_unknown_job_has_none(fixture: StoreFixture) {
    assert_eq!(fixture.log(job_id(99)).await, []);
}

async fn a_cursor_of_another_list_is_refused(fixture: StoreFixture) {
    let id = enqueue_and_attempt(&fixture, 1).await;
    let page = PageRequest { after: Some(Cursor::Job(id)), limit: 10 };
    assert_eq!(rejected(fixture.store.attempts(id, page).await).field, "cursor");
}

async fn a_limit_out_of_range_is_refused(fixture: StoreFixture) {
    for limit in [0, PAGE_ITEMS_MAX + 1] {
        let page = fixture.store.attempts(job_id(1), PageRequest::first(limit)).await;
        assert_eq!(rejected(page).field, "limit");
    }
}

async fn enqueue_and_attempt(fixture: &StoreFixture, times: usize) -> JobId {
    let id = fixture.enqueue(fixture.own_job()).await;
    for _ in 0..times {
        fixture.claim_and_settle(id, Verdict::Retry(ms(0))).await;
    }
    id
}
