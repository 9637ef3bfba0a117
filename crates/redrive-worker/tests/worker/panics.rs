//! A panic of a handler's own code is a failed attempt, wherever it happens; the worker continues.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::policy::presets;
use redrive_core::store::{Settled, Settlement, StoreError};
use redrive_core::{Job, NewJob, Outcome, Reason, State, Store};
use redrive_worker::{Context, Handler, Settler};

use crate::stage::{S, Stage, id};

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// Holds a bomb for ever in its first attempt, and succeeds in the second.
async fn hold_a_bomb(cx: Context) -> Outcome {
    if cx.job.attempt == 1 {
        let _bomb = Bomb;
        std::future::pending::<()>().await;
    }
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_panics_when_a_timeout_drops_it_has_failed() {
    let stage = Stage::new().await;
    stage.enqueue([NewJob { timeout: Some(S), ..stage.new_job(1) }]).await;
    let worker = stage.start(hold_a_bomb);
    stage.until(1, State::Succeeded).await;
    worker.stop().await;
    assert_eq!(stage.outcomes(1), ["panic"]);
    assert_eq!(stage.log(1)[0].entry.error.as_deref(), Some("handler panicked: dropped"));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_panics_when_a_cancel_drops_it_is_cancelled_all_the_same() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let worker = stage.start(hold_a_bomb);
    stage.until(1, State::Running).await;
    stage.store.cancel(vec![id(1)]).await.unwrap();
    stage.until(1, State::Cancelled).await;
    worker.stop().await;
    assert_eq!(stage.outcomes(1), ["panic"]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_panics_when_a_shutdown_drops_it_has_failed_and_the_worker_ends_in_good_order() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let worker = stage.start_with(Stage::settings().with_drain(Duration::ZERO), hold_a_bomb);
    stage.until(1, State::Running).await;
    worker.stop().await;
    assert_eq!((stage.state(1), stage.outcomes(1)), (State::Retrying, vec!["panic".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_panics_when_dropped_is_a_panic_like_any_other() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let worker = stage.start(async |cx: Context| {
        if cx.job.attempt == 1 {
            std::panic::panic_any(Bomb);
        }
        Outcome::Done(None)
    });
    stage.until(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((stage.outcomes(1), summary.reclaimed), (vec!["panic".to_owned()], 0));
}

/// Panics whenever it is asked for the key of an estimate.
struct Keyless;

#[async_trait]
impl Handler for Keyless {
    async fn run(&self, _: Context) -> Outcome {
        Outcome::Done(None)
    }

    fn estimate_key<'a>(&self, _: &'a Job) -> Cow<'a, str> {
        panic!("no key")
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_estimate_key_changes_nothing_for_attempts_and_orphans() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let crashed = stage.start(async |_: Context| std::future::pending::<Outcome>().await);
    stage.until(1, State::Running).await;
    crashed.crash().await;
    let worker = stage.start(Keyless);
    stage.until(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.reclaimed, stage.outcomes(1)), (1, vec!["lease_expired".to_owned()]));
}

/// Succeeds, with a settler that panics as often as it is told to and then settles nothing.
struct Unsettled {
    panics: usize,
    calls: Arc<AtomicUsize>,
}

#[async_trait]
impl Settler for Unsettled {
    async fn settle(&self, _: &[Arc<Job>], settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        assert!(call >= self.panics, "no room");
        Ok(settlements.iter().map(|_| Settled::LeaseLost).collect())
    }
}

#[async_trait]
impl Handler for Unsettled {
    async fn run(&self, _: Context) -> Outcome {
        Outcome::Done(None)
    }

    fn settler(&self) -> Option<&dyn Settler> {
        Some(self)
    }
}

#[tokio::test(start_paused = true)]
async fn a_settler_that_always_panics_leaves_a_dead_job_that_says_so() {
    let stage = Stage::with_policy(&presets::quadratic().with_max_attempts(1).unwrap()).await;
    stage.enqueue_many(3).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = stage.start(Unsettled { panics: usize::MAX, calls: calls.clone() });
    stage.when(|stage| stage.in_state(State::Dead) == 3).await;
    let summary = worker.stop().await;
    assert_eq!((summary.dropped, summary.reclaimed), (0, 0));
    for n in 1..=3 {
        let error = "the end of the job could not be written: the handler's settler panicked: no room; \
            the job ended without it";
        assert_eq!(stage.job(n).last_error.as_deref(), Some(error));
        assert_eq!(stage.job(n).reason, Some(Reason::AttemptsExhausted));
        assert_eq!(stage.outcomes(n), ["panic"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_never_succeeds_without_its_settler() {
    let stage = Stage::new().await;
    stage.enqueue_many(1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = stage.start(Unsettled { panics: 1, calls: calls.clone() });
    stage.when(|_| calls.load(Ordering::SeqCst) == 2).await;
    worker.stop().await;
    // The second call was about the failed attempt, and would have settled it.
    assert_eq!((stage.state(1), stage.outcomes(1).len()), (State::Running, 0));
}
