//! The end of attempts and jobs: notes, follow-ups, time budgets and observers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::policy::presets;
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{Job, NewJob, Outcome, Reason, State, Timestamp, Verdict};
use redrive_worker::{AttemptLogging, AttemptNote, Context, Handler, JobEnd, Observer};

use tokio::time::Instant;

use crate::fixture::{Fixture, MS, S, id, kind};

/// Returns one outcome, and one follow-up when the job ends.
struct FollowUpHandler {
    outcome: Outcome,
    next: NewJob,
    seen: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Handler for FollowUpHandler {
    async fn run(&self, cx: Context) -> Outcome {
        cx.note(AttemptNote { detail: Some(r#"{"a":1}"#.to_owned()), status: Some(418) });
        self.outcome.clone()
    }

    fn follow_ups(&self, job: &Job, end: &JobEnd<'_>) -> Vec<NewJob> {
        let status = end.note.and_then(|note| note.status);
        let text = format!("{} {:?} {status:?}", end.outcome.name(), end.verdict.reason());
        self.seen.lock().unwrap().push(text);
        assert!(job.attempt > 0);
        vec![self.next.clone()]
    }
}

/// Returns a fixture with a job, and a handler that returns a follow-up of another kind.
async fn with_follow_up(outcome: Outcome) -> (Fixture, FollowUpHandler) {
    let fixture = Fixture::with_policy(&presets::quadratic().with_max_attempts(2).unwrap()).await;
    fixture.enqueue_many(1).await;
    let next = NewJob { kind: kind("next"), ..fixture.new_job(2) };
    (fixture, FollowUpHandler { outcome, next, seen: Arc::default() })
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_job_enqueues_its_follow_ups_and_a_retry_enqueues_none() {
    for (outcome, state, text) in [
        (Outcome::Done(None), State::Succeeded, "succeeded None Some(418)"),
        (Outcome::fail("boom"), State::Dead, "failed Some(AttemptsExhausted) Some(418)"),
        (Outcome::reject("never"), State::Dead, "rejected Some(NotRetryable) Some(418)"),
    ] {
        let (fixture, handler) = with_follow_up(outcome).await;
        let seen = handler.seen.clone();
        let worker = fixture.start(handler);
        fixture.wait_for_state(1, state).await;
        worker.stop().await;
        assert_eq!(*seen.lock().unwrap(), [text]);
        assert_eq!((fixture.state(2), fixture.job(1).last_status), (State::Pending, Some(418)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reclaimed_job_that_ends_enqueues_its_follow_ups_too() {
    let (fixture, handler) = with_follow_up(Outcome::Done(None)).await;
    let seen = handler.seen.clone();
    for attempt in 1..=2 {
        let crashed = fixture.start(async |_: Context| std::future::pending::<Outcome>().await);
        fixture
            .wait_until(|fixture| fixture.job(1).attempt == attempt && fixture.state(1) == State::Running)
            .await;
        crashed.crash().await;
        tokio::time::sleep(31 * S).await;
    }
    let worker = fixture.start(handler);
    fixture.wait_for_state(1, State::Dead).await;
    worker.stop().await;
    assert_eq!(*seen.lock().unwrap(), ["lease_expired Some(AttemptsExhausted) None"]);
    assert_eq!(fixture.state(2), State::Pending);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_follow_up_does_not_prevent_the_end_of_its_job() {
    let (fixture, mut handler) = with_follow_up(Outcome::Done(None)).await;
    handler.next.payload = vec![0; redrive_core::limits::PAYLOAD_BYTES_MAX + 1];
    let worker = fixture.start(handler);
    fixture.wait_for_state(1, State::Succeeded).await;
    worker.stop().await;
    assert_eq!(fixture.store.model.inspect(|model| model.jobs().count()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_note_is_kept_after_a_timeout() {
    let fixture = Fixture::with_policy(&presets::quadratic().with_attempt_timeout(5 * S)).await;
    fixture.enqueue_many(1).await;
    let worker = fixture.start(async |cx: Context| {
        cx.note(AttemptNote { detail: Some(r#"{"phase":"sent"}"#.to_owned()), status: None });
        std::future::pending::<Outcome>().await
    });
    fixture.wait_for_state(1, State::Retrying).await;
    worker.stop().await;
    assert_eq!(fixture.log(1)[0].entry.detail.as_deref(), Some(r#"{"phase":"sent"}"#));
    assert_eq!(fixture.log(1)[0].entry.outcome, "timeout");
}

/// A destructor in a handler may have to treat a timeout as a failure, but not an abort.
#[tokio::test(start_paused = true)]
async fn a_dropped_attempt_can_distinguish_a_timeout_from_an_abort() {
    struct DropProbe(Context, Arc<Mutex<Option<bool>>>);
    impl Drop for DropProbe {
        fn drop(&mut self) {
            self.1.lock().unwrap().get_or_insert(self.0.is_cancelled());
        }
    }
    for (timeout, aborted) in [(Some(5 * S), false), (None, true)] {
        let fixture = Fixture::new().await;
        fixture.enqueue([NewJob { timeout, ..fixture.new_job(1) }]).await;
        let seen = Arc::new(Mutex::new(None));
        let recorded = seen.clone();
        let settings = Fixture::settings().with_drain(Duration::ZERO);
        let worker = fixture.start_with(settings, move |cx: Context| {
            assert_eq!(cx.timeout, timeout);
            let probe = DropProbe(cx, recorded.clone());
            async move {
                let _probe = probe;
                std::future::pending::<Outcome>().await
            }
        });
        tokio::time::sleep(10 * S).await;
        worker.stop().await;
        assert_eq!(*seen.lock().unwrap(), Some(aborted));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_not_charged_and_the_time_budget_keeps_running() {
    let policy = presets::quadratic().with_total_budget(10 * S);
    let fixture = Fixture::with_policy(&policy).await;
    fixture.enqueue_many(1).await;
    let worker = fixture.start_with(Fixture::settings().with_log(AttemptLogging::All), async |_: Context| {
        Outcome::Hold(4 * S)
    });
    fixture.wait_for_state(1, State::Dead).await;
    worker.stop().await;
    assert_eq!(fixture.job(1).reason, Some(Reason::BudgetExceeded));
    assert_eq!(fixture.outcomes(1), ["rejected"], "only the attempt beyond the budget is in the log");
}

/// Holds its job for an hour each time, and returns one follow-up when the job ends.
struct HoldingHandler {
    next: NewJob,
}

#[async_trait]
impl Handler for HoldingHandler {
    async fn run(&self, _: Context) -> Outcome {
        Outcome::Hold(3_600 * S)
    }

    fn follow_ups(&self, _: &Job, end: &JobEnd<'_>) -> Vec<NewJob> {
        assert_eq!(end.verdict.reason(), Some(Reason::BudgetExceeded));
        vec![self.next.clone()]
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_job_is_dead_at_the_end_of_its_time_budget_and_enqueues_its_follow_ups() {
    let fixture = Fixture::with_policy(&presets::quadratic().with_total_budget(5 * S)).await;
    fixture.enqueue_many(1).await;
    let next = NewJob { kind: kind("next"), ..fixture.new_job(2) };
    let worker = fixture.start(HoldingHandler { next });
    let began = Instant::now();
    fixture.wait_for_state(1, State::Dead).await;
    assert!(began.elapsed() > 5 * S && began.elapsed() <= 6 * S, "{:?}", began.elapsed());
    worker.stop().await;
    assert_eq!((fixture.job(1).reason, fixture.state(2)), (Some(Reason::BudgetExceeded), State::Pending));
}

#[tokio::test(start_paused = true)]
async fn a_job_with_a_short_lease_keeps_it_while_it_runs() {
    let fixture = Fixture::new().await;
    fixture.enqueue([NewJob { lease: Some(3 * S), ..fixture.new_job(1) }]).await;
    let worker = fixture.start(async |_: Context| {
        tokio::time::sleep(60 * S).await;
        Outcome::Done(None)
    });
    fixture.wait_for_state(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.reclaimed, summary.lease_lost), (1, 0, 0));
    assert!(fixture.store.calls("extend").len() >= 50, "{:?}", fixture.store.calls("extend"));
}

#[tokio::test(start_paused = true)]
async fn a_job_of_an_unknown_kind_is_not_reclaimed() {
    let fixture = Fixture::new().await;
    fixture.enqueue([NewJob { kind: kind("foreign"), ..fixture.new_job(1) }]).await;
    let request = redrive_core::store::ClaimRequest {
        worker: "other-worker".parse().unwrap(),
        queues: Vec::new(),
        kinds: Vec::new(),
        limit: 1,
        lease: S,
    };
    redrive_core::Store::claim(&*fixture.store, request).await.unwrap();
    let worker = fixture.start(async |_: Context| Outcome::Done(None));
    tokio::time::sleep(60 * S).await;
    worker.stop().await;
    assert_eq!(fixture.job(1).epoch, 1);
}

/// Records every event.
#[derive(Default)]
struct RecordingObserver(Mutex<Vec<String>>);

impl Observer for RecordingObserver {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        self.0.lock().unwrap().push(format!("claimed {}", jobs.len()));
    }

    fn settled(&self, job: &Job, settlement: &Settlement, result: SettleResult) {
        assert_eq!(settlement.verdict, Verdict::Complete(None));
        self.0.lock().unwrap().push(format!("settled {} {result:?}", job.id == id(1)));
    }

    fn store_call(&self, verb: &'static str, items: usize, _took: Duration, ok: bool) {
        if items > 0 {
            self.0.lock().unwrap().push(format!("{verb} {items} {ok}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_receives_claims_settlements_and_store_calls() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let observer = Arc::new(RecordingObserver::default());
    let worker = redrive_worker::Worker::new(fixture.store.clone(), Fixture::settings())
        .unwrap()
        .on(kind("test"), async |_: Context| Outcome::Done(None))
        .observe(observer.clone());
    worker.run_until(tokio::time::sleep(100 * MS)).await.unwrap();
    let events = observer.0.lock().unwrap().clone();
    assert_eq!(events, ["claim 1 true", "claimed 1", "settle 1 true", "settled true Applied(Succeeded)"]);
}
