//! Extend: renews what is still held, and brings back what the holder must know.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Cancelled, Extended};
use redrive_core::{Job, Lease, State, Verdict};

use super::chapter;
use super::stage::{LEASE, Stage, ids, job_id, ms, only, refused};

chapter!("extend":
    renews_from_now_and_changes_nothing_else,
    may_shorten_a_lease,
    a_renewed_lease_is_not_taken_over,
    renews_a_lease_that_ran_out_but_was_not_taken_over,
    tells_of_a_cancel_and_renews,
    a_lease_that_was_taken_over_is_lost,
    a_lease_that_was_settled_is_lost,
    a_job_that_is_not_running_has_no_lease,
    a_batch_answers_item_by_item,
    a_batch_that_is_too_large_is_refused,
);

async fn renews_from_now_and_changes_nothing_else(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(ms(10_000));
    assert_eq!(extend(&stage, job.lease()).await, Extended::Renewed);
    let expected = Job { lease_until: Some(stage.now().after(LEASE)), ..job };
    assert_eq!(stage.job(expected.id).await, expected);
    assert_eq!(stage.log(expected.id).await, []);
}

async fn may_shorten_a_lease(stage: Stage) {
    let job = stage.running().await;
    stage.store.extend(vec![job.lease()], ms(5)).await.expect("extend");
    stage.clock.advance(ms(5));
    assert_eq!(ids(&stage.reclaim(1).await), [job.id]);
}

async fn a_renewed_lease_is_not_taken_over(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE - ms(1));
    extend(&stage, job.lease()).await;
    stage.clock.advance(LEASE - ms(1));
    assert_eq!(stage.reclaim(1).await, []);
    stage.clock.advance(ms(1));
    assert_eq!(ids(&stage.reclaim(1).await), [job.id]);
}

async fn renews_a_lease_that_ran_out_but_was_not_taken_over(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE * 5);
    assert_eq!(extend(&stage, job.lease()).await, Extended::Renewed);
    assert_eq!(stage.reclaim(1).await, []);
}

async fn tells_of_a_cancel_and_renews(stage: Stage) {
    let job = stage.running().await;
    assert_eq!(stage.cancel(job.id).await, Cancelled::Requested);
    stage.clock.advance(ms(1_000));
    for _ in 0..2 {
        assert_eq!(extend(&stage, job.lease()).await, Extended::CancelRequested);
    }
    assert_eq!(stage.job(job.id).await.lease_until, Some(stage.now().after(LEASE)));
}

async fn a_lease_that_was_taken_over_is_lost(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE);
    stage.reclaim(1).await;
    is_lost(&stage, job.lease()).await;
}

async fn a_lease_that_was_settled_is_lost(stage: Stage) {
    let job = stage.running().await;
    stage.settle(job.lease(), Verdict::Retry(ms(0))).await;
    is_lost(&stage, job.lease()).await;
    stage.claim_own(job.id).await;
    is_lost(&stage, job.lease()).await;
}

async fn a_job_that_is_not_running_has_no_lease(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Running) {
        let job = stage.in_state(state).await;
        is_lost(&stage, job.lease()).await;
    }
    is_lost(&stage, Lease { id: job_id(99), epoch: 1 }).await;
}

async fn a_batch_answers_item_by_item(stage: Stage) {
    let (held, cancelling, lost) = (stage.running().await, stage.running().await, stage.running().await);
    stage.cancel(cancelling.id).await;
    let stale = Lease { epoch: 7, ..lost.lease() };
    let batch = vec![cancelling.lease(), stale, held.lease(), held.lease()];
    let answers = stage.store.extend(batch, LEASE).await.expect("extend");
    let expected = [Extended::CancelRequested, Extended::LeaseLost, Extended::Renewed, Extended::Renewed];
    assert_eq!(answers, expected);
}

async fn a_batch_that_is_too_large_is_refused(stage: Stage) {
    let lease = Lease { id: job_id(1), epoch: 1 };
    let full = stage.store.extend(vec![lease; BATCH_ITEMS_MAX], LEASE).await.expect("a full batch");
    assert_eq!(full.len(), BATCH_ITEMS_MAX);
    let more = stage.store.extend(vec![lease; BATCH_ITEMS_MAX + 1], LEASE).await;
    assert_eq!(refused(more).field, "batch");
}

async fn extend(stage: &Stage, lease: Lease) -> Extended {
    only(stage.store.extend(vec![lease], LEASE).await.expect("extend"))
}

async fn is_lost(stage: &Stage, lease: Lease) {
    let before = stage.content().await;
    assert_eq!(extend(stage, lease).await, Extended::LeaseLost);
    assert_eq!(stage.content().await, before);
}
