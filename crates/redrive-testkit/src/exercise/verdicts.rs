//! Settle, verdict by verdict: every field of the job and of the log entry.

use std::time::Duration;

use redrive_core::limits::ERROR_BYTES_MAX;
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{Attempt, Job, Reason, State, Verdict, WaitCondition};

use super::chapter;
use super::fixture::{StoreFixture, claim_request, entry, ids, ms, next_epoch, settlement, wait, worker};

chapter!("settle":
    complete_ends_the_job_with_its_output,
    complete_without_output_leaves_none,
    retry_plans_the_next_attempt,
    a_retry_without_wait_is_due_at_once,
    a_retry_rounds_its_wait_up_to_a_millisecond,
    snooze_refunds_the_attempt_and_stops_the_budget,
    hold_refunds_the_attempt_and_lets_the_budget_run,
    snoozes_add_up,
    release_refunds_the_attempt_and_makes_the_job_due,
    wait_refunds_the_attempt_and_lets_the_job_wait,
    dead_letter_ends_the_job_with_its_reason,
    cancel_ends_the_job,
    an_error_stays_until_another_replaces_it,
    a_retried_job_keeps_its_wait_while_it_snoozes,
);

async fn complete_ends_the_job_with_its_output(fixture: StoreFixture) {
    let output: Vec<u8> = (0..=255).chain([0, 254]).collect();
    let settled = settle_running_job(&fixture, Verdict::Complete(Some(output.clone()))).await;
    let row = Job {
        state: State::Succeeded,
        finished_at: Some(fixture.now()),
        output: Some(output),
        ..settled.row()
    };
    settled.assert_row(&fixture, row).await;
    settled.assert_log(&fixture, State::Succeeded, None).await;
}

async fn complete_without_output_leaves_none(fixture: StoreFixture) {
    let settled = settle_running_job(&fixture, Verdict::Complete(None)).await;
    let row = Job { state: State::Succeeded, finished_at: Some(fixture.now()), ..settled.row() };
    settled.assert_row(&fixture, row).await;
    let other = fixture.running().await;
    fixture.settle(other.lease(), Verdict::Complete(Some(Vec::new()))).await;
    assert_eq!(fixture.job(other.id).await.output, Some(Vec::new()));
}

async fn retry_plans_the_next_attempt(fixture: StoreFixture) {
    let settled = settle_running_job(&fixture, Verdict::Retry(ms(4_321))).await;
    let row = Job {
        state: State::Retrying,
        next_run_at: fixture.now().after(ms(4_321)),
        wait: Some(ms(4_321)),
        ..settled.row()
    };
    settled.assert_row(&fixture, row).await;
    settled.assert_log(&fixture, State::Retrying, Some(ms(4_321))).await;
    fixture.clock.advance(ms(4_320));
    assert_eq!(fixture.claim(1).await, []);
    fixture.clock.advance(ms(1));
    assert_eq!(ids(&fixture.claim(1).await), [settled.job.id]);
}

async fn a_retry_without_wait_is_due_at_once(fixture: StoreFixture) {
    let settled = settle_running_job(&fixture, Verdict::Retry(Duration::ZERO)).await;
    settled.assert_log(&fixture, State::Retrying, Some(Duration::ZERO)).await;
    assert_eq!(fixture.job(settled.job.id).await.wait, Some(Duration::ZERO));
    assert_eq!(ids(&fixture.claim(1).await), [settled.job.id]);
}

async fn a_retry_rounds_its_wait_up_to_a_millisecond(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.settle(job.lease(), Verdict::Retry(Duration::from_micros(2_001))).await;
    assert_eq!(fixture.job(job.id).await.next_run_at, fixture.now().after(ms(3)));
}

async fn snooze_refunds_the_attempt_and_stops_the_budget(fixture: StoreFixture) {
    let settled = settle_running_job(&fixture, Verdict::Snooze(ms(60_000))).await;
    let row = Job {
        state: State::Pending,
        attempt: 0,
        began_at: settled.job.began_at.after(ms(60_000)),
        next_run_at: fixture.now().after(ms(60_000)),
        ..settled.row()
    };
    settled.assert_row(&fixture, row).await;
    settled.assert_log(&fixture, State::Pending, Some(ms(60_000))).await;
}

async fn hold_refunds_the_attempt_and_lets_the_budget_run(fixture: StoreFixture) {
    let settled = settle_running_job(&fixture, Verdict::Hold(ms(60_000))).await;
    let row = Job {
        state: State::Pending,
        attempt: 0,
        next_run_at: fixture.now().after(ms(60_000)),
        ..settled.row()
    };
    settled.assert_row(&fixture, row).await;
    settled.assert_log(&fixture, State::Pending, Some(ms(60_000))).await;
}

async fn snoozes_add_up(fixture: StoreFixture) {
    let first = fixture.running().await;
    fixture.settle(first.lease(), Verdict::Snooze(ms(300))).await;
    fixture.clock.advance(ms(300));
    let second = fixture.claim_own(first.id).await;
    assert_eq!((second.attempt, second.epoch), (1, next_epoch(&first, &second)));
    fixture.settle(second.lease(), Verdict::Snooze(ms(500))).await;
    let job = fixture.job(first.id).await;
    assert_eq!((job.attempt, job.began_at), (0, first.began_at.after(ms(800))));
}

async fn release_refunds_the_attempt_and_makes_the_job_due(fixture: StoreFixture) {
    let settled = settle_running_job(&fixture, Verdict::Release).await;
    let row = Job { state: State::Pending, attempt: 0, next_run_at: fixture.now(), ..settled.row() };
    settled.assert_row(&fixture, row).await;
    settled.assert_log(&fixture, State::Pending, Some(Duration::ZERO)).await;
    let again = fixture.claim_by(claim_request(1)).await.jobs;
    assert_eq!((again[0].attempt, again[0].epoch), (1, next_epoch(&settled.job, &again[0])));
}

async fn wait_refunds_the_attempt_and_lets_the_job_wait(fixture: StoreFixture) {
    let settled = settle_running_job(&fixture, wait()).await;
    let awaits = Some(WaitCondition::Unpaused);
    let row = Job { state: State::Waiting, attempt: 0, awaits, next_run_at: fixture.now(), ..settled.row() };
    settled.assert_row(&fixture, row).await;
    settled.assert_log(&fixture, State::Waiting, None).await;
    fixture.clock.advance(ms(1_000_000));
    assert_eq!(fixture.claim(1).await, []);
}

async fn dead_letter_ends_the_job_with_its_reason(fixture: StoreFixture) {
    for reason in Reason::ALL {
        let settled = settle_running_job(&fixture, Verdict::DeadLetter(reason)).await;
        let row = Job {
            state: State::Dead,
            finished_at: Some(fixture.now()),
            reason: Some(reason),
            ..settled.row()
        };
        settled.assert_row(&fixture, row).await;
        settled.assert_log(&fixture, State::Dead, None).await;
    }
}

async fn cancel_ends_the_job(fixture: StoreFixture) {
    let settled = settle_running_job(&fixture, Verdict::Cancel).await;
    let row = Job { state: State::Cancelled, finished_at: Some(fixture.now()), ..settled.row() };
    settled.assert_row(&fixture, row).await;
    settled.assert_log(&fixture, State::Cancelled, None).await;
}

async fn an_error_stays_until_another_replaces_it(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.own_job()).await;
    let long = "x".repeat(ERROR_BYTES_MAX);
    let cases = [
        (None, None),
        (Some("first 🦀"), Some("first 🦀")),
        (None, Some("first 🦀")),
        (Some(&*long), Some(&*long)),
    ];
    for (error, kept) in cases {
        let job = fixture.claim_own(id).await;
        let settlement = Settlement {
            error: error.map(str::to_owned),
            ..settlement(job.lease(), Verdict::Retry(Duration::ZERO))
        };
        fixture.settle_by(settlement).await;
        assert_eq!(fixture.job(id).await.last_error.as_deref(), kept);
    }
    let job = fixture.claim_own(id).await;
    fixture.settle(job.lease(), Verdict::Complete(None)).await;
    assert_eq!(fixture.job(id).await.last_error, Some(long));
}

async fn a_retried_job_keeps_its_wait_while_it_snoozes(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.own_job()).await;
    for verdict in [Verdict::Retry(ms(7)), Verdict::Snooze(ms(900)), Verdict::Release, wait()] {
        fixture.clock.advance(ms(1_000));
        fixture.claim_and_settle(id, verdict.clone()).await;
        assert_eq!(fixture.job(id).await.wait, Some(ms(7)), "{verdict:?}");
    }
}

/// An attempt that was settled 500 ms after its claim, with an error and a log entry.
struct SettledJob {
    job: Job,
}

async fn settle_running_job(fixture: &StoreFixture, verdict: Verdict) -> SettledJob {
    let job = fixture.running().await;
    fixture.clock.advance(ms(500));
    let settlement = Settlement {
        error: Some("what went wrong".to_owned()),
        entry: Some(entry(&job, "an outcome")),
        ..settlement(job.lease(), verdict.clone())
    };
    let state = verdict.effect().state;
    assert_eq!(fixture.settle_by(settlement).await, SettleResult::Applied(state));
    SettledJob { job }
}

impl SettledJob {
    /// Returns the job with the changes that every settlement makes: the lease is removed, the worker and the error are kept.
    fn row(&self) -> Job {
        Job { lease_until: None, last_error: Some("what went wrong".to_owned()), ..self.job.clone() }
    }

    async fn assert_row(&self, fixture: &StoreFixture, expected: Job) {
        assert_eq!(fixture.job(self.job.id).await, expected);
    }

    async fn assert_log(&self, fixture: &StoreFixture, led_to: State, wait: Option<Duration>) {
        let expected = Attempt {
            epoch: self.job.epoch,
            entry: entry(&self.job, "an outcome"),
            worker: Some(worker("claimer")),
            led_to,
            wait,
            next_run_at: wait.map(|wait| fixture.now().after(wait)),
        };
        assert_eq!(fixture.log(self.job.id).await, [expected]);
    }
}
