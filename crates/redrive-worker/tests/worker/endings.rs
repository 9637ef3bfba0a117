//! What an attempt leaves behind: evidence, follow-ups, and word to who observes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::policy::presets;
use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, NewJob, Outcome, Reason, State, Timestamp, Verdict};
use redrive_worker::{Context, Ending, Handler, KeepLog, Note, Observer};

use tokio::time::Instant;

use crate::stage::{MS, S, Stage, id, kind};

/// Returns one outcome, and asks for one follow-up for each end.
struct Follower {
    outcome: Outcome,
    next: NewJob,
    seen: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Handler for Follower {
    async fn run(&self, cx: Context) -> Outcome {
        cx.note(Note { detail: Some(r#"{"a":1}"#.to_owned()), status: Some(418) });
        self.outcome.clone()
    }

    fn follow_ups(&self, job: &Job, ending: &Ending<'_>) -> Vec<NewJob> {
        let status = ending.note.and_then(|note| note.status);
        let said = format!("{} {:?} {status:?}", ending.outcome.name(), ending.verdict.reason());
        self.seen.lock().unwrap().push(said);
        assert!(job.attempt > 0);
        vec![self.next.clone()]
    }
}

/// A stage with a job and a follower that asks for a job of another kind.
async fn follow(outcome: Outcome) -> (Stage, Follower) {
    let stage = Stage::with_policy(&presets::quadratic().with_max_attempts(2).unwrap()).await;
    stage.enqueue_many(1).await;
    let next = NewJob { kind: kind("next"), ..stage.new_job(2) };
    (stage, Follower { outcome, next, seen: Arc::default() })
}

#[tokio::test(start_paused = true)]
async fn an_end_brings_its_follow_ups_and_a_retry_none() {
    for (outcome, end, said) in [
        (Outcome::Done(None), State::Succeeded, "done None Some(418)"),
        (Outcome::fail("boom"), State::Dead, "failed Some(AttemptsExhausted) Some(418)"),
        (Outcome::reject("never"), State::Dead, "rejected Some(NotRetryable) Some(418)"),
    ] {
        let (stage, follower) = follow(outcome).await;
        let seen = follower.seen.clone();
        let worker = stage.start(follower);
        stage.until(1, end).await;
        worker.stop().await;
        assert_eq!(*seen.lock().unwrap(), [said]);
        assert_eq!((stage.state(2), stage.job(1).last_status), (State::Pending, Some(418)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_ends_brings_its_follow_ups_too() {
    let (stage, follower) = follow(Outcome::Done(None)).await;
    let seen = follower.seen.clone();
    for attempt in 1..=2 {
        let crashed = stage.start(async |_: Context| std::future::pending::<Outcome>().await);
        stage.when(|stage| stage.job(1).attempt == attempt && stage.state(1) == State::Running).await;
        crashed.crash().await;
        tokio::time::sleep(31 * S).await;
    }
    let worker = stage.start(follower);
    stage.until(1, State::Dead).await;
    worker.stop().await;
    assert_eq!(*seen.lock().unwrap(), ["lease_expired Some(AttemptsExhausted) None"]);
    assert_eq!(stage.state(2), State::Pending);
}

#[tokio::test(start_paused = true)]
async fn an_illegal_follow_up_does_not_keep_a_job_from_ending() {
    let (stage, mut follower) = follow(Outcome::Done(None)).await;
    follower.next.payload = vec![0; redrive_core::limits::PAYLOAD_BYTES_MAX + 1];
    let worker = stage.start(follower);
    stage.until(1, State::Succeeded).await;
    worker.stop().await;
    assert_eq!(stage.store.model.inspect(|model| model.jobs().count()), 1);
}

#[tokio::test(start_paused = true)]
async fn evidence_survives_a_timeout() {
    let stage = Stage::with_policy(&presets::quadratic().with_attempt_timeout(5 * S)).await;
    stage.enqueue_many(1).await;
    let worker = stage.start(async |cx: Context| {
        cx.note(Note { detail: Some(r#"{"phase":"sent"}"#.to_owned()), status: None });
        std::future::pending::<Outcome>().await
    });
    stage.until(1, State::Retrying).await;
    worker.stop().await;
    assert_eq!(stage.log(1)[0].entry.detail.as_deref(), Some(r#"{"phase":"sent"}"#));
    assert_eq!(stage.log(1)[0].entry.outcome, "timeout");
}

/// A destructor within a handler sees the difference, so that it can say of a timeout what it says of a failure.
#[tokio::test(start_paused = true)]
async fn a_dropped_attempt_can_tell_a_timeout_from_an_abort() {
    struct Witness(Context, Arc<Mutex<Option<bool>>>);
    impl Drop for Witness {
        fn drop(&mut self) {
            self.1.lock().unwrap().get_or_insert(self.0.is_cancelled());
        }
    }
    for (timeout, aborted) in [(Some(5 * S), false), (None, true)] {
        let stage = Stage::new().await;
        stage.enqueue([NewJob { timeout, ..stage.new_job(1) }]).await;
        let seen = Arc::new(Mutex::new(None));
        let witnessed = seen.clone();
        let settings = Stage::settings().with_drain(Duration::ZERO);
        let worker = stage.start_with(settings, move |cx: Context| {
            assert_eq!(cx.timeout, timeout);
            let witness = Witness(cx, witnessed.clone());
            async move {
                let _witness = witness;
                std::future::pending::<Outcome>().await
            }
        });
        tokio::time::sleep(10 * S).await;
        worker.stop().await;
        assert_eq!(*seen.lock().unwrap(), Some(aborted));
    }
}

#[tokio::test(start_paused = true)]
async fn a_park_is_no_attempt_and_the_budget_goes_on() {
    let policy = presets::quadratic().with_total_budget(10 * S);
    let stage = Stage::with_policy(&policy).await;
    stage.enqueue_many(1).await;
    let worker =
        stage.start_with(Stage::settings().with_log(KeepLog::All), async |_: Context| Outcome::Park(4 * S));
    stage.until(1, State::Dead).await;
    worker.stop().await;
    assert_eq!(stage.job(1).reason, Some(Reason::BudgetExceeded));
    assert_eq!(stage.outcomes(1), ["rejected"], "only the refused attempt is in the log");
}

/// Is held back for an hour each time, and asks for one follow-up when the job ends.
struct HeldBack {
    next: NewJob,
}

#[async_trait]
impl Handler for HeldBack {
    async fn run(&self, _: Context) -> Outcome {
        Outcome::Park(3_600 * S)
    }

    fn follow_ups(&self, _: &Job, ending: &Ending<'_>) -> Vec<NewJob> {
        assert_eq!(ending.verdict.reason(), Some(Reason::BudgetExceeded));
        vec![self.next.clone()]
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_held_back_ends_when_its_budget_ends_and_its_follow_ups_come() {
    let stage = Stage::with_policy(&presets::quadratic().with_total_budget(5 * S)).await;
    stage.enqueue_many(1).await;
    let next = NewJob { kind: kind("next"), ..stage.new_job(2) };
    let worker = stage.start(HeldBack { next });
    let began = Instant::now();
    stage.until(1, State::Dead).await;
    assert!(began.elapsed() > 5 * S && began.elapsed() <= 6 * S, "{:?}", began.elapsed());
    worker.stop().await;
    assert_eq!((stage.job(1).reason, stage.state(2)), (Some(Reason::BudgetExceeded), State::Pending));
}

#[tokio::test(start_paused = true)]
async fn a_job_with_a_short_lease_of_its_own_is_kept_while_it_runs() {
    let stage = Stage::new().await;
    stage.enqueue([NewJob { lease: Some(3 * S), ..stage.new_job(1) }]).await;
    let worker = stage.start(async |_: Context| {
        tokio::time::sleep(60 * S).await;
        Outcome::Done(None)
    });
    stage.until(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.reclaimed, summary.lease_lost), (1, 0, 0));
    assert!(stage.store.calls("extend").len() >= 50, "{:?}", stage.store.calls("extend"));
}

#[tokio::test(start_paused = true)]
async fn an_orphan_of_another_kind_is_left_to_those_who_know_it() {
    let stage = Stage::new().await;
    stage.enqueue([NewJob { kind: kind("foreign"), ..stage.new_job(1) }]).await;
    let foreign = redrive_core::store::ClaimRequest {
        worker: "foreigner".parse().unwrap(),
        queues: Vec::new(),
        kinds: Vec::new(),
        limit: 1,
        lease: S,
    };
    redrive_core::Store::claim(&*stage.store, foreign).await.unwrap();
    let worker = stage.start(async |_: Context| Outcome::Done(None));
    tokio::time::sleep(60 * S).await;
    worker.stop().await;
    assert_eq!(stage.job(1).epoch, 1);
}

/// Writes down what it hears.
#[derive(Default)]
struct Listener(Mutex<Vec<String>>);

impl Observer for Listener {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        self.0.lock().unwrap().push(format!("claimed {}", jobs.len()));
    }

    fn settled(&self, job: &Job, settlement: &Settlement, answer: Settled) {
        assert_eq!(settlement.verdict, Verdict::Complete(None));
        self.0.lock().unwrap().push(format!("settled {} {answer:?}", job.id == id(1)));
    }

    fn store_call(&self, verb: &'static str, items: usize, _took: Duration, ok: bool) {
        if items > 0 {
            self.0.lock().unwrap().push(format!("{verb} {items} {ok}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_hears_of_claims_settlements_and_calls() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let listener = Arc::new(Listener::default());
    let worker = redrive_worker::Worker::new(stage.store.clone(), Stage::settings())
        .unwrap()
        .on(kind("test"), async |_: Context| Outcome::Done(None))
        .observe(listener.clone());
    worker.run_until(tokio::time::sleep(100 * MS)).await.unwrap();
    let heard = listener.0.lock().unwrap().clone();
    assert_eq!(heard, ["claim 1 true", "claimed 1", "settle 1 true", "settled true Applied(Succeeded)"]);
}
