//! Prune: deletes ended jobs when their retention is over, and not a millisecond before.

use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::Retention;
use redrive_core::{JobId, NewJob, Parent, State, Verdict};

use super::chapter;
use super::fixture::{LEASE, StoreFixture, ids, ms};

chapter!("prune":
    removes_each_state_at_its_millisecond_and_not_before,
    never_removes_a_live_job,
    counts_from_the_end_and_not_from_the_start,
    removes_state_by_state_and_longest_ended_first_within_the_limit,
    an_unlimited_retention_keeps_jobs_for_ever,
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

async fn removes_each_state_at_its_millisecond_and_not_before(fixture: StoreFixture) {
    for (state, kept) in RETENTION.by_state() {
        let job = fixture.in_state(state).await;
        let other = fixture.enqueue(fixture.own_job()).await;
        fixture.clock.advance(kept - ms(1));
        assert_eq!(prune(&fixture, 10).await, 0, "{state}");
        assert_eq!(fixture.job(job.id).await, job);
        fixture.clock.advance(ms(1));
        assert_eq!(prune(&fixture, 10).await, 1, "{state}");
        assert_eq!(fixture.find(job.id).await, None, "{state}");
        assert!(fixture.find(other).await.is_some());
    }
}

async fn never_removes_a_live_job(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| !state.is_final()) {
        fixture.in_state(state).await;
    }
    fixture.clock.advance(LEASE * 100_000);
    let before = fixture.content().await;
    assert_eq!(prune(&fixture, 100).await, 0);
    assert_eq!(fixture.content().await, before);
}

async fn counts_from_the_end_and_not_from_the_start(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.own_job()).await;
    fixture.clock.advance(ms(500));
    fixture.bring_to(id, State::Running).await;
    fixture.clock.advance(ms(5_000));
    let lease = fixture.job(id).await.lease();
    fixture.settle(lease, Verdict::Complete(None)).await;
    fixture.clock.advance(ms(999));
    assert_eq!(prune(&fixture, 10).await, 0);
    fixture.clock.advance(ms(1));
    assert_eq!(prune(&fixture, 10).await, 1);
}

async fn removes_state_by_state_and_longest_ended_first_within_the_limit(fixture: StoreFixture) {
    let mut order: Vec<(usize, JobId)> = Vec::new();
    // Two jobs end in each state, the one with the smaller id later, so that neither id nor state alone gives the
    // order.
    for state in [State::Cancelled, State::Dead, State::Succeeded] {
        let (late, early) =
            (fixture.enqueue(fixture.own_job()).await, fixture.enqueue(fixture.own_job()).await);
        fixture.bring_to(early, state).await;
        fixture.clock.advance(ms(10));
        fixture.bring_to(late, state).await;
        let rank = RETENTION.by_state().iter().position(|(of, _)| *of == state).expect("a final state");
        order.extend([(rank * 2, early), (rank * 2 + 1, late)]);
    }
    order.sort_unstable();
    fixture.clock.advance(ms(10_000));
    for gone in 1..=6 {
        assert_eq!(prune(&fixture, 1).await, 1);
        let mut left: Vec<JobId> = order[gone..].iter().map(|(_, id)| *id).collect();
        left.sort_unstable();
        left.reverse();
        let remaining: Vec<_> = fixture.content().await.into_iter().map(|(job, _)| job).collect();
        assert_eq!(ids(&remaining), left);
    }
    assert_eq!(prune(&fixture, 1).await, 0);
}

async fn an_unlimited_retention_keeps_jobs_for_ever(fixture: StoreFixture) {
    let kept = Retention { succeeded: Duration::MAX, dead: Duration::MAX, cancelled: Duration::ZERO };
    for state in [State::Succeeded, State::Dead, State::Cancelled] {
        fixture.in_state(state).await;
    }
    fixture.clock.advance(LEASE * 1_000_000);
    assert_eq!(fixture.store.prune(kept, 10).await.expect("prune"), 1);
    assert_eq!(fixture.content().await.len(), 2);
}

async fn removes_the_log_too(fixture: StoreFixture) {
    let job = fixture.in_state(State::Dead).await;
    assert_eq!(fixture.log(job.id).await.len(), 1);
    fixture.clock.advance(ms(2_000));
    assert_eq!(prune(&fixture, 10).await, 1);
    assert_eq!(fixture.log(job.id).await, []);
}

async fn a_redriven_job_is_kept(fixture: StoreFixture) {
    let job = fixture.in_state(State::Dead).await;
    fixture.redrive(job.id).await;
    fixture.clock.advance(ms(10_000));
    assert_eq!(prune(&fixture, 10).await, 0);
    assert!(fixture.find(job.id).await.is_some());
}

async fn removes_many_at_once(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(250).await;
    fixture.store.cancel(enqueued).await.expect("cancel");
    fixture.clock.advance(ms(3_000));
    assert_eq!(prune(&fixture, 0).await, 0);
    assert_eq!(prune(&fixture, 100).await, 100);
    assert_eq!(prune(&fixture, BATCH_ITEMS_MAX).await, 150);
    assert_eq!(fixture.content().await, []);
}

async fn prune(fixture: &StoreFixture, limit: usize) -> usize {
    fixture.store.prune(RETENTION, limit).await.expect("prune")
}

async fn keeps_children_until_their_parent_has_ended(fixture: StoreFixture) {
    let parent = fixture.in_state(State::Waiting).await.id;
    let of = |id| NewJob { parent: Some(Parent::new(id, 0)), ..fixture.own_job() };
    let (child, orphan) = (of(parent), of(super::fixture::job_id(99)));
    for job in [child.clone(), orphan.clone()] {
        fixture.enqueue(job.clone()).await;
        fixture.bring_to(job.id, State::Succeeded).await;
    }
    fixture.clock.advance(ms(5_000));
    assert_eq!(prune(&fixture, 10).await, 1);
    assert!(fixture.find(child.id).await.is_some() && fixture.find(orphan.id).await.is_none());
    fixture.cancel(parent).await;
    assert_eq!(prune(&fixture, 10).await, 1);
    assert_eq!(fixture.find(child.id).await, None);
}
