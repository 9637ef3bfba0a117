//! Pause: a record stops the claims of one queue, or of all.

use redrive_core::store::{ClaimRequest, SettleResult};
use redrive_core::{NewJob, State, Verdict};

use super::chapter;
use super::fixture::{LEASE, StoreFixture, claim_request, ids, queue};

chapter!("pause":
    a_paused_queue_is_not_claimed_from_until_it_resumes,
    every_queue_can_be_paused_at_once,
    a_queue_resumes_when_both_pauses_have_ended,
    a_paused_queue_is_not_claimed_even_by_name,
    a_pause_does_not_affect_running_jobs,
    a_pause_does_not_stop_reclaim,
);

async fn a_paused_queue_is_not_claimed_from_until_it_resumes(fixture: StoreFixture) {
    let (a, b) = (queue("a"), queue("b"));
    let paused = fixture.enqueue(NewJob { queue: a.clone(), ..fixture.new_job() }).await;
    let open = fixture.enqueue(NewJob { queue: b.clone(), ..fixture.new_job() }).await;
    fixture.pause(Some(&a)).await;
    assert_eq!(ids(&fixture.claim(10).await), [open]);
    fixture.resume(Some(&b)).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.resume(Some(&a)).await;
    assert_eq!(ids(&fixture.claim(10).await), [paused]);
}

async fn every_queue_can_be_paused_at_once(fixture: StoreFixture) {
    let mut enqueued = fixture.enqueue_some(1).await;
    enqueued.push(fixture.enqueue(NewJob { queue: queue("b"), ..fixture.new_job() }).await);
    fixture.pause(None).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.resume(None).await;
    assert_eq!(ids(&fixture.claim(10).await), enqueued);
}

async fn a_queue_resumes_when_both_pauses_have_ended(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(1).await;
    let own = queue("default");
    fixture.pause(None).await;
    fixture.pause(Some(&own)).await;
    fixture.resume(None).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.pause(None).await;
    fixture.resume(Some(&own)).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.resume(None).await;
    assert_eq!(ids(&fixture.claim(10).await), enqueued);
}

async fn a_paused_queue_is_not_claimed_even_by_name(fixture: StoreFixture) {
    fixture.enqueue_some(1).await;
    let request = ClaimRequest { queues: vec![queue("default")], ..claim_request(1) };
    fixture.pause(Some(&queue("default"))).await;
    assert_eq!(fixture.claim_by(request.clone()).await.jobs, []);
    fixture.resume(Some(&queue("default"))).await;
    fixture.pause(None).await;
    assert_eq!(fixture.claim_by(request).await.jobs, []);
}

async fn a_pause_does_not_affect_running_jobs(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.pause(Some(&job.queue)).await;
    fixture.pause(None).await;
    assert_eq!(fixture.job(job.id).await, job);
    let settled = fixture.settle(job.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, SettleResult::Applied(State::Succeeded));
}

async fn a_pause_does_not_stop_reclaim(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.pause(Some(&job.queue)).await;
    fixture.clock.advance(LEASE);
    assert_eq!(ids(&fixture.reclaim(10).await), [job.id]);
}
