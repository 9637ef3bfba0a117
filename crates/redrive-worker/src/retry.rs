//! Retries an operation within this process, until it succeeds or its policy allows no further attempt.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use redrive_core::{Failure, FailureKind, Outcome, Policy, Run, Timestamp, Verdict, decide};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Calls `op` until it succeeds. Returns the last error when `policy` allows no further attempt.
///
/// Nothing is stored: work that must survive a restart of the process should be a job. The policy's attempt timeout does not
/// apply, because `retry` cannot construct an error of type `E`. Put a timeout into `op` instead.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use redrive_core::policy::presets;
/// use redrive_worker::retry;
///
/// let mut calls = 0;
/// let result = retry(&presets::storage(), || {
///     calls += 1;
///     let answer = if calls < 3 { Err("busy") } else { Ok(calls) };
///     async move { answer }
/// })
/// .when(|error: &&str| *error == "busy")
/// .await;
/// assert_eq!(result, Ok(3));
/// # }
/// ```
pub fn retry<Op, Fut, T, E>(policy: &Policy, op: Op) -> Retry<'_, Op, Fut, E>
where
    Op: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    Retry {
        policy,
        op,
        when: |_| true,
        notify: |_, _| {},
        retry_after: |_| None,
        cancel: None,
        progress: Progress::default(),
        state: State::Idle,
    }
}

pin_project! {
    /// The future that [`retry`] returns: configure it, then await it.
    #[must_use = "a retry does nothing unless awaited"]
    pub struct Retry<
        'p,
        Op,
        Fut,
        E,
        When = fn(&E) -> bool,
        Notify = fn(&E, Duration),
        After = fn(&E) -> Option<Duration>,
    > {
        policy: &'p Policy,
        op: Op,
        when: When,
        notify: Notify,
        retry_after: After,
        cancel: Option<CancellationToken>,
        progress: Progress,
        #[pin]
        state: State<Fut, E>,
    }
}

impl<'p, Op, Fut, E, When, Notify, After> Retry<'p, Op, Fut, E, When, Notify, After> {
    /// Retries only the errors for which `when` returns true. Any other error is returned at once.
    pub fn when<W: FnMut(&E) -> bool>(self, when: W) -> Retry<'p, Op, Fut, E, W, Notify, After> {
        Retry {
            policy: self.policy,
            op: self.op,
            when,
            notify: self.notify,
            retry_after: self.retry_after,
            cancel: self.cancel,
            progress: self.progress,
            state: self.state,
        }
    }

    /// Calls `notify` with each error that is retried, and with the wait before the next call.
    pub fn notify<N: FnMut(&E, Duration)>(self, notify: N) -> Retry<'p, Op, Fut, E, When, N, After> {
        Retry {
            policy: self.policy,
            op: self.op,
            when: self.when,
            notify,
            retry_after: self.retry_after,
            cancel: self.cancel,
            progress: self.progress,
            state: self.state,
        }
    }

    /// Waits at least as long as the error asks for. If that exceeds the policy's time budget, returns the error.
    pub fn retry_after<A: FnMut(&E) -> Option<Duration>>(
        self,
        retry_after: A,
    ) -> Retry<'p, Op, Fut, E, When, Notify, A> {
        Retry {
            policy: self.policy,
            op: self.op,
            when: self.when,
            notify: self.notify,
            retry_after,
            cancel: self.cancel,
            progress: self.progress,
            state: self.state,
        }
    }

    /// When `token` is cancelled, ends a wait at once and returns the last error. A running call is not interrupted, and no other
    /// call follows it.
    pub fn cancel_on(mut self, token: CancellationToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Draws jitter from `seed`, so that the waits are reproducible.
    pub fn seed(mut self, seed: u64) -> Self {
        self.progress.seed = Some(seed);
        self
    }
}

impl<Op, Fut, T, E, When, Notify, After> Future for Retry<'_, Op, Fut, E, When, Notify, After>
where
    Op: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    When: FnMut(&E) -> bool,
    Notify: FnMut(&E, Duration),
    After: FnMut(&E) -> Option<Duration>,
{
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Idle => {
                    this.progress.start(this.policy);
                    let call = (this.op)();
                    this.state.set(State::Calling { call });
                }
                StateProjection::Calling { call } => match ready!(call.poll(cx)) {
                    Ok(value) => {
                        this.state.set(State::Ended);
                        return Poll::Ready(Ok(value));
                    }
                    Err(error) => {
                        let outcome = outcome(&error, this.cancel.as_ref(), this.when, this.retry_after);
                        let Some(wait) = this.progress.plan(this.policy, &outcome) else {
                            this.state.set(State::Ended);
                            return Poll::Ready(Err(error));
                        };
                        (this.notify)(&error, wait);
                        this.state.set(State::wait(wait, this.cancel.as_ref(), error));
                    }
                },
                StateProjection::Waiting { sleep, cancelled, error } => {
                    if is_cancelled(cancelled, cx)
                        && let Some(error) = error.take()
                    {
                        this.state.set(State::Ended);
                        return Poll::Ready(Err(error));
                    }
                    ready!(sleep.poll(cx));
                    this.state.set(State::Idle);
                }
                StateProjection::Ended => panic!("a retry was polled after it had completed"),
            }
        }
    }
}

/// Returns the outcome of a failed call, as the input of the decision.
fn outcome<E>(
    error: &E,
    cancel: Option<&CancellationToken>,
    when: &mut impl FnMut(&E) -> bool,
    retry_after: &mut impl FnMut(&E) -> Option<Duration>,
) -> Outcome {
    if cancel.is_some_and(CancellationToken::is_cancelled) {
        return Outcome::Cancelled;
    }
    let failure =
        Failure { kind: FailureKind::Error, message: String::new(), retry_after: retry_after(error) };
    if when(error) { Outcome::Fail(failure) } else { Outcome::Reject(failure) }
}

pin_project! {
    #[project = StateProjection]
    enum State<Fut, E> {
        Idle,
        Calling { #[pin] call: Fut },
        Waiting {
            #[pin]
            sleep: Sleep,
            #[pin]
            cancelled: Option<WaitForCancellationFutureOwned>,
            error: Option<E>,
        },
        Ended,
    }
}

impl<Fut, E> State<Fut, E> {
    fn wait(wait: Duration, cancel: Option<&CancellationToken>, error: E) -> Self {
        // A timer of zero length would still wait for the next tick.
        if wait.is_zero() {
            return Self::Idle;
        }
        Self::Waiting {
            sleep: tokio::time::sleep(wait),
            cancelled: cancel.map(|token| token.clone().cancelled_owned()),
            error: Some(error),
        }
    }
}

fn is_cancelled(cancelled: Pin<&mut Option<WaitForCancellationFutureOwned>>, cx: &mut Context<'_>) -> bool {
    cancelled.as_pin_mut().is_some_and(|cancelled| cancelled.poll(cx).is_ready())
}

/// The state of the calls. Separate from the future, so that it is compiled once and not for each type of operation.
#[derive(Default)]
struct Progress {
    attempt: u32,
    began: Option<Instant>,
    wait: Option<Duration>,
    seed: Option<u64>,
    rng: Option<fastrand::Rng>,
}

impl Progress {
    /// Starts a call. Reads the clock only if the policy has a time budget: a call that succeeds at once should cost nothing.
    fn start(&mut self, policy: &Policy) {
        self.attempt += 1;
        if self.attempt == 1 && policy.total_budget.is_some() {
            self.began = Some(Instant::now());
        }
    }

    /// Returns the wait before the next call, or none if no further call is allowed.
    fn plan(&mut self, policy: &Policy, outcome: &Outcome) -> Option<Duration> {
        let elapsed = self.began.map(|began| began.elapsed()).unwrap_or_default();
        let run = Run {
            policy,
            attempt: self.attempt,
            began_at: Timestamp::default(),
            previous_wait: self.wait,
            estimated_call: Duration::ZERO,
        };
        let seed = self.seed;
        let rng =
            self.rng.get_or_insert_with(|| seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed));
        let now = Timestamp::default().after(elapsed);
        match decide(&run, outcome, now, &mut || rng.f64()) {
            Verdict::Retry(wait) => {
                self.wait = Some(wait);
                Some(wait)
            }
            Verdict::Complete(_)
            | Verdict::Snooze(_)
            | Verdict::Hold(_)
            | Verdict::Wait(_)
            | Verdict::Release
            | Verdict::DeadLetter(_)
            | Verdict::Cancel => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::ready;

    use redrive_core::policy::presets;
    use redrive_core::{Backoff, Jitter};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Retries an operation that always fails, and returns the planned and the actual waits.
    async fn waits(policy: &Policy, seed: u64) -> (Vec<Duration>, Vec<Duration>) {
        let (planned, calls) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let failing = || {
            calls.borrow_mut().push(Instant::now());
            ready(Err::<(), _>("busy"))
        };
        let notify = |_: &&str, wait| planned.borrow_mut().push(wait);
        assert_eq!(retry(policy, failing).notify(notify).seed(seed).await, Err("busy"));
        let actual = calls.into_inner().windows(2).map(|pair| pair[1] - pair[0]).collect();
        (planned.into_inner(), actual)
    }

    fn assert_close(actual: &[Duration], planned: &[Duration]) {
        assert_eq!(actual.len(), planned.len());
        for (actual, planned) in actual.iter().zip(planned) {
            assert!(actual >= planned && *actual <= *planned + 2 * MS, "{actual:?} for {planned:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_waits_are_as_documented_up_to_the_cap() {
        let policy = presets::storage().with_max_attempts(9).unwrap().with_jitter(Jitter::None);
        let (planned, actual) = waits(&policy, 1).await;
        let documented = [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000].map(Duration::from_millis);
        assert_eq!(planned, documented);
        assert_close(&actual, &planned);
    }

    #[tokio::test(start_paused = true)]
    async fn every_wait_is_within_the_bounds_of_its_jitter() {
        for policy in [presets::storage(), presets::dequeue()] {
            for seed in 0..200 {
                let (planned, actual) = waits(&policy, seed).await;
                assert_close(&actual, &planned);
                for (wait, bounds) in planned.iter().zip(policy.preview().retries) {
                    assert!((bounds.earliest..=bounds.latest).contains(wait), "{wait:?} {bounds:?}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_gives_the_same_waits_and_another_seed_gives_others() {
        let policy = presets::storage();
        assert_eq!(waits(&policy, 7).await, waits(&policy, 7).await);
        assert_ne!(waits(&policy, 7).await.0, waits(&policy, 8).await.0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_is_not_eligible_ends_the_retry_at_once() {
        let calls = Cell::new(0);
        let failing = || {
            calls.set(calls.get() + 1);
            ready(Err::<(), _>("never"))
        };
        let began = Instant::now();
        let result = retry(&presets::storage(), failing).when(|error| *error == "busy").await;
        assert_eq!((result, calls.get(), began.elapsed()), (Err("never"), 1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_may_ask_for_a_longer_wait_but_not_beyond_the_budget() {
        let policy = presets::storage().with_total_budget(10_000 * MS);
        let failing = |retry_after_ms: u64| {
            let mut calls = 0;
            move || {
                calls += 1;
                ready(if calls < 2 { Err(retry_after_ms) } else { Ok("done") })
            }
        };
        let ask = |error: &u64| Some(Duration::from_millis(*error));
        let began = Instant::now();
        assert_eq!(retry(&policy, failing(3_000)).retry_after(ask).await, Ok("done"));
        assert_eq!(began.elapsed(), 3_000 * MS);
        assert_eq!(retry(&policy, failing(11_000)).retry_after(ask).await, Err(11_000));
        assert_eq!(began.elapsed(), 3_000 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn the_budget_counts_calls_and_waits() {
        let policy = presets::quadratic().with_total_budget(6_000 * MS);
        let calls = Cell::new(0);
        let slow = || {
            calls.set(calls.get() + 1);
            async {
                tokio::time::sleep(500 * MS).await;
                Err::<(), _>("busy")
            }
        };
        assert_eq!(retry(&policy, slow).await, Err("busy"));
        // 0.5 + 1 + 0.5 + 4 fits exactly; then 6.5 s have passed.
        assert_eq!(calls.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn cancellation_ends_a_wait_in_the_same_tick() {
        let token = CancellationToken::new();
        let began = Instant::now();
        let policy = presets::once()
            .with_max_attempts(5)
            .unwrap()
            .with_backoff(Backoff::fixed(Duration::from_secs(60)).unwrap());
        let calls = Cell::new(0);
        let failing = || {
            calls.set(calls.get() + 1);
            ready(Err::<(), _>("busy"))
        };
        let retrying = retry(&policy, failing).cancel_on(token.clone());
        let cancelling = async {
            tokio::time::sleep(40 * MS).await;
            token.cancel();
        };
        let (result, ()) = tokio::join!(retrying, cancelling);
        assert_eq!((result, calls.get(), began.elapsed()), (Err("busy"), 1, 40 * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn cancellation_does_not_interrupt_a_running_call_and_no_other_call_follows() {
        let token = CancellationToken::new();
        let calls = Cell::new(0);
        let cancelled_meanwhile = || {
            calls.set(calls.get() + 1);
            async {
                token.cancel();
                tokio::time::sleep(MS).await;
                Err::<(), _>("busy")
            }
        };
        // This policy has no waits that cancellation could end.
        let at_once = presets::once().with_max_attempts(5).unwrap();
        let result = retry(&at_once, cancelled_meanwhile).cancel_on(token.clone()).await;
        assert_eq!((result, calls.get()), (Err("busy"), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn waits_of_zero_length_take_no_time() {
        let policy = presets::once().with_max_attempts(5).unwrap();
        let began = Instant::now();
        let (planned, _) = waits(&policy, 1).await;
        assert_eq!((planned.len(), began.elapsed()), (4, Duration::ZERO));
    }

    #[test]
    fn a_call_that_succeeds_at_once_needs_no_runtime() {
        let policy = presets::standard();
        let mut future = std::pin::pin!(retry(&policy, || ready(Ok::<_, ()>(7))));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(future.as_mut().poll(&mut cx), Poll::Ready(Ok(7)));
    }
}
