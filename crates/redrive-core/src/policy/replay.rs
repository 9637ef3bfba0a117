//! What a policy would have made of a job whose course is known: driven again on paper, by the same decision.

use std::time::Duration;

use super::Policy;
use crate::chance::Chance;
use crate::time::Timestamp;
use crate::verdict::{Failure, Fault, Outcome, Reason, Run, Verdict, admit, decide};

/// What is known of a job that has ended: when the other side worked, and how it failed before.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// When its run was first due.
    pub began_at: Timestamp,
    /// From when on the other side works; none is never, as far as is known.
    pub works_from: Option<Timestamp>,
    /// How its attempts failed, in order; the last one repeats.
    pub faults: Vec<Fault>,
    /// How long one attempt takes.
    pub call: Duration,
}

/// What becomes of a job on paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Attempts that are made.
    pub attempts: u32,
    /// How it ends.
    pub end: End,
}

/// How a job ends on paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It succeeds this long after it was first due.
    Succeeded(Duration),
    /// It is dead, for this reason.
    Dead(Reason),
}

impl Policy {
    /// Drives a job again on paper: each attempt fails until the other side works. Nothing is decided here: what follows an
    /// attempt is what [`decide`] and [`admit`] say.
    pub fn replay(&self, course: &Course, chance: &mut dyn Chance) -> Replayed {
        let (mut now, mut attempt, mut previous_wait) = (course.began_at, 1, None);
        loop {
            let (began_at, estimated_call) = (course.began_at, course.call);
            let run = Run { policy: self, attempt, began_at, previous_wait, estimated_call };
            if let Some(Verdict::DeadLetter(reason)) = admit(&run, now) {
                return Replayed { attempts: attempt - 1, end: End::Dead(reason) };
            }
            let outcome = course.outcome(attempt, now);
            now = now.after(course.call);
            match decide(&run, &outcome, now, chance) {
                Verdict::Retry(wait) => {
                    (now, attempt, previous_wait) = (now.after(wait), attempt + 1, Some(wait));
                }
                Verdict::DeadLetter(reason) => return Replayed { attempts: attempt, end: End::Dead(reason) },
                // Nothing else follows from a success or a failure.
                Verdict::Complete(_)
                | Verdict::Snooze(_)
                | Verdict::Park(_)
                | Verdict::Wait(_)
                | Verdict::Release
                | Verdict::Cancel => {
                    let took = now.since(course.began_at);
                    return Replayed { attempts: attempt, end: End::Succeeded(took) };
                }
            }
        }
    }
}

impl Course {
    fn outcome(&self, attempt: u32, now: Timestamp) -> Outcome {
        if self.works_from.is_some_and(|from| now >= from) {
            return Outcome::Done(None);
        }
        let place = (attempt as usize).saturating_sub(1).min(self.faults.len().saturating_sub(1));
        let fault = self.faults.get(place).copied().unwrap_or(Fault::Connection);
        Outcome::Fail(Failure::new(fault, ""))
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

    fn course(works_after: Option<u64>) -> Course {
        let began_at = Timestamp::from_ms(1_000_000);
        let works_from = works_after.map(|seconds| began_at.after(Duration::from_secs(seconds)));
        Course { began_at, works_from, faults: vec![Fault::Status(503)], call: S }
    }

    fn check(policy: &Policy, course: &Course, attempts: u32, end: End) {
        assert_eq!(policy.replay(course, &mut || 0.5), Replayed { attempts, end });
    }

    #[test]
    fn it_succeeds_with_the_first_attempt_after_the_other_side_works() {
        // Attempts begin at 0, 11, 22 and 33 seconds.
        check(&fixed(8), &course(Some(0)), 1, End::Succeeded(S));
        check(&fixed(8), &course(Some(11)), 2, End::Succeeded(12 * S));
        check(&fixed(8), &course(Some(12)), 3, End::Succeeded(23 * S));
        check(&fixed(3), &course(Some(30)), 3, End::Dead(Reason::AttemptsExhausted));
        check(&fixed(8), &course(None), 8, End::Dead(Reason::AttemptsExhausted));
    }

    #[test]
    fn the_budget_and_the_sort_of_failure_count_as_ever() {
        let hurried = fixed(8).with_total_budget(20 * S);
        check(&hurried, &course(None), 2, End::Dead(Reason::BudgetExceeded));
        let refused = Course { faults: vec![Fault::Status(503), Fault::Status(404)], ..course(None) };
        check(&fixed(8), &refused, 2, End::Dead(Reason::NotRetryable));
    }
}
