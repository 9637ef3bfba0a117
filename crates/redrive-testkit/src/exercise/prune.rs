//! Prune: what has ended goes when its retention is over, and not a millisecond before.

use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::Retention;
use redrive_core::{JobId, NewJob, Parent, State, Verdict};

use super::chapter;
use super::stage::{LEASE, Stage, ids, ms};

chapter!("prune":
    removes_each_state_at_its_millisecond_and_not_before,
    never_removes_what_has_not_ended,
    counts_from_the_end_and_not_from_the_start,
    goes_state_by_state_and_longest_ended_first_within_the_limit,
    a_retention_without_end_keeps_for_ever,
    removes_the_log_too,
    a_redriven_job_is_kept,
    removes_many_at_once,
    keeps_children_until_their_parent_has_ended,
);

const RETENTION: Retention = Retention {
    succeeded: Duration::from_millis(1_000),
    dead: Duration::from_millis(2_000),
    cancelled: Duration::from_millis(3_000),
};

async fn removes_each_state_at_its_millisecond_and_not_before(stage: Stage) {
    for (state, kept) in RETENTION.by_state() {
        let job = stage.in_state(state).await;
        let other = stage.enqueue(stage.own_job()).await;
        stage.clock.advance(kept - ms(1));
        assert_eq!(prune(&stage, 10).await, 0, "{state}");
        assert_eq!(stage.job(job.id).await, job);
        stage.clock.advance(ms(1));
        assert_eq!(prune(&stage, 10).await, 1, "{state}");
        assert_eq!(stage.find(job.id).await, None, "{state}");
        assert!(stage.find(other).await.is_some());
    }
}

async fn never_removes_what_has_not_ended(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| !state.is_final()) {
        stage.in_state(state).await;
    }
    stage.clock.advance(LEASE * 100_000);
    let before = stage.content().await;
    assert_eq!(prune(&stage, 100).await, 0);
    assert_eq!(stage.content().await, before);
}

async fn counts_from_the_end_and_not_from_the_start(stage: Stage) {
    let id = stage.enqueue(stage.own_job()).await;
    stage.clock.advance(ms(500));
    stage.lead(id, State::Running).await;
    stage.clock.advance(ms(5_000));
    let lease = stage.job(id).await.lease();
    stage.settle(lease, Verdict::Complete(None)).await;
    stage.clock.advance(ms(999));
    assert_eq!(prune(&stage, 10).await, 0);
    stage.clock.advance(ms(1));
    assert_eq!(prune(&stage, 10).await, 1);
}

async fn goes_state_by_state_and_longest_ended_first_within_the_limit(stage: Stage) {
    let mut order: Vec<(usize, JobId)> = Vec::new();
    // Each state ends twice, the later one first in id, so that neither id nor state alone gives the order.
    for state in [State::Cancelled, State::Dead, State::Succeeded] {
        let (late, early) = (stage.enqueue(stage.own_job()).await, stage.enqueue(stage.own_job()).await);
        stage.lead(early, state).await;
        stage.clock.advance(ms(10));
        stage.lead(late, state).await;
        let rank = RETENTION.by_state().iter().position(|(of, _)| *of == state).expect("a final state");
        order.extend([(rank * 2, early), (rank * 2 + 1, late)]);
    }
    order.sort_unstable();
    stage.clock.advance(ms(10_000));
    for gone in 1..=6 {
        assert_eq!(prune(&stage, 1).await, 1);
        let mut left: Vec<JobId> = order[gone..].iter().map(|(_, id)| *id).collect();
        left.sort_unstable();
        left.reverse();
        let there: Vec<_> = stage.content().await.into_iter().map(|(job, _)| job).collect();
        assert_eq!(ids(&there), left);
    }
    assert_eq!(prune(&stage, 1).await, 0);
}

async fn a_retention_without_end_keeps_for_ever(stage: Stage) {
    let kept = Retention { succeeded: Duration::MAX, dead: Duration::MAX, cancelled: Duration::ZERO };
    for state in [State::Succeeded, State::Dead, State::Cancelled] {
        stage.in_state(state).await;
    }
    stage.clock.advance(LEASE * 1_000_000);
    assert_eq!(stage.store.prune(kept, 10).await.expect("prune"), 1);
    assert_eq!(stage.content().await.len(), 2);
}

async fn removes_the_log_too(stage: Stage) {
    let job = stage.in_state(State::Dead).await;
    assert_eq!(stage.log(job.id).await.len(), 1);
    stage.clock.advance(ms(2_000));
    assert_eq!(prune(&stage, 10).await, 1);
    assert_eq!(stage.log(job.id).await, []);
}

async fn a_redriven_job_is_kept(stage: Stage) {
    let job = stage.in_state(State::Dead).await;
    stage.redrive(job.id).await;
    stage.clock.advance(ms(10_000));
    assert_eq!(prune(&stage, 10).await, 0);
    assert!(stage.find(job.id).await.is_some());
}

async fn removes_many_at_once(stage: Stage) {
    let made = stage.enqueue_some(250).await;
    stage.store.cancel(made).await.expect("cancel");
    stage.clock.advance(ms(3_000));
    assert_eq!(prune(&stage, 0).await, 0);
    assert_eq!(prune(&stage, 100).await, 100);
    assert_eq!(prune(&stage, BATCH_ITEMS_MAX).await, 150);
    assert_eq!(stage.content().await, []);
}

async fn prune(stage: &Stage, limit: usize) -> usize {
    stage.store.prune(RETENTION, limit).await.expect("prune")
}

async fn keeps_children_until_their_parent_has_ended(stage: Stage) {
    let parent = stage.in_state(State::Waiting).await.id;
    let of = |id| NewJob { parent: Some(Parent::new(id, 0)), ..stage.own_job() };
    let (child, orphan) = (of(parent), of(super::stage::job_id(99)));
    for job in [child.clone(), orphan.clone()] {
        stage.enqueue(job.clone()).await;
        stage.lead(job.id, State::Succeeded).await;
    }
    stage.clock.advance(ms(5_000));
    assert_eq!(prune(&stage, 10).await, 1);
    assert!(stage.find(child.id).await.is_some() && stage.find(orphan.id).await.is_none());
    stage.cancel(parent).await;
    assert_eq!(prune(&stage, 10).await, 1);
    assert_eq!(stage.find(child.id).await, None);
}
