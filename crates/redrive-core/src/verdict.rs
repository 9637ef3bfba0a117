//! What follows an attempt: the one decision between retry and dead letter, and what it changes on the row.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::chance::Chance;
use crate::invalid::Invalid;
use crate::job::Epoch;
use crate::lifecycle::{Event, State};
use crate::limits::HORIZON;
use crate::policy::Policy;
use crate::steps::Await;
use crate::time::Timestamp;

/// How long after the end of its budget a parked job is due. An attempt may still start at the very end, so a job that were
/// due at that instant would be parked again for no time at all.
const PAST_THE_BUDGET: Duration = Duration::from_millis(1);

/// Decides what follows an attempt. Retry or dead-letter is chosen nowhere else.
pub fn decide(run: &Run<'_>, outcome: &Outcome, now: Timestamp, chance: &mut dyn Chance) -> Verdict {
    match outcome {
        Outcome::Done(output) => Verdict::Complete(output.clone()),
        Outcome::Snooze(wait) => Verdict::Snooze((*wait).min(HORIZON)),
        Outcome::Park(wait) => run.park(*wait, now),
        Outcome::Defer(deferral) => Verdict::Snooze(deferral.wait.min(HORIZON)),
        Outcome::Wait(wait) => Verdict::Wait(wait.within_horizon()),
        Outcome::Released => Verdict::Release,
        Outcome::Cancelled => Verdict::Cancel,
        Outcome::Reject(failure) => Verdict::DeadLetter(failure.fault.final_reason()),
        Outcome::Fail(failure) if !run.policy.eligibility.covers(failure.fault) => {
            Verdict::DeadLetter(failure.fault.final_reason())
        }
        Outcome::Fail(_) | Outcome::LeaseExpired if run.is_last_attempt() => {
            Verdict::DeadLetter(Reason::AttemptsExhausted)
        }
        Outcome::Fail(failure) => run.plan_retry(failure.retry_after, now, chance),
        Outcome::LeaseExpired => run.plan_retry(None, now, chance),
    }
}

/// Checks the budget again once an attempt is claimed, before anything is sent: a verdict means that it must not start.
///
/// A first attempt is never refused for an estimate: it is how an estimate that is too high comes down again.
pub fn admit(run: &Run<'_>, now: Timestamp) -> Option<Verdict> {
    let estimate = if run.attempt > 1 { run.estimated_call } else { Duration::ZERO };
    let affordable = run.policy.affords(now.since(run.began_at), Duration::ZERO, estimate);
    (!affordable).then_some(Verdict::DeadLetter(Reason::BudgetExceeded))
}

/// What the decision looks at: the policy and how far the run has come under it.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The policy the job was created with.
    pub policy: &'a Policy,
    /// The attempt that has just been made, from 1.
    pub attempt: u32,
    /// When the run was first due; the budget counts from here.
    pub began_at: Timestamp,
    /// The actual wait before this attempt, for decorrelated jitter.
    pub previous_wait: Option<Duration>,
    /// How long an attempt takes as far as is known; zero while it is not.
    pub estimated_call: Duration,
}

impl Run<'_> {
    fn is_last_attempt(&self) -> bool {
        self.attempt >= self.policy.max_attempts.get()
    }

    /// Holds the job back, but never beyond the end of its budget: there it becomes due, and [`admit`] ends it.
    fn park(&self, wait: Duration, now: Timestamp) -> Verdict {
        let wait = wait.min(HORIZON);
        let Some(budget) = self.policy.total_budget else { return Verdict::Park(wait) };
        let left = budget.saturating_sub(now.since(self.began_at));
        Verdict::Park(wait.min(left.saturating_add(PAST_THE_BUDGET)))
    }

    fn plan_retry(&self, asked: Option<Duration>, now: Timestamp, chance: &mut dyn Chance) -> Verdict {
        let wait = self.policy.wait(self.attempt, self.previous_wait, asked, chance);
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
    /// It succeeded, perhaps with an output.
    Done(Option<Vec<u8>>),
    /// It failed; another attempt may succeed.
    Fail(Failure),
    /// It failed and no further attempt can help.
    Reject(Failure),
    /// It asks to be run again later; costs no attempt.
    Snooze(Duration),
    /// Its turn has not come: something between the worker and the work holds it back. Costs no attempt; the budget goes on,
    /// and its end cuts the wait short.
    Park(Duration),
    /// This node could not make the attempt, through no fault of the job or its target. Costs no attempt and no budget.
    Defer(Deferral),
    /// It waits for something outside; costs no attempt.
    Wait(Wait),
    /// It was aborted by request.
    Cancelled,
    /// Its worker shut down in good order before it ended; costs no attempt.
    Released,
    /// Its worker fell silent and the lease ran out.
    LeaseExpired,
}

impl Outcome {
    /// A failure of the program's own making.
    pub fn fail(error: impl fmt::Display) -> Self {
        Self::Fail(Failure::new(Fault::Error, error))
    }

    /// A failure that no further attempt can help.
    pub fn reject(error: impl fmt::Display) -> Self {
        Self::Reject(Failure::new(Fault::Error, error))
    }

    /// A failure after which the other side asked to be left alone for `wait`. Costs an attempt.
    pub fn retry_after(error: impl fmt::Display, wait: Duration) -> Self {
        Self::Fail(Failure::new(Fault::Error, error).with_retry_after(wait))
    }

    /// The error to keep on the row and in the log.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Fail(failure) | Self::Reject(failure) => Some(&failure.message),
            Self::Defer(deferral) => Some(&deferral.reason),
            Self::Wait(wait) => wait.problem.as_deref(),
            Self::LeaseExpired => Some("worker lease expired"),
            Self::Done(_) | Self::Snooze(_) | Self::Park(_) | Self::Cancelled | Self::Released => None,
        }
    }

    /// Whether an attempt was made. A job that was only held back, or put off by its node, was not attempted.
    pub fn was_attempted(&self) -> bool {
        !matches!(self, Self::Park(_) | Self::Defer(_))
    }

    /// Its name in the attempt log and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Fail(failure) => match failure.fault {
                Fault::Timeout => "timeout",
                Fault::Panic => "panic",
                Fault::Error
                | Fault::Connection
                | Fault::Status(_)
                | Fault::Grpc(_)
                | Fault::BodyLost
                | Fault::TargetRefused => "failed",
            },
            Self::Reject(_) => "rejected",
            Self::Snooze(_) => "snoozed",
            Self::Park(_) => "parked",
            Self::Defer(_) => "deferred",
            Self::Wait(_) => "waiting",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
            Self::LeaseExpired => "lease_expired",
        }
    }

    /// Whether it is a failure in the eyes of an attempt log that keeps failures only.
    pub fn is_failure(&self) -> bool {
        self.error().is_some()
    }
}

/// The first and the longest wait of a job that is put off again and again.
const DEFERRAL_MIN: Duration = Duration::from_secs(5);
const DEFERRAL_MAX: Duration = Duration::from_secs(60);

/// Why a node put an attempt off, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferral {
    /// How long to wait before the job is due again.
    pub wait: Duration,
    /// What a person should read. It is kept as the job's last error.
    pub reason: String,
    /// What the problem affects.
    pub scope: DeferralScope,
}

/// What a local problem affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeferralScope {
    /// This job only, for example because its stored body cannot be reached.
    Job,
    /// Every job of the node, for example because it has no file descriptors left: the node stops claiming for a while.
    Node,
}

impl Deferral {
    /// A problem with what this one job needs.
    pub fn of_job(wait: Duration, reason: impl fmt::Display) -> Self {
        Self { wait, reason: reason.to_string(), scope: DeferralScope::Job }
    }

    /// A problem with what this one job needs that may last for a while: it waits longer each time. The job's epoch counts
    /// them, since every deferral takes one lease; so does an attempt, after which the first wait is a longer one.
    pub fn with_backoff(epoch: Epoch, reason: impl fmt::Display) -> Self {
        let doublings = epoch.saturating_sub(1).min(8);
        Self::of_job((DEFERRAL_MIN * (1 << doublings)).min(DEFERRAL_MAX), reason)
    }

    /// A problem of the whole node.
    pub fn of_node(wait: Duration, reason: impl fmt::Display) -> Self {
        Self { wait, reason: reason.to_string(), scope: DeferralScope::Node }
    }
}

/// A wait for something outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// What for.
    pub until: Await,
    /// For how long at most; none is without end.
    pub at_most: Option<Duration>,
    /// A problem that a person should read, kept as the job's last error. The wait goes on.
    pub problem: Option<String>,
}

impl Wait {
    /// A wait without end.
    pub fn until(until: Await) -> Self {
        Self { until, at_most: None, problem: None }
    }

    fn within_horizon(&self) -> Self {
        Self { at_most: self.at_most.map(|wait| wait.min(HORIZON)), ..self.clone() }
    }

    /// One with an end is a snooze that can be cut short.
    fn event(&self) -> Event {
        match self.at_most {
            None => Event::Wait,
            Some(_) => Event::Snooze,
        }
    }
}

/// A failure with what is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its sort, for eligibility.
    pub fault: Fault,
    /// What a person should read.
    pub message: String,
    /// How long the other side asked to be left alone.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of some sort.
    pub fn new(fault: Fault, message: impl fmt::Display) -> Self {
        Self { fault, message: message.to_string(), retry_after: None }
    }

    /// Adds how long the other side asked to be left alone.
    pub fn with_retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }
}

/// The sort of a failure, which decides whether it is eligible for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The program's own error.
    Error,
    /// The handler panicked.
    Panic,
    /// The attempt took too long.
    Timeout,
    /// No connection, or one that broke.
    Connection,
    /// An HTTP answer with this status.
    Status(u16),
    /// A gRPC answer with this code.
    Grpc(u16),
    /// What was to be sent is gone or damaged.
    BodyLost,
    /// It must not be sent to where it should go.
    TargetRefused,
}

impl Fault {
    /// Why a job is dead that this ended for good.
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

/// What follows an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It is done.
    Complete(Option<Vec<u8>>),
    /// Another attempt after this wait.
    Retry(Duration),
    /// Another run of the same attempt after this wait.
    Snooze(Duration),
    /// Another run of the same attempt after this wait, which counts for the budget.
    Park(Duration),
    /// Set aside until what it waits for has come.
    Wait(Wait),
    /// Back to the queue at once; the attempt did not count.
    Release,
    /// Ended for good: a dead letter.
    DeadLetter(Reason),
    /// Ended by request.
    Cancel,
}

impl Verdict {
    /// What it does to the state machine.
    pub fn event(&self) -> Event {
        match self {
            Self::Complete(_) => Event::Complete,
            Self::Retry(_) => Event::Retry,
            Self::Snooze(_) => Event::Snooze,
            Self::Park(_) => Event::Park,
            Self::Wait(wait) => wait.event(),
            Self::Release => Event::Release,
            Self::DeadLetter(_) => Event::DeadLetter,
            Self::Cancel => Event::Cancel,
        }
    }

    /// What a store writes for it. Stores apply this as it is and decide nothing.
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
            Self::Park(wait) => Effect { wait: Some(*wait), refund: 1, ..Effect::open(State::Pending) },
            Self::Release => Effect { wait: Some(Duration::ZERO), refund: 1, ..Effect::open(State::Pending) },
            Self::Wait(Wait { at_most: None, .. }) => {
                Effect { wait: Some(Duration::ZERO), refund: 1, ..Effect::open(State::Waiting) }
            }
            Self::Wait(Wait { at_most: Some(wait), .. }) => {
                Effect { wait: Some(*wait), refund: 1, budget_pause: *wait, ..Effect::open(State::Pending) }
            }
        }
    }

    /// What a success has to show, if anything.
    pub fn output(&self) -> Option<&[u8]> {
        match self {
            Self::Complete(output) => output.as_deref(),
            Self::Retry(_)
            | Self::Snooze(_)
            | Self::Park(_)
            | Self::Wait(_)
            | Self::Release
            | Self::DeadLetter(_)
            | Self::Cancel => None,
        }
    }

    /// What the job waits for, if it does.
    pub fn awaits(&self) -> Option<&Await> {
        match self {
            Self::Wait(wait) => Some(&wait.until),
            Self::Complete(_)
            | Self::Retry(_)
            | Self::Snooze(_)
            | Self::Park(_)
            | Self::Release
            | Self::DeadLetter(_)
            | Self::Cancel => None,
        }
    }

    /// Why it is dead, when it is.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::DeadLetter(reason) => Some(*reason),
            Self::Complete(_)
            | Self::Retry(_)
            | Self::Snooze(_)
            | Self::Park(_)
            | Self::Wait(_)
            | Self::Release
            | Self::Cancel => None,
        }
    }
}

/// A verdict as columns, so that a store can apply many in one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// The state to write.
    pub state: State,
    /// The state to write instead when a cancel was requested meanwhile: what would go on is cancelled, what ended stays.
    pub state_if_cancelling: State,
    /// The job is due again this long after the store's `now`; a job that is set aside was so from then on.
    pub wait: Option<Duration>,
    /// Attempts to give back.
    pub refund: u32,
    /// Time by choice, not by failure: the budget stands still for it.
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

    fn open(state: State) -> Self {
        Self { state, state_if_cancelling: State::Cancelled, ..Self::ENDED }
    }
}

/// Why a job is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Reason {
    /// The last attempt that the policy allows has failed.
    AttemptsExhausted,
    /// The next attempt would not fit the budget.
    BudgetExceeded,
    /// The failure is not of a sort that the policy retries.
    NotRetryable,
    /// What was to be sent is gone or damaged.
    BodyLost,
    /// It must not be sent to where it should go.
    TargetRefused,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::AttemptsExhausted,
        Self::BudgetExceeded,
        Self::NotRetryable,
        Self::BodyLost,
        Self::TargetRefused,
    ];

    /// Its name on the wire and in stores.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttemptsExhausted => "ATTEMPTS_EXHAUSTED",
            Self::BudgetExceeded => "BUDGET_EXCEEDED",
            Self::NotRetryable => "NOT_RETRYABLE",
            Self::BodyLost => "BODY_LOST",
            Self::TargetRefused => "TARGET_REFUSED",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reason {
    type Err = Invalid;
    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|reason| reason.name() == name)
            .ok_or_else(|| Invalid::new("reason", format!("{name:?} is not a known reason")))
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
        Wait::until(Await::Unhold)
    }

    fn check(run: Run<'_>, elapsed: Duration, outcome: &Outcome, verdict: Verdict) {
        let now = Timestamp::default().after(elapsed);
        assert_eq!(decide(&run, outcome, now, &mut || 0.5), verdict, "{outcome:?} at {elapsed:?}");
    }

    #[test]
    fn a_job_that_is_put_off_again_and_again_waits_longer_each_time_up_to_a_minute() {
        let waits = [1, 2, 3, 4, 5, 6, u64::MAX].map(|epoch| Deferral::with_backoff(epoch, "no key").wait);
        assert_eq!(waits, [5, 10, 20, 40, 60, 60, 60].map(Duration::from_secs));
    }

    #[test]
    fn each_outcome_has_its_verdict() {
        let policy = presets::quadratic();
        let status = |code| Outcome::Fail(Failure::new(Fault::Status(code), "answered"));
        let gone = |fault| Outcome::Reject(Failure::new(fault, "gone"));
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
            (4, Outcome::Park(S), Verdict::Park(S)),
            (4, Outcome::Defer(Deferral::of_node(S, "no file descriptors")), Verdict::Snooze(S)),
            (4, Outcome::Defer(Deferral::of_job(2 * HORIZON, "wrong key")), Verdict::Snooze(HORIZON)),
            (4, Outcome::Wait(wait()), Verdict::Wait(wait())),
            (1, gone(Fault::BodyLost), Verdict::DeadLetter(Reason::BodyLost)),
            (1, gone(Fault::TargetRefused), Verdict::DeadLetter(Reason::TargetRefused)),
            (4, Outcome::Released, Verdict::Release),
            (4, Outcome::Cancelled, Verdict::Cancel),
        ];
        for (attempt, outcome, verdict) in cases {
            check(run(&policy, attempt), Duration::ZERO, &outcome, verdict);
        }
    }

    #[test]
    fn the_budget_counts_time_passed_wait_and_the_call_to_come() {
        let policy = presets::quadratic().with_total_budget(10 * S);
        let dead = Verdict::DeadLetter(Reason::BudgetExceeded);
        let called = |call| Run { estimated_call: call, ..run(&policy, 2) };
        check(called(Duration::ZERO), 6 * S, &Outcome::fail("x"), Verdict::Retry(4 * S));
        check(called(Duration::from_millis(1)), 6 * S, &Outcome::fail("x"), dead.clone());
        check(called(Duration::ZERO), 7 * S, &Outcome::fail("x"), dead.clone());
        check(called(Duration::ZERO), Duration::ZERO, &Outcome::retry_after("x", 11 * S), dead.clone());
        let at = |elapsed| admit(&called(2 * S), Timestamp::default().after(elapsed));
        assert_eq!(at(8 * S), None);
        assert_eq!(at(9 * S), Some(dead.clone()));
        let first =
            |elapsed| admit(&Run { attempt: 1, ..called(2 * S) }, Timestamp::default().after(elapsed));
        assert_eq!((first(10 * S), first(11 * S)), (None, Some(dead)));
    }

    /// Parks a job again and again, each time for as long as the next of `waits` says; returns how long after its beginning
    /// it was refused, and whether it was refused at all.
    fn park_until_refused(run: &Run<'_>, waits: &[Duration]) -> (Duration, bool) {
        let mut now = run.began_at;
        for wait in waits {
            if let Some(verdict) = admit(run, now) {
                assert_eq!(verdict, Verdict::DeadLetter(Reason::BudgetExceeded));
                return (now.since(run.began_at), true);
            }
            let Verdict::Park(wait) = decide(run, &Outcome::Park(*wait), now, &mut || 0.5) else {
                panic!("a park is a park");
            };
            now = now.after(wait);
        }
        (now.since(run.began_at), admit(run, now).is_some())
    }

    #[test]
    fn a_parked_job_ends_with_its_budget() {
        let policy = presets::quadratic().with_total_budget(5 * S);
        for attempt in [1, 2] {
            let refused = park_until_refused(&run(&policy, attempt), &[3_600 * S]);
            assert_eq!(refused, (5 * S + PAST_THE_BUDGET, true), "attempt {attempt}");
        }
        // An attempt may start at the very end of the budget; parked there, it is not due at once for ever.
        check(run(&policy, 1), 5 * S, &Outcome::Park(S), Verdict::Park(PAST_THE_BUDGET));
        check(run(&policy, 1), 9 * S, &Outcome::Park(S), Verdict::Park(PAST_THE_BUDGET));
        check(run(&policy, 1), S, &Outcome::Park(2 * S), Verdict::Park(2 * S));
        let endless = presets::quadratic().with_total_budget(None);
        check(run(&endless, 1), S, &Outcome::Park(2 * HORIZON), Verdict::Park(HORIZON));
    }

    proptest! {
        #[test]
        fn no_park_lasts_beyond_the_budget_and_none_is_repeated_without_end(
            budget_us in 1..20_000_000_u64,
            waits_ms in proptest::collection::vec(1..30_000_u64, 1..50),
            attempt in 1..4_u32,
        ) {
            let policy = presets::quadratic().with_total_budget(Duration::from_micros(budget_us));
            let waits: Vec<Duration> = waits_ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
            let (at, refused) = park_until_refused(&run(&policy, attempt), &waits);
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
            Verdict::Park(S),
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
