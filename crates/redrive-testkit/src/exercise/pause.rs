//! Pause: a record stops the claims of a queue, or of all.

use redrive_core::store::{ClaimRequest, Settled};
use redrive_core::{NewJob, State, Verdict};

use super::chapter;
use super::stage::{LEASE, Stage, claim_request, ids, queue};

chapter!("pause":
    a_paused_queue_is_not_claimed_from_until_it_resumes,
    every_queue_can_be_paused_at_once,
    both_pauses_must_go,
    a_pause_by_name_holds_when_the_queue_is_named,
    a_pause_leaves_running_jobs_alone,
    a_pause_does_not_stop_reclaim,
);

async fn a_paused_queue_is_not_claimed_from_until_it_resumes(stage: Stage) {
    let (a, b) = (queue("a"), queue("b"));
    let paused = stage.enqueue(NewJob { queue: a.clone(), ..stage.new_job() }).await;
    let open = stage.enqueue(NewJob { queue: b.clone(), ..stage.new_job() }).await;
    stage.pause(Some(&a)).await;
    assert_eq!(ids(&stage.claim(10).await), [open]);
    stage.resume(Some(&b)).await;
    assert_eq!(stage.claim(10).await, []);
    stage.resume(Some(&a)).await;
    assert_eq!(ids(&stage.claim(10).await), [paused]);
}

async fn every_queue_can_be_paused_at_once(stage: Stage) {
    let mut made = stage.enqueue_some(1).await;
    made.push(stage.enqueue(NewJob { queue: queue("b"), ..stage.new_job() }).await);
    stage.pause(None).await;
    assert_eq!(stage.claim(10).await, []);
    stage.resume(None).await;
    assert_eq!(ids(&stage.claim(10).await), made);
}

async fn both_pauses_must_go(stage: Stage) {
    let made = stage.enqueue_some(1).await;
    let own = queue("default");
    stage.pause(None).await;
    stage.pause(Some(&own)).await;
    stage.resume(None).await;
    assert_eq!(stage.claim(10).await, []);
    stage.pause(None).await;
    stage.resume(Some(&own)).await;
    assert_eq!(stage.claim(10).await, []);
    stage.resume(None).await;
    assert_eq!(ids(&stage.claim(10).await), made);
}

async fn a_pause_by_name_holds_when_the_queue_is_named(stage: Stage) {
    stage.enqueue_some(1).await;
    let request = ClaimRequest { queues: vec![queue("default")], ..claim_request(1) };
    stage.pause(Some(&queue("default"))).await;
    assert_eq!(stage.claim_by(request.clone()).await.jobs, []);
    stage.resume(Some(&queue("default"))).await;
    stage.pause(None).await;
    assert_eq!(stage.claim_by(request).await.jobs, []);
}

async fn a_pause_leaves_running_jobs_alone(stage: Stage) {
    let job = stage.running().await;
    stage.pause(Some(&job.queue)).await;
    stage.pause(None).await;
    assert_eq!(stage.job(job.id).await, job);
    let settled = stage.settle(job.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, Settled::Applied(State::Succeeded));
}

async fn a_pause_does_not_stop_reclaim(stage: Stage) {
    let job = stage.running().await;
    stage.pause(Some(&job.queue)).await;
    stage.clock.advance(LEASE);
    assert_eq!(ids(&stage.reclaim(10).await), [job.id]);
}
