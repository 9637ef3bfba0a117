//! A panic in a handler's code, wherever it happens, is a failed attempt. The worker continues.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::policy::presets;
use redrive_core::store::{SettleResult, Settlement, StoreError};
use redrive_core::{Job, NewJob, Outcome, Reason, State, Store};
use redrive_worker::{Context, Handler, Settler};

use crate::fixture::{Fixture, S, id};

/// Panics when it is dropped.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// The first attempt never returns, and panics when it is dropped. The second attempt succeeds.
async fn panic_when_dropped(cx: Context) -> Outcome {
    if cx.job.attempt == 1 {
        let _guard = PanicOnDrop;
        std::future::pending::<()>().await;
    }
    Outcome::Done(None)
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_destructor_after_a_timeout_is_a_failed_attempt() {
    let fixture = Fixture::new().await;
    fixture.enqueue([NewJob { timeout: Some(S), ..fixture.new_job(1) }]).await;
    let worker = fixture.start(panic_when_dropped);
    fixture.wait_for_state(1, State::Succeeded).await;
    worker.stop().await;
    assert_eq!(fixture.outcomes(1), ["panic"]);
    assert_eq!(fixture.log(1)[0].entry.error.as_deref(), Some("handler panicked: dropped"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_destructor_after_a_cancel_does_not_prevent_the_cancel() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let worker = fixture.start(panic_when_dropped);
    fixture.wait_for_state(1, State::Running).await;
    fixture.store.cancel(vec![id(1)]).await.unwrap();
    fixture.wait_for_state(1, State::Cancelled).await;
    worker.stop().await;
    assert_eq!(fixture.outcomes(1), ["panic"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_destructor_at_a_shutdown_is_a_failed_attempt_and_the_shutdown_continues() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let worker = fixture.start_with(Fixture::settings().with_drain(Duration::ZERO), panic_when_dropped);
    fixture.wait_for_state(1, State::Running).await;
    worker.stop().await;
    assert_eq!((fixture.state(1), fixture.outcomes(1)), (State::Retrying, vec!["panic".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_panic_whose_payload_panics_when_dropped_is_a_failed_attempt() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let worker = fixture.start(async |cx: Context| {
        if cx.job.attempt == 1 {
            std::panic::panic_any(PanicOnDrop);
        }
        Outcome::Done(None)
    });
    fixture.wait_for_state(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((fixture.outcomes(1), summary.reclaimed), (vec!["panic".to_owned()], 0));
}

/// A handler whose `estimate_key` panics.
struct PanickingEstimateKey;

#[async_trait]
impl Handler for PanickingEstimateKey {
    async fn run(&self, _: Context) -> Outcome {
        Outcome::Done(None)
    }

    fn estimate_key<'a>(&self, _: &'a Job) -> Cow<'a, str> {
        panic!("no key")
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_estimate_key_affects_neither_attempts_nor_reclaimed_jobs() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let crashed = fixture.start(async |_: Context| std::future::pending::<Outcome>().await);
    fixture.wait_for_state(1, State::Running).await;
    crashed.crash().await;
    let worker = fixture.start(PanickingEstimateKey);
    fixture.wait_for_state(1, State::Succeeded).await;
    let summary = worker.stop().await;
    assert_eq!((summary.reclaimed, fixture.outcomes(1)), (1, vec!["lease_expired".to_owned()]));
}

/// A handler that succeeds. Its settler panics in the first `panics` calls, and afterwards reports lost leases.
struct PanickingSettler {
    panics: usize,
    calls: Arc<AtomicUsize>,
}

#[async_trait]
impl Settler for PanickingSettler {
    async fn settle(
        &self,
        _: &[Arc<Job>],
        settlements: &[Settlement],
    ) -> Result<Vec<SettleResult>, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        assert!(call >= self.panics, "no room");
        Ok(settlements.iter().map(|_| SettleResult::LeaseLost).collect())
    }
}

#[async_trait]
impl Handler for PanickingSettler {
    async fn run(&self, _: Context) -> Outcome {
        Outcome::Done(None)
    }

    fn settler(&self) -> Option<&dyn Settler> {
        Some(self)
    }
}

#[tokio::test(start_paused = true)]
async fn a_settler_that_always_panics_leads_to_dead_jobs_with_its_error() {
    let fixture = Fixture::with_policy(&presets::quadratic().with_max_attempts(1).unwrap()).await;
    fixture.enqueue_many(3).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = fixture.start(PanickingSettler { panics: usize::MAX, calls: calls.clone() });
    fixture.wait_until(|fixture| fixture.count_in_state(State::Dead) == 3).await;
    let summary = worker.stop().await;
    assert_eq!((summary.dropped, summary.reclaimed), (0, 0));
    for n in 1..=3 {
        let error = "the end of the job could not be written: the handler's settler panicked: no room; \
            the job ended without this write";
        assert_eq!(fixture.job(n).last_error.as_deref(), Some(error));
        assert_eq!(fixture.job(n).reason, Some(Reason::AttemptsExhausted));
        assert_eq!(fixture.outcomes(n), ["panic"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_never_succeeds_without_its_settler() {
    let fixture = Fixture::new().await;
    fixture.enqueue_many(1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = fixture.start(PanickingSettler { panics: 1, calls: calls.clone() });
    fixture.wait_until(|_| calls.load(Ordering::SeqCst) == 2).await;
    worker.stop().await;
    // The second call was for the failed attempt and would have settled it.
    assert_eq!((fixture.state(1), fixture.outcomes(1).len()), (State::Running, 0));
}
