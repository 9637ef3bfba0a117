//! The decision after each attempt (retry, dead letter, and so on), and its effect on the stored job.

use std::fmt;
use std::time::Duration;

use crate::lifecycle::{Event, State};
use crate::limits::HORIZON;
use crate::policy::Policy;
use crate::random::RandomSource;
use crate::reason::Reason;
use crate::steps::WaitCondition;
use crate::time::Timestamp;

/// How long after the end of its time budget a held job becomes due. An attempt may still start exactly at the end of the budget, so
/// a job that became due at that instant could be held again for no time at all.
const PAST_THE_BUDGET: Duration = Duration::from_millis(1);

/// Decides what follows an attempt. Retry or dead-letter is chosen nowhere else.
pub fn decide(run: &Run<'_>, outcome: &Outcome, now: Timestamp, random: &mut dyn RandomSource) -> Verdict {
    match outcome {
        Outcome::Done(output) => Verdict::Complete(output.clone()),
        Outcome::Snooze(wait) => Verdict::Snooze((*wait).min(HORIZON)),
        Outcome::Hold(wait) => run.hold(*wait, now),
        Outcome::Defer(deferral) => Verdict::Snooze(deferral.wait.min(HORIZON)),
        Outcome::Wait(wait) => Verdict::Wait(wait.within_horizon()),
        Outcome::Released => Verdict::Release,
        Outcome::Cancelled => Verdict::Cancel,
        Outcome::Reject(failure) => Verdict::DeadLetter(failure.kind.final_reason()),
        Outcome::Fail(failure) if !run.policy.eligibility.covers(failure.kind) => {
            Verdict::DeadLetter(failure.kind.final_reason())
        }
        Outcome::Fail(_) | Outcome::LeaseExpired if run.is_last_attempt() => {
            Verdict::DeadLetter(Reason::AttemptsExhausted)
        }
        Outcome::Fail(failure) => run.plan_retry(failure.retry_after, now, random),
        Outcome::LeaseExpired => run.plan_retry(None, now, random),
    }
}

/// Checks the time budget when a job is claimed, before the attempt starts. A verdict means that the attempt must not start.
///
/// The first attempt ignores the estimate: otherwise an estimate that is too high could never be corrected.
pub fn admit(run: &Run<'_>, now: Timestamp) -> Option<Verdict> {
    let estimate = if run.attempt > 1 { run.estimated_call } else { Duration::ZERO };
    let affordable = run.policy.affords(now.since(run.began_at), Duration::ZERO, estimate);
    (!affordable).then_some(Verdict::DeadLetter(Reason::BudgetExceeded))
}

/// The input of the decision: the policy, and the progress of the run.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The policy the job was created with.
    pub policy: &'a Policy,
    /// The number of the attempt that has just ended, from 1.
    pub attempt: u32,
    /// When the run was first due. The time budget starts here.
    pub began_at: Timestamp,
    /// The actual wait before this attempt, for decorrelated jitter.
    pub previous_wait: Option<Duration>,
    /// The estimated duration of an attempt. Zero if unknown.
    pub estimated_call: Duration,
}

impl Run<'_> {
    fn is_last_attempt(&self) -> bool {
        self.attempt >= self.policy.max_attempts.get()
    }

    /// Holds the job back, but not beyond the end of its time budget: there it becomes due, and [`admit`] ends it.
    fn hold(&self, wait: Duration, now: Timestamp) -> Verdict {
        let wait = wait.min(HORIZON);
        let Some(budget) = self.policy.total_budget else { return Verdict::Hold(wait) };
        let left = budget.saturating_sub(now.since(self.began_at));
        Verdict::Hold(wait.min(left.saturating_add(PAST_THE_BUDGET)))
    }

    fn plan_retry(&self, asked: Option<Duration>, now: Timestamp, random: &mut dyn RandomSource) -> Verdict {
        let wait = self.policy.wait(self.attempt, self.previous_wait, asked, random);
        if self.policy.affords(now.since(self.began_at), wait, self.estimated_call) {
            Verdict::Retry(wait)
        } else {
            Verdict::DeadLetter(Reason::BudgetExceeded)
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The attempt succeeded, with an optional output.
    Done(Option<Vec<u8>>),
    /// The attempt failed. Another attempt may succeed.
    Fail(Failure),
    /// The attempt failed, and no further attempt can help.
    Reject(Failure),
    /// The handler asks to run again later. Costs no attempt.
    Snooze(Duration),
    /// A gate held the job back before the attempt started. Costs no attempt. The time budget keeps running, and its end shortens
    /// the hold.
    Hold(Duration),
    /// The node could not make the attempt because of a problem of its own. Costs no attempt and no time budget.
    Defer(Deferral),
    /// The handler waits for a signal or its children. Costs no attempt.
    Wait(Wait),
    /// Someone cancelled the job, and the worker aborted the attempt.
    Cancelled,
    /// The worker shut down before the attempt ended. Costs no attempt.
    Released,
    /// The worker stopped renewing the lease, and the lease ran out.
    LeaseExpired,
}

impl Outcome {
    /// A failure of the handler.
    pub fn fail(error: impl fmt::Display) -> Self {
        Self::Fail(Failure::new(FailureKind::Error, error))
    }

    /// A failure after which no further attempt can help.
    pub fn reject(error: impl fmt::Display) -> Self {
        Self::Reject(Failure::new(FailureKind::Error, error))
    }

    /// A failure after which the target asked for a pause of `wait`. Costs an attempt.
    pub fn retry_after(error: impl fmt::Display, wait: Duration) -> Self {
        Self::Fail(Failure::new(FailureKind::Error, error).with_retry_after(wait))
    }

    /// The error for the job and the attempt log.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Fail(failure) | Self::Reject(failure) => Some(&failure.message),
            Self::Defer(deferral) => Some(&deferral.reason),
            Self::Wait(wait) => wait.problem.as_deref(),
            Self::LeaseExpired => Some("worker lease expired"),
            Self::Done(_) | Self::Snooze(_) | Self::Hold(_) | Self::Cancelled | Self::Released => None,
        }
    }

    /// Whether an attempt started. Held and deferred jobs were not attempted.
    pub fn was_attempted(&self) -> bool {
        !matches!(self, Self::Hold(_) | Self::Defer(_))
    }

    /// The name in the attempt log and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "succeeded",
            Self::Fail(failure) => match failure.kind {
                FailureKind::Timeout => "timeout",
                FailureKind::Panic => "panic",
                FailureKind::Error
                | FailureKind::Connection
                | FailureKind::Status(_)
                | FailureKind::Grpc(_)
                | FailureKind::BodyLost
                | FailureKind::TargetRefused => "failed",
            },
            Self::Reject(_) => "rejected",
            Self::Snooze(_) => "snoozed",
            Self::Hold(_) => "held",
            Self::Defer(_) => "deferred",
            Self::Wait(_) => "waiting",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
            Self::LeaseExpired => "lease_expired",
        }
    }

    /// Whether an attempt log that keeps only failures records this outcome.
    pub fn is_failure(&self) -> bool {
        self.error().is_some()
    }
}

/// The first and the longest wait of a job that is deferred repeatedly.
const DEFERRAL_MIN: Duration = Duration::from_secs(5);
const DEFERRAL_MAX: Duration = Duration::from_secs(60);

/// Why a node deferred an attempt, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferral {
    /// How long to wait before the job is due again.
    pub wait: Duration,
    /// The explanation for people. It becomes the job's last error.
    pub reason: String,
    /// What the problem affects.
    pub scope: DeferralScope,
}

/// What a problem of the node affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeferralScope {
    /// Only this job, for example because its stored body cannot be reached.
    Job,
    /// Every job of the node, for example because the node has no file descriptors left. The node stops claiming for a while.
    Node,
}

impl Deferral {
    /// A problem that affects only this job.
    pub fn of_job(wait: Duration, reason: impl fmt::Display) -> Self {
        Self { wait, reason: reason.to_string(), scope: DeferralScope::Job }
    }

    /// A problem that affects only this job and may last. Each wait is longer than the one before. The job's
    /// [`crate::Job::lease_count`] counts the deferrals, because each takes one lease. Attempts take leases too, so after attempts the
    /// first wait is already longer.
    pub fn with_backoff(lease_count: u32, reason: impl fmt::Display) -> Self {
        let doublings = lease_count.saturating_sub(1).min(8);
        Self::of_job((DEFERRAL_MIN * (1 << doublings)).min(DEFERRAL_MAX), reason)
    }

    /// A problem of the whole node.
    pub fn of_node(wait: Duration, reason: impl fmt::Display) -> Self {
        Self { wait, reason: reason.to_string(), scope: DeferralScope::Node }
    }
}

/// A wait for a signal or for children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The condition that ends the wait.
    pub until: WaitCondition,
    /// The longest wait. None waits without end.
    pub at_most: Option<Duration>,
    /// A problem that people should see. It becomes the job's last error, and the wait continues.
    pub problem: Option<String>,
}

impl Wait {
    /// A wait without end.
    pub fn until(until: WaitCondition) -> Self {
        Self { until, at_most: None, problem: None }
    }

    fn within_horizon(&self) -> Self {
        Self { at_most: self.at_most.map(|wait| wait.min(HORIZON)), ..self.clone() }
    }

    /// A wait with an end is a snooze that can end early.
    fn event(&self) -> Event {
        match self.at_most {
            None => Event::Wait,
            Some(_) => Event::Snooze,
        }
    }
}

/// A failure and its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure, which decides whether the policy retries it.
    pub kind: FailureKind,
    /// The message for people.
    pub message: String,
    /// The pause that the target asked for, with `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string(), retry_after: None }
    }

    /// Adds the pause that the target asked for.
    pub fn with_retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }
}

/// The kind of a failure. The policy decides by it whether to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The handler returned an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The attempt took too long.
    Timeout,
    /// The connection failed or broke.
    Connection,
    /// The target responded with this HTTP status.
    Status(u16),
    /// The target responded with this gRPC code.
    Grpc(u16),
    /// The stored body is gone or damaged.
    BodyLost,
    /// redrive must not send to this target.
    TargetRefused,
}

impl FailureKind {
    /// The reason of a job that dies of this failure.
    fn final_reason(self) -> Reason {
        match self {
            Self::BodyLost => Reason::BodyLost,
            Self::TargetRefused => Reason::TargetRefused,
            Self::Error
            | Self::Panic
            | Self::Timeout
            | Self::Connection
            | Self::Status(_)
            | Self::Grpc(_) => Reason::NotRetryable,
        }
    }
}

/// The decision after an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The job has succeeded.
    Complete(Option<Vec<u8>>),
    /// Retry after this wait.
    Retry(Duration),
    /// Run the same attempt again after this wait. The time budget is paused meanwhile.
    Snooze(Duration),
    /// Run the same attempt again after this wait. The time budget keeps running.
    Hold(Duration),
    /// Wait until a condition is met.
    Wait(Wait),
    /// Return the job to its queue at once. The attempt is not charged.
    Release,
    /// The job is dead: it becomes a dead letter.
    DeadLetter(Reason),
    /// The job is cancelled.
    Cancel,
}

impl Verdict {
    /// The event for the state machine.
    pub fn event(&self) -> Event {
        match self {
            Self::Complete(_) => Event::Complete,
            Self::Retry(_) => Event::Retry,
            Self::Snooze(_) => Event::Snooze,
            Self::Hold(_) => Event::Hold,
            Self::Wait(wait) => wait.event(),
            Self::Release => Event::Release,
            Self::DeadLetter(_) => Event::DeadLetter,
            Self::Cancel => Event::Cancel,
        }
    }

    /// The changes that a store writes. Stores apply them unchanged and decide nothing.
    pub fn effect(&self) -> Effect {
        let ended = |state| Effect { state, state_if_cancelling: state, ..Effect::ENDED };
        match self {
            Self::Complete(_) => ended(State::Succeeded),
            Self::DeadLetter(_) => ended(State::Dead),
            Self::Cancel => ended(State::Cancelled),
            Self::Retry(wait) => Effect { wait: Some(*wait), ..Effect::open(State::Retrying) },
            Self::Snooze(wait) => {
                Effect { wait: Some(*wait), refund: 1, budget_pause: *wait, ..Effect::open(State::Pending) }
            }
            Self::Hold(wait) => Effect { wait: Some(*wait), refund: 1, ..Effect::open(State::Pending) },
            Self::Release => Effect { wait: Some(Duration::ZERO), refund: 1, ..Effect::open(State::Pending) },
            Self::Wait(Wait { at_most: None, .. }) => {
                Effect { wait: Some(Duration::ZERO), refund: 1, ..Effect::open(State::Waiting) }
            }
            Self::Wait(Wait { at_most: Some(wait), .. }) => {
                Effect { wait: Some(*wait), refund: 1, budget_pause: *wait, ..Effect::open(State::Pending) }
            }
        }
    }

    /// The output of a success.
    pub fn output(&self) -> Option<&[u8]> {
        match self {
            Self::Complete(output) => output.as_deref(),
            Self::Retry(_)
            | Self::Snooze(_)
            | Self::Hold(_)
            | Self::Wait(_)
            | Self::Release
            | Self::DeadLetter(_)
            | Self::Cancel => None,
        }
    }

    /// The condition that the job waits for.
    pub fn awaits(&self) -> Option<&WaitCondition> {
        match self {
            Self::Wait(wait) => Some(&wait.until),
            Self::Complete(_)
            | Self::Retry(_)
            | Self::Snooze(_)
            | Self::Hold(_)
            | Self::Release
            | Self::DeadLetter(_)
            | Self::Cancel => None,
        }
    }

    /// The reason, if the job is dead.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::DeadLetter(reason) => Some(*reason),
            Self::Complete(_)
            | Self::Retry(_)
            | Self::Snooze(_)
            | Self::Hold(_)
            | Self::Wait(_)
            | Self::Release
            | Self::Cancel => None,
        }
    }
}

/// A verdict as column values, so that a store can apply many verdicts in one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// The state to write.
    pub state: State,
    /// The state to write instead if someone requested a cancel: a job that would continue is cancelled, a job that ended stays as it is.
    pub state_if_cancelling: State,
    /// How long after the store's `now` the job is due. Zero for a waiting job, so that its `next_run_at` is the time
    /// at which it started to wait. None if the job ends.
    pub wait: Option<Duration>,
    /// The number of attempts to refund.
    pub refund: u32,
    /// How long the time budget is paused, because the handler chose to wait.
    pub budget_pause: Duration,
}

impl Effect {
    const ENDED: Self = Self {
        state: State::Succeeded,
        state_if_cancelling: State::Succeeded,
        wait: None,
        refund: 0,
        budget_pause: Duration::ZERO,
    };

    /// The effect on a job that continues in `state`, or is cancelled if someone requested it.
    fn open(state: State) -> Self {
        Self { state, state_if_cancelling: State::Cancelled, ..Self::ENDED }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lifecycle::transition;
    use crate::policy::presets;

    const S: Duration = Duration::from_secs(1);

    fn run(policy: &Policy, attempt: u32) -> Run<'_> {
        Run {
            policy,
            attempt,
            began_at: Timestamp::default(),
            previous_wait: None,
            estimated_call: Duration::ZERO,
        }
    }

    fn wait() -> Wait {
        Wait::until(WaitCondition::Unpaused)
    }

    fn check(run: Run<'_>, elapsed: Duration, outcome: &Outcome, verdict: Verdict) {
        let now = Timestamp::default().after(elapsed);
        assert_eq!(decide(&run, outcome, now, &mut || 0.5), verdict, "{outcome:?} at {elapsed:?}");
    }

    #[test]
    fn a_job_that_is_deferred_repeatedly_waits_longer_each_time_up_to_a_minute() {
        let waits = [1, 2, 3, 4, 5, 6, u32::MAX].map(|leases| Deferral::with_backoff(leases, "no key").wait);
        assert_eq!(waits, [5, 10, 20, 40, 60, 60, 60].map(Duration::from_secs));
    }

    #[test]
    fn each_outcome_has_its_verdict() {
        let policy = presets::quadratic();
        let status = |code| Outcome::Fail(Failure::new(FailureKind::Status(code), "answered"));
        let gone = |kind| Outcome::Reject(Failure::new(kind, "gone"));
        let cases = [
            (2, Outcome::Done(Some(b"ok".to_vec())), Verdict::Complete(Some(b"ok".to_vec()))),
            (2, Outcome::fail("boom"), Verdict::Retry(4 * S)),
            (2, Outcome::LeaseExpired, Verdict::Retry(4 * S)),
            (2, Outcome::retry_after("busy", 60 * S), Verdict::Retry(60 * S)),
            (2, Outcome::retry_after("busy", S), Verdict::Retry(4 * S)),
            (4, Outcome::fail("boom"), Verdict::DeadLetter(Reason::AttemptsExhausted)),
            (4, Outcome::LeaseExpired, Verdict::DeadLetter(Reason::AttemptsExhausted)),
            (5, Outcome::LeaseExpired, Verdict::DeadLetter(Reason::AttemptsExhausted)),
            (1, Outcome::reject("never"), Verdict::DeadLetter(Reason::NotRetryable)),
            (1, status(503), Verdict::Retry(S)),
            (1, status(400), Verdict::DeadLetter(Reason::NotRetryable)),
            (4, status(400), Verdict::DeadLetter(Reason::NotRetryable)),
            (4, Outcome::Snooze(S), Verdict::Snooze(S)),
            (4, Outcome::Hold(S), Verdict::Hold(S)),
            (4, Outcome::Defer(Deferral::of_node(S, "no file descriptors")), Verdict::Snooze(S)),
            (4, Outcome::Defer(Deferral::of_job(2 * HORIZON, "wrong key")), Verdict::Snooze(HORIZON)),
            (4, Outcome::Wait(wait()), Verdict::Wait(wait())),
            (1, gone(FailureKind::BodyLost), Verdict::DeadLetter(Reason::BodyLost)),
            (1, gone(FailureKind::TargetRefused), Verdict::DeadLetter(Reason::TargetRefused)),
            (4, Outcome::Released, Verdict::Release),
            (4, Outcome::Cancelled, Verdict::Cancel),
        ];
        for (attempt, outcome, verdict) in cases {
            check(run(&policy, attempt), Duration::ZERO, &outcome, verdict);
        }
    }

    #[test]
    fn the_budget_counts_the_elapsed_time_the_wait_and_the_estimated_call() {
        let policy = presets::quadratic().with_total_budget(10 * S);
        let dead = Verdict::DeadLetter(Reason::BudgetExceeded);
        let estimated = |call| Run { estimated_call: call, ..run(&policy, 2) };
        check(estimated(Duration::ZERO), 6 * S, &Outcome::fail("x"), Verdict::Retry(4 * S));
        check(estimated(Duration::from_millis(1)), 6 * S, &Outcome::fail("x"), dead.clone());
        check(estimated(Duration::ZERO), 7 * S, &Outcome::fail("x"), dead.clone());
        check(estimated(Duration::ZERO), Duration::ZERO, &Outcome::retry_after("x", 11 * S), dead.clone());
        let at = |elapsed| admit(&estimated(2 * S), Timestamp::default().after(elapsed));
        assert_eq!(at(8 * S), None);
        assert_eq!(at(9 * S), Some(dead.clone()));
        let first =
            |elapsed| admit(&Run { attempt: 1, ..estimated(2 * S) }, Timestamp::default().after(elapsed));
        assert_eq!((first(10 * S), first(11 * S)), (None, Some(dead)));
    }

    /// Holds a job for one of `waits` after the other, until [`admit`] refuses it. Returns the time since the start of
    /// the run, and whether the job was refused.
    fn hold_until_refused(run: &Run<'_>, waits: &[Duration]) -> (Duration, bool) {
        let mut now = run.began_at;
        for wait in waits {
            if let Some(verdict) = admit(run, now) {
                assert_eq!(verdict, Verdict::DeadLetter(Reason::BudgetExceeded));
                return (now.since(run.began_at), true);
            }
            let Verdict::Hold(wait) = decide(run, &Outcome::Hold(*wait), now, &mut || 0.5) else {
                panic!("a hold stays a hold");
            };
            now = now.after(wait);
        }
        (now.since(run.began_at), admit(run, now).is_some())
    }

    #[test]
    fn a_held_job_ends_with_its_budget() {
        let policy = presets::quadratic().with_total_budget(5 * S);
        for attempt in [1, 2] {
            let refused = hold_until_refused(&run(&policy, attempt), &[3_600 * S]);
            assert_eq!(refused, (5 * S + PAST_THE_BUDGET, true), "attempt {attempt}");
        }
        // An attempt may start exactly at the end of the budget. A hold at that time must not make the job due at once for ever.
        check(run(&policy, 1), 5 * S, &Outcome::Hold(S), Verdict::Hold(PAST_THE_BUDGET));
        check(run(&policy, 1), 9 * S, &Outcome::Hold(S), Verdict::Hold(PAST_THE_BUDGET));
        check(run(&policy, 1), S, &Outcome::Hold(2 * S), Verdict::Hold(2 * S));
        let endless = presets::quadratic().with_total_budget(None);
        check(run(&endless, 1), S, &Outcome::Hold(2 * HORIZON), Verdict::Hold(HORIZON));
    }

    proptest! {
        #[test]
        fn no_hold_lasts_beyond_the_budget_and_none_is_repeated_without_end(
            budget_us in 1..20_000_000_u64,
            waits_ms in proptest::collection::vec(1..30_000_u64, 1..50),
            attempt in 1..4_u32,
        ) {
            let policy = presets::quadratic().with_total_budget(Duration::from_micros(budget_us));
            let waits: Vec<Duration> = waits_ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
            let (at, refused) = hold_until_refused(&run(&policy, attempt), &waits);
            // Instants are whole milliseconds.
            let end = Duration::from_micros(budget_us) + 2 * PAST_THE_BUDGET;
            prop_assert!(at <= end, "{at:?} after a budget of {budget_us} us");
            let asked: Duration = waits.iter().sum();
            prop_assert_eq!(refused, asked.as_micros() > u128::from(budget_us), "{:?} of {:?}", at, asked);
        }
    }

    #[test]
    fn an_effect_writes_what_the_state_machine_allows() {
        let verdicts = [
            Verdict::Complete(None),
            Verdict::Retry(S),
            Verdict::Snooze(S),
            Verdict::Hold(S),
            Verdict::Wait(wait()),
            Verdict::Wait(Wait { at_most: Some(S), ..wait() }),
            Verdict::Release,
            Verdict::DeadLetter(Reason::NotRetryable),
            Verdict::Cancel,
        ];
        for verdict in verdicts {
            let effect = verdict.effect();
            assert_eq!(transition(State::Running, verdict.event()), Ok(effect.state), "{verdict:?}");
            let cancelled = if effect.state.is_final() { effect.state } else { State::Cancelled };
            assert_eq!(effect.state_if_cancelling, cancelled, "{verdict:?}");
        }
    }
}
