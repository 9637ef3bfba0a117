//! Attempts: a job's log, oldest first, page by page.

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Cursor, PageRequest};
use redrive_core::{JobId, Verdict};

use super::chapter;
use super::stage::{Stage, job_id, ms, refused};

chapter!("attempts":
    shows_the_oldest_first,
    pages_follow_each_other,
    belong_to_their_job,
    an_unknown_job_has_none,
    a_cursor_of_another_list_is_refused,
    a_limit_out_of_range_is_refused,
);

async fn shows_the_oldest_first(stage: Stage) {
    let id = tried(&stage, 12).await;
    let log = stage.log(id).await;
    assert_eq!(log.iter().map(|a| a.epoch).collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    assert_eq!(log.iter().map(|a| a.entry.attempt).collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
}

async fn pages_follow_each_other(stage: Stage) {
    let id = tried(&stage, 6).await;
    let whole = stage.log(id).await;
    for limit in [1, 4, 6, 7] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = stage.store.attempts(id, PageRequest { after, limit }).await.expect("attempts");
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

async fn belong_to_their_job(stage: Stage) {
    let (one, two) = (tried(&stage, 1).await, tried(&stage, 2).await);
    assert_eq!((stage.log(one).await.len(), stage.log(two).await.len()), (1, 2));
}

async fn an_unknown_job_has_none(stage: Stage) {
    assert_eq!(stage.log(job_id(99)).await, []);
}

async fn a_cursor_of_another_list_is_refused(stage: Stage) {
    let id = tried(&stage, 1).await;
    let page = PageRequest { after: Some(Cursor::Job(id)), limit: 10 };
    assert_eq!(refused(stage.store.attempts(id, page).await).field, "cursor");
}

async fn a_limit_out_of_range_is_refused(stage: Stage) {
    for limit in [0, PAGE_ITEMS_MAX + 1] {
        let page = stage.store.attempts(job_id(1), PageRequest::first(limit)).await;
        assert_eq!(refused(page).field, "limit");
    }
}

async fn tried(stage: &Stage, times: usize) -> JobId {
    let id = stage.enqueue(stage.own_job()).await;
    for _ in 0..times {
        stage.claim_and_settle(id, Verdict::Retry(ms(0))).await;
    }
    id
}
