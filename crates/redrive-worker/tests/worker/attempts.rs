//! One attempt from its policy to its settlement.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::limits::{ERROR_BYTES_MAX, OUTPUT_BYTES_MAX};
use redrive_core::policy::presets;
use redrive_core::records::{Change, Expect, Records};
use redrive_core::{
    Await, Deferral, Failure, Fault, NewJob, Outcome, PolicyName, PolicyRef, Queue, Reason, SignalName,
    Start, State, Wait,
};
use redrive_worker::{Context, KeepLog};

use crate::stage::{MS, S, Stage, id, unavailable};

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
    let status = |code| Outcome::Fail(Failure::new(Fault::Status(code), "answered"));
    let cases = [
        (Outcome::Done(Some(b"out".to_vec())), State::Succeeded, 1, None, None),
        (Outcome::fail("boom"), State::Retrying, 1, Some(S), Some("boom")),
        (Outcome::retry_after("busy", 60 * S), State::Retrying, 1, Some(60 * S), Some("busy")),
        (status(503), State::Retrying, 1, Some(S), Some("answered")),
        (status(404), State::Dead, 1, None, Some("answered")),
        (Outcome::reject("never"), State::Dead, 1, None, Some("never")),
        (Outcome::Snooze(60 * S), State::Pending, 0, Some(60 * S), None),
        (Outcome::Park(60 * S), State::Pending, 0, Some(60 * S), None),
        (Outcome::Defer(Deferral::of_job(60 * S, "no key")), State::Pending, 0, Some(60 * S), Some("no key")),
        (
            Outcome::Wait(Wait::until(Await::Signal(SignalName::new("go").unwrap()))),
            State::Waiting,
            0,
            None,
            None,
        ),
        (Outcome::Cancelled, State::Cancelled, 1, None, None),
    ];
    for (outcome, state, attempt, wait, error) in cases {
        let stage = Stage::new().await;
        stage.enqueue_many(1).await;
        let worker = stage.start(always(outcome.clone()));
        stage.when(|stage| !stage.store.calls("settle").is_empty()).await;
        let summary = worker.stop().await;
        let job = stage.job(1);
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
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let worker = stage.start(always(Outcome::fail("boom")));
    stage.until(1, State::Dead).await;
    let summary = worker.stop().await;
    assert_eq!(stage.job(1).reason, Some(Reason::AttemptsExhausted));
    assert_eq!(stage.outcomes(1), ["failed"; 4]);
    assert_eq!((summary.retried, summary.dead), (3, 1));
    let starts: Vec<_> = stage.log(1).iter().map(|attempt| attempt.entry.started_at).collect();
    let gaps: Vec<_> = starts.windows(2).map(|pair| pair[1].since(pair[0]).as_secs()).collect();
    assert_eq!(gaps, [1, 4, 9]);
}

#[tokio::test(start_paused = true)]
async fn a_snooze_costs_no_attempt() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let worker = stage.start(move |cx: Context| {
        let call = seen.fetch_add(1, Ordering::SeqCst);
        assert_eq!(cx.job.attempt, 1);
        std::future::ready(if call < 9 { Outcome::Snooze(60 * S) } else { Outcome::Done(None) })
    });
    stage.until(1, State::Succeeded).await;
    assert_eq!(calls.load(Ordering::SeqCst), 10);
    assert_eq!(worker.stop().await.snoozed, 9);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_like_any_other() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let worker = stage.start(async |cx: Context| {
        tokio::time::sleep(5 * MS).await;
        assert!(cx.job.attempt > 1, "not at attempt {}", cx.job.attempt);
        Outcome::Done(None)
    });
    stage.until(1, State::Succeeded).await;
    worker.stop().await;
    let log = stage.log(1);
    assert_eq!(log.len(), 1);
    assert_eq!((log[0].entry.outcome.as_str(), log[0].led_to), ("panic", State::Retrying));
    assert_eq!(log[0].entry.error.as_deref(), Some("handler panicked: not at attempt 1"));
    assert_eq!(log[0].entry.duration, 5 * MS);
}

#[tokio::test(start_paused = true)]
async fn the_job_s_timeout_goes_before_the_policy_s_and_that_before_the_worker_s() {
    let cases = [
        (Some(1), Some(2), Some(3), Some(1)),
        (None, Some(2), Some(3), Some(2)),
        (None, None, Some(3), Some(3)),
        (None, None, None, None),
    ];
    for (job, policy, worker, expected) in cases {
        let secs = |n: Option<u64>| n.map(Duration::from_secs);
        let stage = Stage::with_policy(&presets::quadratic().with_attempt_timeout(secs(policy))).await;
        stage.enqueue([NewJob { timeout: secs(job), ..stage.new_job(1) }]).await;
        let worker = stage.start_with(Stage::settings().with_attempt_timeout(secs(worker)), async |_| {
            tokio::time::sleep(10 * S).await;
            Outcome::Done(None)
        });
        stage.when(|stage| stage.state(1) != State::Pending && stage.state(1) != State::Running).await;
        let log = stage.log(1);
        assert_eq!(log.first().map(|attempt| attempt.entry.duration), secs(expected));
        if let Some(expected) = expected {
            assert_eq!(log[0].entry.outcome, "timeout");
            assert_eq!(
                stage.job(1).last_error.unwrap(),
                format!("attempt took longer than its timeout of {expected}s")
            );
        } else {
            assert_eq!(stage.state(1), State::Succeeded);
        }
        worker.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_store_would_refuse_is_cut_or_rejected() {
    let stage = Stage::new().await;
    stage.enqueue_many(2).await;
    let worker = stage.start(async |cx: Context| match cx.job.payload[0] {
        1 => Outcome::Done(Some(vec![0; OUTPUT_BYTES_MAX + 1])),
        _ => Outcome::reject("x".repeat(ERROR_BYTES_MAX + 1)),
    });
    stage.until(1, State::Dead).await;
    stage.until(2, State::Dead).await;
    worker.stop().await;
    assert_eq!(stage.job(1).last_error.unwrap(), "output is 65537 bytes long, at most 65536 are allowed");
    assert_eq!(stage.job(2).last_error.unwrap().len(), ERROR_BYTES_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_is_missing_or_damaged_makes_the_job_dead_and_is_named() {
    let stage = Stage::new().await;
    let named = |name: &str| PolicyRef::first(PolicyName::new(name).unwrap());
    let value = Some(b"{".to_vec());
    let damaged = Change { kind: "policy".into(), id: "damaged@1".into(), expect: Expect::Any, value };
    stage.store.model.write(damaged).await.unwrap();
    stage.enqueue([NewJob { policy: named("missing"), ..stage.new_job(1) }]).await;
    stage.enqueue([NewJob { policy: named("damaged"), ..stage.new_job(2) }]).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = stage.start(counting(&calls));
    stage.until(1, State::Dead).await;
    stage.until(2, State::Dead).await;
    worker.stop().await;
    assert_eq!(stage.job(1).last_error.unwrap(), "policy missing@1 is not in the store");
    let error = stage.job(2).last_error.unwrap();
    assert!(error.starts_with("policy damaged@1 cannot be read: "), "{error}");
    assert_eq!(stage.job(1).reason, Some(Reason::NotRetryable));
    assert_eq!((calls.load(Ordering::SeqCst), stage.outcomes(1)), (0, vec!["rejected".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_cannot_be_loaded_now_costs_no_attempt() {
    let stage = Stage::new().await;
    stage.enqueue_many(3).await;
    stage.store.fail("read", 2, unavailable);
    stage.store.delay("read", MS);
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = stage.start(counting(&calls));
    stage.when(|stage| stage.in_state(State::Succeeded) == 3).await;
    let summary = worker.stop().await;
    for n in 1..=3 {
        assert_eq!((stage.job(n).attempt, stage.log(n).len()), (1, 0));
    }
    // Those who ask together fail together, and later share what one of them reads.
    // One of them may be settled apart from the others, and so come back when the read has worked.
    assert_eq!(stage.store.calls("read").len(), 3);
    assert!((5..=6).contains(&summary.snoozed), "{summary:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_spent_at_the_claim_never_starts_the_handler() {
    let stage = Stage::with_policy(&presets::quadratic().with_total_budget(10 * S)).await;
    stage.enqueue_many(1).await;
    tokio::time::sleep(11 * S).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = stage.start(counting(&calls));
    stage.until(1, State::Dead).await;
    worker.stop().await;
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let (job, log) = (stage.job(1), stage.log(1));
    assert_eq!((job.reason, job.last_error), (Some(Reason::BudgetExceeded), None));
    assert!(log[0].entry.error.as_deref().unwrap().contains("budget"), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn an_estimate_ends_retries_that_would_not_fit_but_no_first_attempt() {
    let stage = Stage::with_policy(&presets::quadratic().with_total_budget(10 * S)).await;
    stage.enqueue_many(1).await;
    let worker = stage.start(async |cx: Context| match cx.job.payload[0] {
        1 => {
            tokio::time::sleep(60 * S).await;
            Outcome::Done(None)
        }
        _ => Outcome::fail("boom"),
    });
    stage.until(1, State::Succeeded).await;
    stage.enqueue([stage.new_job(2)]).await;
    stage.until(2, State::Dead).await;
    worker.stop().await;
    // It was tried although 60 s are estimated; then 1 s + 48 s are too much for a budget of 10 s.
    assert_eq!(stage.outcomes(2), ["failed"]);
    assert_eq!(stage.job(2).reason, Some(Reason::BudgetExceeded));
}

#[tokio::test(start_paused = true)]
async fn the_log_keeps_what_its_queue_asks_for() {
    let cases = [
        (KeepLog::All, vec!["failed", "done"]),
        (KeepLog::Failures, vec!["failed"]),
        (KeepLog::None, vec![]),
    ];
    for (keep, expected) in cases {
        let stage = Stage::new().await;
        let queue = Queue::new("audit").unwrap();
        stage.enqueue([NewJob { queue: queue.clone(), ..stage.new_job(1) }]).await;
        let worker = stage.start_with(Stage::settings().with_log_of(queue, keep), async |cx: Context| {
            if cx.job.attempt < 2 { Outcome::fail("boom") } else { Outcome::Done(None) }
        });
        stage.until(1, State::Succeeded).await;
        worker.stop().await;
        assert_eq!(stage.outcomes(1), expected, "{keep:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_can_be_tried_by_itself() {
    let stage = Stage::new().await;
    stage.enqueue([NewJob { start: Start::After(S), ..stage.new_job(1) }]).await;
    let cx = Context::detached(stage.job(1));
    assert!(!cx.is_cancelled());
    assert_eq!(cx.job.id, id(1));
}
