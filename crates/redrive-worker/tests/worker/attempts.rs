//! Single attempts: policy, time budget, timeout, outcome and attempt log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::limits::{ERROR_BYTES_MAX, OUTPUT_BYTES_MAX};
use redrive_core::policy::presets;
use redrive_core::records::{Precondition, RecordStore, RecordWrite};
use redrive_core::{
    Deferral, Failure, FailureKind, NewJob, Outcome, PolicyName, PolicyRef, Queue, Reason, SignalName, Start,
    State, Wait, WaitCondition,
};
use redrive_worker::{AttemptLogging, Context};

use crate::fixture::{Fixture, MS, S, id, unavailable};

/// A handler that returns the same outcome each time.
fn always(outcome: Outcome) -> impl Fn(Context) -> std::future::Ready<Outcome> {
    move |_| std::future::ready(outcome.clone())
}

/// A handler that counts its calls.
fn counting(calls: &Arc<AtomicUsize>) -> impl Fn(Context) -> std::future::Ready<Outcome> + use<> {
    let calls = calls.clone();
    move |_| {
        calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Outcome::Done(None))
    }
}

#[tokio::test(start_paused = true)]
async fn each_outcome_leads_to_its_state() {
    let status = |code| Outcome::Fail(Failure::new(FailureKind::Status(code), "answered"));
    let cases = [
        (Outcome::Done(Some(b"out".to_vec())), State::Succeeded, 1, None, None),
        (Outcome::fail("boom"), State::Retrying, 1, Some(S), Some("boom")),
        (Outcome::retry_after("busy", 60 * S), State::Retrying, 1, Some(60 * S), Some("busy")),
        (status(503), State::Retrying, 1, Some(S), Some("answered")),
        (status(404), State::Dead, 1, None, Some("answered")),
        (Outcome::reject("never"), State::Dead, 1, None, Some("never")),
        (Outcome::Snooze(60 * S), State::Pending, 0, Some(60 * S), None),
        (Outcome::Hold(60 * S), State::Pending, 0, Some(60 * S), None),
        (Outcome::Defer(Deferral::of_job(60 * S, "no key")), State::Pending, 0, Some(60 * S), Some("no key")),
        (
            Outcome::Wait(Wait::until(WaitCondition::Signal(SignalName::new("go").unwrap()))),
            State::Waiting,
            0,
            None,
            None,
        ),
        (Outcome::Cancelled, State::Cancelled, 1, None, None),
    ];
    for (outcome, state, attempt, wait, error) in cases {
        let fixture = Fixture::new().await;
        fixture.enqueue_many(1).await;
        let worker = fixture.start(always(outcome.clone()));
        fixture.wait_until(|fixture| !fixture.store.calls("settle").is_empty()).await;
        let summary = worker.stop().await;
        let job = fixture.job(1);
        assert_eq!((job.state, job.attempt), (state, attempt), "{outcome:?}");
        assert_eq!(job.last_error.as_deref(), error, "{outcome:?}");
        if let Some(wait) = wait {
            assert_eq!(job.next_run_at.since(job.started_at.unwrap()), wait, "{outcome:?}");
        }
        assert_eq!((summary.claimed, summary.settled()), (1, 1), "{outcome:?}");
        assert_eq!(job.output.is_some(), state == State::Succeeded);
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_end_with_the_policy() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let worker = fixture.start(always(Outcome::fail("boom")));
    fixture.wait_for_state(1, State::Dead).await;
    let summary = worker.stop().await;
    assert_eq!(fixture.job(1).reason, Some(Reason::AttemptsExhausted));
    assert_eq!(fixture.outcomes(1), ["failed"; 4]);
    assert_eq!((summary.retried, summary.dead), (3, 1));
    let starts: Vec<_> = fixture.log(1).iter().map(|attempt| attempt.entry.started_at).collect();
    let gaps: Vec<_> = starts.windows(2).map(|pair| pair[1].since(pair[0]).as_secs()).collect();
    assert_eq!(gaps, [1, 4, 9]);
}

#[tokio::test(start_paused = true)]
async fn a_snooze_costs_no_attempt() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let worker = fixture.start(move |cx: Context| {
        let call = seen.fetch_add(1, Ordering::SeqCst);
        assert_eq!(cx.job.attempt, 1);
        std::future::ready(if call < 9 { Outcome::Snooze(60 * S) } else { Outcome::Done(None) })
    });
    fixture.wait_for_state(1, State::Succeeded).await;
    assert_eq!(calls.load(Ordering::SeqCst), 10);
    assert_eq!(worker.stop().await.snoozed, 9);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_attempt() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let worker = fixture.start(async |cx: Context| {
        tokio::time::sleep(5 * MS).await;
        assert!(cx.job.attempt > 1, "not at attempt {}", cx.job.attempt);
        Outcome::Done(None)
    });
    fixture.wait_for_state(1, State::Succeeded).await;
    worker.stop().await;
    let log = fixture.log(1);
    assert_eq!(log.len(), 1);
    assert_eq!((log[0].entry.outcome.as_str(), log[0].led_to), ("panic", State::Retrying));
    assert_eq!(log[0].entry.error.as_deref(), Some("handler panicked: not at attempt 1"));
    assert_eq!(log[0].entry.duration, 5 * MS);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_the_job_wins_over_that_of_the_policy_and_that_of_the_worker() {
    let cases = [
        (Some(1), Some(2), Some(3), Some(1)),
        (None, Some(2), Some(3), Some(2)),
        (None, None, Some(3), Some(3)),
        (None, None, None, None),
    ];
    for (job, policy, worker, expected) in cases {
        let secs = |n: Option<u64>| n.map(Duration::from_secs);
        let fixture = Fixture::with_policy(&presets::quadratic().with_attempt_timeout(secs(policy))).await;
        fixture.enqueue([NewJob { timeout: secs(job), ..fixture.new_job(1) }]).await;
        let worker = fixture.start_with(Fixture::settings().with_attempt_timeout(secs(worker)), async |_| {
            tokio::time::sleep(10 * S).await;
            Outcome::Done(None)
        });
        fixture
            .wait_until(|fixture| fixture.state(1) != State::Pending && fixture.state(1) != State::Running)
            .await;
        let log = fixture.log(1);
        assert_eq!(log.first().map(|attempt| attempt.entry.duration), secs(expected));
        if let Some(expected) = expected {
            assert_eq!(log[0].entry.outcome, "timeout");
            assert_eq!(
                fixture.job(1).last_error.unwrap(),
                format!("attempt took longer than its timeout of {expected}s")
            );
        } else {
            assert_eq!(fixture.state(1), State::Succeeded);
        }
        worker.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_oversized_output_is_rejected_and_a_long_error_is_truncated() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(2).await;
    let worker = fixture.start(async |cx: Context| match cx.job.payload[0] {
        1 => Outcome::Done(Some(vec![0; OUTPUT_BYTES_MAX + 1])),
        _ => Outcome::reject("x".repeat(ERROR_BYTES_MAX + 1)),
    });
    fixture.wait_for_state(1, State::Dead).await;
    fixture.wait_for_state(2, State::Dead).await;
    worker.stop().await;
    assert_eq!(fixture.job(1).last_error.unwrap(), "output is 65537 bytes long, at most 65536 are allowed");
    assert_eq!(fixture.job(2).last_error.unwrap().len(), ERROR_BYTES_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_damaged_policy_makes_the_job_dead_with_an_error_that_names_it() {
    let fixture = Fixture::new().await;
    let named = |name: &str| PolicyRef::first(PolicyName::new(name).unwrap());
    let value = Some(b"{".to_vec());
    let damaged =
        RecordWrite { kind: "policy".into(), id: "damaged@1".into(), expect: Precondition::Any, value };
    fixture.store.model.write(damaged).await.unwrap();
    fixture.enqueue([NewJob { policy: named("missing"), ..fixture.new_job(1) }]).await;
    fixture.enqueue([NewJob { policy: named("damaged"), ..fixture.new_job(2) }]).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = fixture.start(counting(&calls));
    fixture.wait_for_state(1, State::Dead).await;
    fixture.wait_for_state(2, State::Dead).await;
    worker.stop().await;
    assert_eq!(fixture.job(1).last_error.unwrap(), "policy missing@1 is not in the store");
    let error = fixture.job(2).last_error.unwrap();
    assert!(error.starts_with("policy damaged@1 cannot be read: "), "{error}");
    assert_eq!(fixture.job(1).reason, Some(Reason::NotRetryable));
    assert_eq!((calls.load(Ordering::SeqCst), fixture.outcomes(1)), (0, vec!["rejected".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_cannot_be_loaded_now_costs_no_attempt() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(3).await;
    fixture.store.fail("read", 2, unavailable);
    fixture.store.delay("read", MS);
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = fixture.start(counting(&calls));
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 3).await;
    let summary = worker.stop().await;
    for n in 1..=3 {
        assert_eq!((fixture.job(n).attempt, fixture.log(n).len()), (1, 0));
    }
    // Concurrent attempts share one read and its failure. One of the jobs may be settled apart from the others, and so run again
    // only after the read has succeeded.
    assert_eq!(fixture.store.calls("read").len(), 3);
    assert!((5..=6).contains(&summary.snoozed), "{summary:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn the_handler_is_not_called_after_the_time_budget_has_run_out() {
    let fixture = Fixture::with_policy(&presets::quadratic().with_total_budget(10 * S)).await;
    fixture.enqueue_many(1).await;
    tokio::time::sleep(11 * S).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = fixture.start(counting(&calls));
    fixture.wait_for_state(1, State::Dead).await;
    worker.stop().await;
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let (job, log) = (fixture.job(1), fixture.log(1));
    assert_eq!((job.reason, job.last_error), (Some(Reason::BudgetExceeded), None));
    assert!(log[0].entry.error.as_deref().unwrap().contains("budget"), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn an_estimate_prevents_retries_beyond_the_time_budget_but_not_the_first_attempt() {
    let fixture = Fixture::with_policy(&presets::quadratic().with_total_budget(10 * S)).await;
    fixture.enqueue_many(1).await;
    let worker = fixture.start(async |cx: Context| match cx.job.payload[0] {
        1 => {
            tokio::time::sleep(60 * S).await;
            Outcome::Done(None)
        }
        _ => Outcome::fail("boom"),
    });
    fixture.wait_for_state(1, State::Succeeded).await;
    fixture.enqueue([fixture.new_job(2)]).await;
    fixture.wait_for_state(2, State::Dead).await;
    worker.stop().await;
    // The first attempt starts although the estimate is 60 s. A retry after 1 s, with an estimate of 48 s, exceeds the 10 s.
    assert_eq!(fixture.outcomes(2), ["failed"]);
    assert_eq!(fixture.job(2).reason, Some(Reason::BudgetExceeded));
}

#[tokio::test(start_paused = true)]
async fn the_attempt_log_follows_the_setting_of_the_queue() {
    let cases = [
        (AttemptLogging::All, vec!["failed", "succeeded"]),
        (AttemptLogging::Failures, vec!["failed"]),
        (AttemptLogging::None, vec![]),
    ];
    for (keep, expected) in cases {
        let fixture = Fixture::new().await;
        let queue = Queue::new("audit").unwrap();
        fixture.enqueue([NewJob { queue: queue.clone(), ..fixture.new_job(1) }]).await;
        let worker = fixture.start_with(Fixture::settings().with_log_of(queue, keep), async |cx: Context| {
            if cx.job.attempt < 2 { Outcome::fail("boom") } else { Outcome::Done(None) }
        });
        fixture.wait_for_state(1, State::Succeeded).await;
        worker.stop().await;
        assert_eq!(fixture.outcomes(1), expected, "{keep:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_can_be_tested_without_a_worker() {
    let fixture = Fixture::new().await;
    fixture.enqueue([NewJob { start: Start::After(S), ..fixture.new_job(1) }]).await;
    let cx = Context::detached(fixture.job(1));
    assert!(!cx.is_cancelled());
    assert_eq!(cx.job.id, id(1));
}
