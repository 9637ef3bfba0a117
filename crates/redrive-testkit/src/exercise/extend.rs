//! Extend: renews leases that are still held, and reports requested cancels.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{CancelResult, ExtendResult};
use redrive_core::{Job, Lease, State, Verdict};

use super::chapter;
use super::fixture::{LEASE, StoreFixture, ids, job_id, ms, newer_leases, only, rejected};

chapter!("extend":
    renews_from_now_and_changes_nothing_else,
    may_shorten_a_lease,
    a_renewed_lease_is_not_reclaimed,
    renews_an_expired_lease_that_was_not_reclaimed,
    reports_a_requested_cancel_and_renews,
    a_reclaimed_lease_is_lost,
    a_settled_lease_is_lost,
    a_job_that_is_not_running_has_no_lease,
    a_batch_returns_one_result_per_item,
    an_oversized_batch_is_rejected,
);

async fn renews_from_now_and_changes_nothing_else(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(ms(10_000));
    assert_eq!(extend(&fixture, job.lease()).await, ExtendResult::Renewed);
    let expected = Job { lease_until: Some(fixture.now().after(LEASE)), ..job };
    assert_eq!(fixture.job(expected.id).await, expected);
    assert_eq!(fixture.log(expected.id).await, []);
}

async fn may_shorten_a_lease(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.store.extend(vec![job.lease()], ms(5)).await.expect("extend");
    fixture.clock.advance(ms(5));
    assert_eq!(ids(&fixture.reclaim(1).await), [job.id]);
}

async fn a_renewed_lease_is_not_reclaimed(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE - ms(1));
    extend(&fixture, job.lease()).await;
    fixture.clock.advance(LEASE - ms(1));
    assert_eq!(fixture.reclaim(1).await, []);
    fixture.clock.advance(ms(1));
    assert_eq!(ids(&fixture.reclaim(1).await), [job.id]);
}

async fn renews_an_expired_lease_that_was_not_reclaimed(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE * 5);
    assert_eq!(extend(&fixture, job.lease()).await, ExtendResult::Renewed);
    assert_eq!(fixture.reclaim(1).await, []);
}

async fn reports_a_requested_cancel_and_renews(fixture: StoreFixture) {
    let job = fixture.running().await;
    assert_eq!(fixture.cancel(job.id).await, CancelResult::Requested);
    fixture.clock.advance(ms(1_000));
    for _ in 0..2 {
        assert_eq!(extend(&fixture, job.lease()).await, ExtendResult::CancelRequested);
    }
    assert_eq!(fixture.job(job.id).await.lease_until, Some(fixture.now().after(LEASE)));
}

async fn a_reclaimed_lease_is_lost(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE);
    fixture.reclaim(1).await;
    assert_lost(&fixture, job.lease()).await;
}

async fn a_settled_lease_is_lost(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.settle(job.lease(), Verdict::Retry(ms(0))).await;
    assert_lost(&fixture, job.lease()).await;
    fixture.claim_own(job.id).await;
    assert_lost(&fixture, job.lease()).await;
}

async fn a_job_that_is_not_running_has_no_lease(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Running) {
        let job = fixture.in_state(state).await;
        assert_lost(&fixture, job.lease()).await;
    }
    assert_lost(&fixture, Lease { id: job_id(99), epoch: 1 }).await;
}

async fn a_batch_returns_one_result_per_item(fixture: StoreFixture) {
    let (held, cancelling, lost) =
        (fixture.running().await, fixture.running().await, fixture.running().await);
    fixture.cancel(cancelling.id).await;
    let [newer, newest] = newer_leases(lost.lease());
    let batch = vec![cancelling.lease(), newer, newest, held.lease(), held.lease()];
    let answers = fixture.store.extend(batch, LEASE).await.expect("extend");
    let expected = [
        ExtendResult::CancelRequested,
        ExtendResult::LeaseLost,
        ExtendResult::LeaseLost,
        ExtendResult::Renewed,
        ExtendResult::Renewed,
    ];
    assert_eq!(answers, expected);
}

async fn an_oversized_batch_is_rejected(fixture: StoreFixture) {
    let lease = Lease { id: job_id(1), epoch: 1 };
    let full = fixture.store.extend(vec![lease; BATCH_ITEMS_MAX], LEASE).await.expect("a full batch");
    assert_eq!(full.len(), BATCH_ITEMS_MAX);
    let more = fixture.store.extend(vec![lease; BATCH_ITEMS_MAX + 1], LEASE).await;
    assert_eq!(rejected(more).field, "batch");
}

async fn extend(fixture: &StoreFixture, lease: Lease) -> ExtendResult {
    only(fixture.store.extend(vec![lease], LEASE).await.expect("extend"))
}

async fn assert_lost(fixture: &StoreFixture, lease: Lease) {
    let before = fixture.content().await;
    assert_eq!(extend(fixture, lease).await, ExtendResult::LeaseLost);
    assert_eq!(fixture.content().await, before);
}
