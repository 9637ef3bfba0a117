//! Follow-ups: a settlement enqueues them in the same write.

use redrive_core::limits::{FOLLOW_UPS_MAX, HORIZON};
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{NewJob, Reason, Start, State, Verdict};

use super::chapter;
use super::fixture::{LEASE, StoreFixture, key, ms, rejected, settlement};

chapter!("follow_ups":
    are_enqueued_with_the_settlement,
    are_enqueued_with_every_verdict,
    are_not_enqueued_under_a_lost_lease,
    are_enqueued_once_per_key,
    are_claimable_at_once,
    an_invalid_one_rejects_the_whole_batch,
    too_many_are_rejected,
);

async fn are_enqueued_with_the_settlement(fixture: StoreFixture) {
    let job = fixture.running().await;
    let (first, second) = (fixture.own_job(), fixture.own_job());
    let ids = [first.id, second.id];
    let settled =
        fixture.settle_by(with_follow_ups(&job, Verdict::Complete(None), vec![first, second])).await;
    assert_eq!(settled, SettleResult::Applied(State::Succeeded));
    for id in ids {
        let follow_up = fixture.job(id).await;
        assert_eq!((follow_up.state, follow_up.created_at), (State::Pending, fixture.now()));
    }
}

async fn are_enqueued_with_every_verdict(fixture: StoreFixture) {
    let verdicts = [
        Verdict::Complete(Some(b"ok".to_vec())),
        Verdict::Retry(ms(5)),
        Verdict::Hold(ms(5)),
        Verdict::DeadLetter(Reason::AttemptsExhausted),
        Verdict::Cancel,
    ];
    for verdict in verdicts {
        let job = fixture.running().await;
        let next = fixture.own_job();
        let id = next.id;
        fixture.settle_by(with_follow_ups(&job, verdict, vec![next])).await;
        assert_eq!(fixture.job(id).await.state, State::Pending);
    }
}

async fn are_not_enqueued_under_a_lost_lease(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE);
    fixture.reclaim(1).await;
    let before = fixture.content().await;
    let settled =
        fixture.settle_by(with_follow_ups(&job, Verdict::Complete(None), vec![fixture.own_job()])).await;
    assert_eq!(settled, SettleResult::LeaseLost);
    assert_eq!(fixture.content().await, before);
}

async fn are_enqueued_once_per_key(fixture: StoreFixture) {
    let (one, two) = (fixture.running().await, fixture.running().await);
    let (first, again) = (fixture.new_job().with_key(key("k")), fixture.new_job().with_key(key("k")));
    let (kept, left_out) = (first.id, again.id);
    let batch = vec![
        with_follow_ups(&one, Verdict::Complete(None), vec![first]),
        with_follow_ups(&two, Verdict::Complete(None), vec![again]),
    ];
    fixture.store.settle(batch).await.expect("settle");
    assert_eq!(fixture.job(kept).await.key, Some(key("k")));
    assert_eq!(fixture.find(left_out).await, None);
}

async fn are_claimable_at_once(fixture: StoreFixture) {
    let job = fixture.running().await;
    let next = fixture.own_job();
    let id = next.id;
    fixture.settle_by(with_follow_ups(&job, Verdict::Complete(None), vec![next])).await;
    assert_eq!(fixture.claim_own(id).await.attempt, 1);
}

async fn an_invalid_one_rejects_the_whole_batch(fixture: StoreFixture) {
    let (one, two) = (fixture.running().await, fixture.running().await);
    let before = fixture.content().await;
    let late = NewJob { start: Start::After(HORIZON + ms(1)), ..fixture.own_job() };
    let batch = vec![
        with_follow_ups(&one, Verdict::Complete(None), vec![fixture.own_job()]),
        with_follow_ups(&two, Verdict::Complete(None), vec![late]),
    ];
    assert_eq!(rejected(fixture.store.settle(batch).await).field, "runAt");
    assert_eq!(fixture.content().await, before);
}

async fn too_many_are_rejected(fixture: StoreFixture) {
    let job = fixture.running().await;
    let many = (0..=FOLLOW_UPS_MAX).map(|_| fixture.own_job()).collect();
    let refusal =
        rejected(fixture.store.settle(vec![with_follow_ups(&job, Verdict::Complete(None), many)]).await);
    assert_eq!(refusal.field, "followUps");
}

fn with_follow_ups(job: &redrive_core::Job, verdict: Verdict, follow_ups: Vec<NewJob>) -> Settlement {
    Settlement { follow_ups, ..settlement(job.lease(), verdict) }
}
