//! Settle, verdict by verdict: every column of the row and of the log.

use std::time::Duration;

use redrive_core::limits::ERROR_BYTES_MAX;
use redrive_core::store::{Settled, Settlement};
use redrive_core::{Attempt, Await, Job, Reason, State, Verdict};

use super::chapter;
use super::stage::{Stage, claim_request, entry, ids, ms, settlement, wait, worker};

chapter!("settle":
    complete_ends_the_job_with_its_output,
    complete_without_output_leaves_none,
    retry_plans_the_next_attempt,
    a_retry_without_wait_is_due_at_once,
    a_retry_waits_a_fraction_of_a_millisecond_too_long_rather_than_too_short,
    snooze_refunds_the_attempt_and_stops_the_budget,
    park_refunds_the_attempt_and_lets_the_budget_run,
    snoozes_add_up,
    release_gives_attempt_and_job_back_at_once,
    wait_sets_the_job_aside_and_refunds,
    dead_letter_parks_the_job_with_its_reason,
    cancel_ends_the_job,
    an_error_stays_until_another_replaces_it,
    a_retried_job_keeps_its_wait_while_it_snoozes,
);

async fn complete_ends_the_job_with_its_output(stage: Stage) {
    let output: Vec<u8> = (0..=255).chain([0, 254]).collect();
    let check = check(&stage, Verdict::Complete(Some(output.clone()))).await;
    let row =
        Job { state: State::Succeeded, finished_at: Some(stage.now()), output: Some(output), ..check.row() };
    check.row_is(&stage, row).await;
    check.log_is(&stage, State::Succeeded, None).await;
}

async fn complete_without_output_leaves_none(stage: Stage) {
    let check = check(&stage, Verdict::Complete(None)).await;
    let row = Job { state: State::Succeeded, finished_at: Some(stage.now()), ..check.row() };
    check.row_is(&stage, row).await;
    let other = stage.running().await;
    stage.settle(other.lease(), Verdict::Complete(Some(Vec::new()))).await;
    assert_eq!(stage.job(other.id).await.output, Some(Vec::new()));
}

async fn retry_plans_the_next_attempt(stage: Stage) {
    let check = check(&stage, Verdict::Retry(ms(4_321))).await;
    let row = Job {
        state: State::Retrying,
        next_run_at: stage.now().after(ms(4_321)),
        wait: Some(ms(4_321)),
        ..check.row()
    };
    check.row_is(&stage, row).await;
    check.log_is(&stage, State::Retrying, Some(ms(4_321))).await;
    stage.clock.advance(ms(4_320));
    assert_eq!(stage.claim(1).await, []);
    stage.clock.advance(ms(1));
    assert_eq!(ids(&stage.claim(1).await), [check.job.id]);
}

async fn a_retry_without_wait_is_due_at_once(stage: Stage) {
    let check = check(&stage, Verdict::Retry(Duration::ZERO)).await;
    check.log_is(&stage, State::Retrying, Some(Duration::ZERO)).await;
    assert_eq!(stage.job(check.job.id).await.wait, Some(Duration::ZERO));
    assert_eq!(ids(&stage.claim(1).await), [check.job.id]);
}

async fn a_retry_waits_a_fraction_of_a_millisecond_too_long_rather_than_too_short(stage: Stage) {
    let job = stage.running().await;
    stage.settle(job.lease(), Verdict::Retry(Duration::from_micros(2_001))).await;
    assert_eq!(stage.job(job.id).await.next_run_at, stage.now().after(ms(3)));
}

async fn snooze_refunds_the_attempt_and_stops_the_budget(stage: Stage) {
    let check = check(&stage, Verdict::Snooze(ms(60_000))).await;
    let row = Job {
        state: State::Pending,
        attempt: 0,
        began_at: check.job.began_at.after(ms(60_000)),
        next_run_at: stage.now().after(ms(60_000)),
        ..check.row()
    };
    check.row_is(&stage, row).await;
    check.log_is(&stage, State::Pending, Some(ms(60_000))).await;
}

async fn park_refunds_the_attempt_and_lets_the_budget_run(stage: Stage) {
    let check = check(&stage, Verdict::Park(ms(60_000))).await;
    let row =
        Job { state: State::Pending, attempt: 0, next_run_at: stage.now().after(ms(60_000)), ..check.row() };
    check.row_is(&stage, row).await;
    check.log_is(&stage, State::Pending, Some(ms(60_000))).await;
}

async fn snoozes_add_up(stage: Stage) {
    let first = stage.running().await;
    stage.settle(first.lease(), Verdict::Snooze(ms(300))).await;
    stage.clock.advance(ms(300));
    let second = stage.claim_own(first.id).await;
    assert_eq!((second.attempt, second.epoch), (1, 2));
    stage.settle(second.lease(), Verdict::Snooze(ms(500))).await;
    let job = stage.job(first.id).await;
    assert_eq!((job.attempt, job.began_at), (0, first.began_at.after(ms(800))));
}

async fn release_gives_attempt_and_job_back_at_once(stage: Stage) {
    let check = check(&stage, Verdict::Release).await;
    let row = Job { state: State::Pending, attempt: 0, next_run_at: stage.now(), ..check.row() };
    check.row_is(&stage, row).await;
    check.log_is(&stage, State::Pending, Some(Duration::ZERO)).await;
    let again = stage.claim_by(claim_request(1)).await.jobs;
    assert_eq!((again[0].attempt, again[0].epoch), (1, 2));
}

async fn wait_sets_the_job_aside_and_refunds(stage: Stage) {
    let check = check(&stage, wait()).await;
    let awaits = Some(Await::Unhold);
    let row = Job { state: State::Waiting, attempt: 0, awaits, next_run_at: stage.now(), ..check.row() };
    check.row_is(&stage, row).await;
    check.log_is(&stage, State::Waiting, None).await;
    stage.clock.advance(ms(1_000_000));
    assert_eq!(stage.claim(1).await, []);
}

async fn dead_letter_parks_the_job_with_its_reason(stage: Stage) {
    for reason in Reason::ALL {
        let check = check(&stage, Verdict::DeadLetter(reason)).await;
        let row =
            Job { state: State::Dead, finished_at: Some(stage.now()), reason: Some(reason), ..check.row() };
        check.row_is(&stage, row).await;
        check.log_is(&stage, State::Dead, None).await;
    }
}

async fn cancel_ends_the_job(stage: Stage) {
    let check = check(&stage, Verdict::Cancel).await;
    let row = Job { state: State::Cancelled, finished_at: Some(stage.now()), ..check.row() };
    check.row_is(&stage, row).await;
    check.log_is(&stage, State::Cancelled, None).await;
}

async fn an_error_stays_until_another_replaces_it(stage: Stage) {
    let id = stage.enqueue(stage.own_job()).await;
    let long = "x".repeat(ERROR_BYTES_MAX);
    let cases = [
        (None, None),
        (Some("first 🦀"), Some("first 🦀")),
        (None, Some("first 🦀")),
        (Some(&*long), Some(&*long)),
    ];
    for (error, kept) in cases {
        let job = stage.claim_own(id).await;
        let settlement = Settlement {
            error: error.map(str::to_owned),
            ..settlement(job.lease(), Verdict::Retry(Duration::ZERO))
        };
        stage.settle_by(settlement).await;
        assert_eq!(stage.job(id).await.last_error.as_deref(), kept);
    }
    let job = stage.claim_own(id).await;
    stage.settle(job.lease(), Verdict::Complete(None)).await;
    assert_eq!(stage.job(id).await.last_error, Some(long));
}

async fn a_retried_job_keeps_its_wait_while_it_snoozes(stage: Stage) {
    let id = stage.enqueue(stage.own_job()).await;
    for verdict in [Verdict::Retry(ms(7)), Verdict::Snooze(ms(900)), Verdict::Release, wait()] {
        stage.clock.advance(ms(1_000));
        stage.claim_and_settle(id, verdict.clone()).await;
        assert_eq!(stage.job(id).await.wait, Some(ms(7)), "{verdict:?}");
    }
}

/// An attempt that was settled 500 ms after its claim, with an error and a log entry.
struct Check {
    job: Job,
}

async fn check(stage: &Stage, verdict: Verdict) -> Check {
    let job = stage.running().await;
    stage.clock.advance(ms(500));
    let settlement = Settlement {
        error: Some("what went wrong".to_owned()),
        entry: Some(entry(&job, "an outcome")),
        ..settlement(job.lease(), verdict.clone())
    };
    let state = verdict.effect().state;
    assert_eq!(stage.settle_by(settlement).await, Settled::Applied(state));
    Check { job }
}

impl Check {
    /// What every settlement leaves: no lease, the worker and the error as evidence.
    fn row(&self) -> Job {
        Job { lease_until: None, last_error: Some("what went wrong".to_owned()), ..self.job.clone() }
    }

    async fn row_is(&self, stage: &Stage, expected: Job) {
        assert_eq!(stage.job(self.job.id).await, expected);
    }

    async fn log_is(&self, stage: &Stage, led_to: State, wait: Option<Duration>) {
        let expected = Attempt {
            epoch: 1,
            entry: entry(&self.job, "an outcome"),
            worker: Some(worker("claimer")),
            led_to,
            wait,
            next_run_at: wait.map(|wait| stage.now().after(wait)),
        };
        assert_eq!(stage.log(self.job.id).await, [expected]);
    }
}
