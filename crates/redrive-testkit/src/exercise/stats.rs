//! Stats: the number of jobs by queue and state, and the oldest due time.

use std::collections::BTreeMap;

use redrive_core::store::Stats;
use redrive_core::{NewJob, Start, State, Verdict};

use super::chapter;
use super::fixture::{StoreFixture, ms, priority, queue};

chapter!("stats":
    an_empty_store_counts_nothing,
    counts_every_state_by_queue,
    follows_changes,
    returns_the_oldest_due_time,
    counts_a_paused_job_as_due,
);

async fn an_empty_store_counts_nothing(fixture: StoreFixture) {
    let expected = Stats { now: fixture.now(), counts: BTreeMap::new(), oldest_due: None };
    assert_eq!(stats(&fixture).await, expected);
}

async fn counts_every_state_by_queue(fixture: StoreFixture) {
    let mut counts = BTreeMap::new();
    for state in State::ALL {
        let job = fixture.in_state(state).await;
        counts.insert((job.queue, state), 1);
    }
    for _ in 0..3 {
        fixture.enqueue(NewJob { queue: queue("mail"), ..fixture.new_job() }).await;
    }
    counts.insert((queue("mail"), State::Pending), 3);
    let stats = stats(&fixture).await;
    assert_eq!(stats.counts, counts);
    assert_eq!(stats.in_state(State::Pending), 4);
}

async fn follows_changes(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(2).await;
    let count = |state| BTreeMap::from([((queue("default"), state), 2)]);
    assert_eq!(stats(&fixture).await.counts, count(State::Pending));
    let jobs = fixture.claim(2).await;
    assert_eq!(stats(&fixture).await.counts, count(State::Running));
    for job in &jobs {
        fixture.settle(job.lease(), Verdict::Retry(ms(1))).await;
    }
    assert_eq!(stats(&fixture).await.counts, count(State::Retrying));
    fixture.store.cancel(enqueued).await.expect("cancel");
    assert_eq!(stats(&fixture).await.counts, count(State::Cancelled));
}

async fn returns_the_oldest_due_time(fixture: StoreFixture) {
    let later = fixture.now().after(ms(100));
    for (level, after) in [(9, 200), (1, 100), (5, 150)] {
        let job = NewJob { priority: priority(level), start: Start::After(ms(after)), ..fixture.new_job() };
        fixture.enqueue(job).await;
    }
    fixture.clock.advance(ms(99));
    assert_eq!(stats(&fixture).await.oldest_due, None);
    fixture.clock.advance(ms(1));
    assert_eq!(stats(&fixture).await.oldest_due, Some(later));
    fixture.clock.advance(ms(500));
    let seen = stats(&fixture).await;
    assert_eq!((seen.now, seen.oldest_due), (fixture.now(), Some(later)));
    fixture.claim(10).await;
    assert_eq!(stats(&fixture).await.oldest_due, None);
}

async fn counts_a_paused_job_as_due(fixture: StoreFixture) {
    let due = fixture.now();
    fixture.enqueue_some(1).await;
    fixture.pause(None).await;
    fixture.clock.advance(ms(10));
    assert_eq!(stats(&fixture).await.oldest_due, Some(due));
}

async fn stats(fixture: &StoreFixture) -> Stats {
    fixture.store.stats().await.expect("stats")
}
