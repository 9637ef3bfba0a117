//! Replays the recorded failures of a job under another policy, with the same decision function.

use std::time::Duration;

use super::Policy;
use crate::random::RandomSource;
use crate::reason::Reason;
use crate::time::Timestamp;
use crate::verdict::{Failure, FailureKind, Outcome, Run, Verdict, admit, decide};

/// The recorded failures of a job that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureHistory {
    /// When its run was first due.
    pub began_at: Timestamp,
    /// When the target started to work. None if it never did.
    pub works_from: Option<Timestamp>,
    /// The failures of its attempts, in order. The last one repeats.
    pub failures: Vec<FailureKind>,
    /// How long one attempt takes.
    pub call: Duration,
}

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayResult {
    /// The number of attempts.
    pub attempts: u32,
    /// How the job ends.
    pub end: ReplayEnd,
}

/// How a job ends in a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The job succeeds this long after its first due time.
    Succeeded(Duration),
    /// The job is dead for this reason.
    Dead(Reason),
}

impl Policy {
    /// Replays a job under this policy: each attempt fails until the target works. [`decide`] and [`admit`] make every decision.
    pub fn replay(&self, history: &FailureHistory, random: &mut dyn RandomSource) -> ReplayResult {
        let (mut now, mut attempt, mut previous_wait) = (history.began_at, 1, None);
        loop {
            let (began_at, estimated_call) = (history.began_at, history.call);
            let run = Run { policy: self, attempt, began_at, previous_wait, estimated_call };
            if let Some(Verdict::DeadLetter(reason)) = admit(&run, now) {
                return ReplayResult { attempts: attempt - 1, end: ReplayEnd::Dead(reason) };
            }
            let outcome = history.outcome(attempt, now);
            now = now.after(history.call);
            match decide(&run, &outcome, now, random) {
                Verdict::Retry(wait) => {
                    (now, attempt, previous_wait) = (now.after(wait), attempt + 1, Some(wait));
                }
                Verdict::DeadLetter(reason) => {
                    return ReplayResult { attempts: attempt, end: ReplayEnd::Dead(reason) };
                }
                // Nothing else follows from a success or a failure.
                Verdict::Complete(_)
                | Verdict::Snooze(_)
                | Verdict::Hold(_)
                | Verdict::Wait(_)
                | Verdict::Release
                | Verdict::Cancel => {
                    let took = now.since(history.began_at);
                    return ReplayResult { attempts: attempt, end: ReplayEnd::Succeeded(took) };
                }
            }
        }
    }
}

impl FailureHistory {
    fn outcome(&self, attempt: u32, now: Timestamp) -> Outcome {
        if self.works_from.is_some_and(|from| now >= from) {
            return Outcome::Done(None);
        }
        let place = (attempt as usize).saturating_sub(1).min(self.failures.len().saturating_sub(1));
        let kind = self.failures.get(place).copied().unwrap_or(FailureKind::Connection);
        Outcome::Fail(Failure::new(kind, ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Backoff, Jitter};

    const S: Duration = Duration::from_secs(1);

    fn fixed(attempts: u32) -> Policy {
        let policy = Policy::default().with_max_attempts(attempts).unwrap();
        policy.with_backoff(Backoff::fixed(10 * S).unwrap()).with_jitter(Jitter::None)
    }

    fn history(works_after: Option<u64>) -> FailureHistory {
        let began_at = Timestamp::from_ms(1_000_000);
        let works_from = works_after.map(|seconds| began_at.after(Duration::from_secs(seconds)));
        FailureHistory { began_at, works_from, failures: vec![FailureKind::Status(503)], call: S }
    }

    fn check(policy: &Policy, history: &FailureHistory, attempts: u32, end: ReplayEnd) {
        assert_eq!(policy.replay(history, &mut || 0.5), ReplayResult { attempts, end });
    }

    #[test]
    fn the_first_attempt_after_the_target_works_succeeds() {
        // Attempts begin at 0, 11, 22 and 33 seconds.
        check(&fixed(8), &history(Some(0)), 1, ReplayEnd::Succeeded(S));
        check(&fixed(8), &history(Some(11)), 2, ReplayEnd::Succeeded(12 * S));
        check(&fixed(8), &history(Some(12)), 3, ReplayEnd::Succeeded(23 * S));
        check(&fixed(3), &history(Some(30)), 3, ReplayEnd::Dead(Reason::AttemptsExhausted));
        check(&fixed(8), &history(None), 8, ReplayEnd::Dead(Reason::AttemptsExhausted));
    }

    #[test]
    fn budget_and_kind_of_failure_decide_as_in_the_engine() {
        let short = fixed(8).with_total_budget(20 * S);
        check(&short, &history(None), 2, ReplayEnd::Dead(Reason::BudgetExceeded));
        let refused = FailureHistory {
            failures: vec![FailureKind::Status(503), FailureKind::Status(404)],
            ..history(None)
        };
        check(&fixed(8), &refused, 2, ReplayEnd::Dead(Reason::NotRetryable));
    }
}
