//! Stats: counts by queue and state, and how late the oldest due job is.

use std::collections::BTreeMap;

use redrive_core::store::Stats;
use redrive_core::{NewJob, Start, State, Verdict};

use super::chapter;
use super::stage::{Stage, ms, priority, queue};

chapter!("stats":
    an_empty_store_counts_nothing,
    counts_every_state_by_queue,
    follows_changes,
    knows_how_long_the_oldest_job_has_been_due,
    counts_a_paused_job_as_due,
);

async fn an_empty_store_counts_nothing(stage: Stage) {
    let expected = Stats { now: stage.now(), counts: BTreeMap::new(), oldest_due: None };
    assert_eq!(stats(&stage).await, expected);
}

async fn counts_every_state_by_queue(stage: Stage) {
    let mut counts = BTreeMap::new();
    for state in State::ALL {
        let job = stage.in_state(state).await;
        counts.insert((job.queue, state), 1);
    }
    for _ in 0..3 {
        stage.enqueue(NewJob { queue: queue("mail"), ..stage.new_job() }).await;
    }
    counts.insert((queue("mail"), State::Pending), 3);
    let stats = stats(&stage).await;
    assert_eq!(stats.counts, counts);
    assert_eq!(stats.in_state(State::Pending), 4);
}

async fn follows_changes(stage: Stage) {
    let made = stage.enqueue_some(2).await;
    let count = |state| BTreeMap::from([((queue("default"), state), 2)]);
    assert_eq!(stats(&stage).await.counts, count(State::Pending));
    let jobs = stage.claim(2).await;
    assert_eq!(stats(&stage).await.counts, count(State::Running));
    for job in &jobs {
        stage.settle(job.lease(), Verdict::Retry(ms(1))).await;
    }
    assert_eq!(stats(&stage).await.counts, count(State::Retrying));
    stage.store.cancel(made).await.expect("cancel");
    assert_eq!(stats(&stage).await.counts, count(State::Cancelled));
}

async fn knows_how_long_the_oldest_job_has_been_due(stage: Stage) {
    let later = stage.now().after(ms(100));
    for (urgency, after) in [(9, 200), (1, 100), (5, 150)] {
        let job = NewJob { priority: priority(urgency), start: Start::After(ms(after)), ..stage.new_job() };
        stage.enqueue(job).await;
    }
    stage.clock.advance(ms(99));
    assert_eq!(stats(&stage).await.oldest_due, None);
    stage.clock.advance(ms(1));
    assert_eq!(stats(&stage).await.oldest_due, Some(later));
    stage.clock.advance(ms(500));
    let seen = stats(&stage).await;
    assert_eq!((seen.now, seen.oldest_due), (stage.now(), Some(later)));
    stage.claim(10).await;
    assert_eq!(stats(&stage).await.oldest_due, None);
}

async fn counts_a_paused_job_as_due(stage: Stage) {
    let due = stage.now();
    stage.enqueue_some(1).await;
    stage.pause(None).await;
    stage.clock.advance(ms(10));
    assert_eq!(stats(&stage).await.oldest_due, Some(due));
}

async fn stats(stage: &Stage) -> Stats {
    stage.store.stats().await.expect("stats")
}
