//! Run now: what waits for its time is due at once, and nothing else changes.

use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::RunNow;
use redrive_core::{Job, NewJob, Start, State, Verdict};

use super::chapter;
use super::stage::{Stage, ids, job_id, ms, only, refused};

chapter!("run_now":
    makes_a_delayed_job_due_with_its_budget,
    makes_a_retry_due_and_keeps_its_run,
    leaves_a_due_job_as_it_is,
    touches_nothing_that_does_not_wait_for_its_time,
    a_batch_answers_item_by_item,
    a_batch_that_is_too_large_is_refused,
);

async fn makes_a_delayed_job_due_with_its_budget(stage: Stage) {
    let id = stage.enqueue(NewJob { start: Start::After(ms(60_000)), ..stage.new_job() }).await;
    let before = stage.job(id).await;
    stage.clock.advance(ms(100));
    assert_eq!(run_now(&stage, &before).await, RunNow::Done);
    let expected = Job { next_run_at: stage.now(), began_at: stage.now(), ..before };
    assert_eq!(stage.job(id).await, expected);
    assert_eq!(ids(&stage.claim(1).await), [id]);
}

async fn makes_a_retry_due_and_keeps_its_run(stage: Stage) {
    let job = stage.running().await;
    stage.settle(job.lease(), Verdict::Retry(ms(60_000))).await;
    let before = stage.job(job.id).await;
    stage.clock.advance(ms(100));
    assert_eq!(run_now(&stage, &before).await, RunNow::Done);
    assert_eq!(stage.job(job.id).await, Job { next_run_at: stage.now(), ..before });
    assert_eq!(stage.claim_own(job.id).await.attempt, 2);
}

async fn leaves_a_due_job_as_it_is(stage: Stage) {
    let id = stage.enqueue(stage.new_job()).await;
    let before = stage.job(id).await;
    stage.clock.advance(ms(100));
    assert_eq!(run_now(&stage, &before).await, RunNow::Done);
    assert_eq!(stage.job(id).await, before);
}

async fn touches_nothing_that_does_not_wait_for_its_time(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| !state.is_claimable()) {
        let before = stage.in_state(state).await;
        assert_eq!(run_now(&stage, &before).await, RunNow::NotWaiting(state));
        assert_eq!(stage.job(before.id).await, before);
    }
    let answer = only(stage.store.run_now(vec![job_id(99)]).await.expect("run_now"));
    assert_eq!(answer, RunNow::NotFound);
}

async fn a_batch_answers_item_by_item(stage: Stage) {
    let waiting =
        stage.enqueue(NewJob { start: Start::After(Duration::from_secs(9)), ..stage.own_job() }).await;
    let dead = stage.in_state(State::Dead).await.id;
    let answers = stage.store.run_now(vec![dead, job_id(99), waiting, waiting]).await.expect("run_now");
    let expected = [RunNow::NotWaiting(State::Dead), RunNow::NotFound, RunNow::Done, RunNow::Done];
    assert_eq!(answers, expected);
}

async fn a_batch_that_is_too_large_is_refused(stage: Stage) {
    let many = vec![job_id(1); BATCH_ITEMS_MAX + 1];
    assert_eq!(refused(stage.store.run_now(many).await).field, "batch");
}

async fn run_now(stage: &Stage, job: &Job) -> RunNow {
    only(stage.store.run_now(vec![job.id]).await.expect("run_now"))
}
