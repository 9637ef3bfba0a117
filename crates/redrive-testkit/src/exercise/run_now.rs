//! Run now: makes a job that waits for its due time due now, and changes nothing else.

use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::RunNowResult;
use redrive_core::{Job, NewJob, Start, State, Verdict};

use super::chapter;
use super::fixture::{StoreFixture, ids, job_id, ms, only, rejected};

chapter!("run_now":
    makes_a_delayed_job_due_with_its_budget,
    makes_a_retry_due_and_keeps_its_run,
    leaves_a_due_job_unchanged,
    changes_only_jobs_that_wait_for_their_due_time,
    a_batch_returns_one_result_per_item,
    an_oversized_batch_is_rejected,
);

async fn makes_a_delayed_job_due_with_its_budget(fixture: StoreFixture) {
    let id = fixture.enqueue(NewJob { start: Start::After(ms(60_000)), ..fixture.new_job() }).await;
    let before = fixture.job(id).await;
    fixture.clock.advance(ms(100));
    assert_eq!(run_now(&fixture, &before).await, RunNowResult::Done);
    let expected = Job { next_run_at: fixture.now(), began_at: fixture.now(), ..before };
    assert_eq!(fixture.job(id).await, expected);
    assert_eq!(ids(&fixture.claim(1).await), [id]);
}

async fn makes_a_retry_due_and_keeps_its_run(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.settle(job.lease(), Verdict::Retry(ms(60_000))).await;
    let before = fixture.job(job.id).await;
    fixture.clock.advance(ms(100));
    assert_eq!(run_now(&fixture, &before).await, RunNowResult::Done);
    assert_eq!(fixture.job(job.id).await, Job { next_run_at: fixture.now(), ..before });
    assert_eq!(fixture.claim_own(job.id).await.attempt, 2);
}

async fn leaves_a_due_job_unchanged(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.new_job()).await;
    let before = fixture.job(id).await;
    fixture.clock.advance(ms(100));
    assert_eq!(run_now(&fixture, &before).await, RunNowResult::Done);
    assert_eq!(fixture.job(id).await, before);
}

async fn changes_only_jobs_that_wait_for_their_due_time(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| !state.is_claimable()) {
        let before = fixture.in_state(state).await;
        assert_eq!(run_now(&fixture, &before).await, RunNowResult::NotWaiting(state));
        assert_eq!(fixture.job(before.id).await, before);
    }
    let answer = only(fixture.store.run_now(vec![job_id(99)]).await.expect("run_now"));
    assert_eq!(answer, RunNowResult::NotFound);
}

async fn a_batch_returns_one_result_per_item(fixture: StoreFixture) {
    let waiting =
        fixture.enqueue(NewJob { start: Start::After(Duration::from_secs(9)), ..fixture.own_job() }).await;
    let dead = fixture.in_state(State::Dead).await.id;
    let answers = fixture.store.run_now(vec![dead, job_id(99), waiting, waiting]).await.expect("run_now");
    let expected = [
        RunNowResult::NotWaiting(State::Dead),
        RunNowResult::NotFound,
        RunNowResult::Done,
        RunNowResult::Done,
    ];
    assert_eq!(answers, expected);
}

async fn an_oversized_batch_is_rejected(fixture: StoreFixture) {
    let many = vec![job_id(1); BATCH_ITEMS_MAX + 1];
    assert_eq!(rejected(fixture.store.run_now(many).await).field, "batch");
}

async fn run_now(fixture: &StoreFixture, job: &Job) -> RunNowResult {
    only(fixture.store.run_now(vec![job.id]).await.expect("run_now"))
}
