//! Follow-ups: jobs that a settlement enqueues, in the same write or not at all.

use redrive_core::limits::{FOLLOW_UPS_MAX, HORIZON};
use redrive_core::store::{Settled, Settlement};
use redrive_core::{NewJob, Reason, Start, State, Verdict};

use super::chapter;
use super::stage::{LEASE, Stage, key, ms, refused, settlement};

chapter!("follow_ups":
    come_with_the_settlement,
    come_with_every_verdict,
    do_not_come_under_a_lost_lease,
    come_once_under_a_key,
    are_claimable_at_once,
    illegal_ones_refuse_the_batch_whole,
    too_many_are_refused,
);

async fn come_with_the_settlement(stage: Stage) {
    let job = stage.running().await;
    let (first, second) = (stage.own_job(), stage.own_job());
    let ids = [first.id, second.id];
    let settled = stage.settle_by(following(&job, Verdict::Complete(None), vec![first, second])).await;
    assert_eq!(settled, Settled::Applied(State::Succeeded));
    for id in ids {
        let follow_up = stage.job(id).await;
        assert_eq!((follow_up.state, follow_up.created_at), (State::Pending, stage.now()));
    }
}

async fn come_with_every_verdict(stage: Stage) {
    let verdicts = [
        Verdict::Complete(Some(b"ok".to_vec())),
        Verdict::Retry(ms(5)),
        Verdict::Park(ms(5)),
        Verdict::DeadLetter(Reason::AttemptsExhausted),
        Verdict::Cancel,
    ];
    for verdict in verdicts {
        let job = stage.running().await;
        let next = stage.own_job();
        let id = next.id;
        stage.settle_by(following(&job, verdict, vec![next])).await;
        assert_eq!(stage.job(id).await.state, State::Pending);
    }
}

async fn do_not_come_under_a_lost_lease(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE);
    stage.reclaim(1).await;
    let before = stage.content().await;
    let settled = stage.settle_by(following(&job, Verdict::Complete(None), vec![stage.own_job()])).await;
    assert_eq!(settled, Settled::LeaseLost);
    assert_eq!(stage.content().await, before);
}

async fn come_once_under_a_key(stage: Stage) {
    let (one, two) = (stage.running().await, stage.running().await);
    let (first, again) = (stage.new_job().with_key(key("k")), stage.new_job().with_key(key("k")));
    let (kept, left_out) = (first.id, again.id);
    let batch = vec![
        following(&one, Verdict::Complete(None), vec![first]),
        following(&two, Verdict::Complete(None), vec![again]),
    ];
    stage.store.settle(batch).await.expect("settle");
    assert_eq!(stage.job(kept).await.key, Some(key("k")));
    assert_eq!(stage.find(left_out).await, None);
}

async fn are_claimable_at_once(stage: Stage) {
    let job = stage.running().await;
    let next = stage.own_job();
    let id = next.id;
    stage.settle_by(following(&job, Verdict::Complete(None), vec![next])).await;
    assert_eq!(stage.claim_own(id).await.attempt, 1);
}

async fn illegal_ones_refuse_the_batch_whole(stage: Stage) {
    let (one, two) = (stage.running().await, stage.running().await);
    let before = stage.content().await;
    let late = NewJob { start: Start::After(HORIZON + ms(1)), ..stage.own_job() };
    let batch = vec![
        following(&one, Verdict::Complete(None), vec![stage.own_job()]),
        following(&two, Verdict::Complete(None), vec![late]),
    ];
    assert_eq!(refused(stage.store.settle(batch).await).field, "runAt");
    assert_eq!(stage.content().await, before);
}

async fn too_many_are_refused(stage: Stage) {
    let job = stage.running().await;
    let many = (0..=FOLLOW_UPS_MAX).map(|_| stage.own_job()).collect();
    let refusal = refused(stage.store.settle(vec![following(&job, Verdict::Complete(None), many)]).await);
    assert_eq!(refusal.field, "followUps");
}

fn following(job: &redrive_core::Job, verdict: Verdict, follow_ups: Vec<NewJob>) -> Settlement {
    Settlement { follow_ups, ..settlement(job.lease(), verdict) }
}
