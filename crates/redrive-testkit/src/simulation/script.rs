//! The script of a job: its payload says what its handler does.

use std::time::Duration;

use fastrand::Rng;
use redrive_core::Outcome;
use redrive_worker::Context;
use tokio::time::sleep;

use super::plan::pick;
use crate::history::{History, HistoryEvent};

/// Fails under the first leases, and succeeds under later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JobScript {
    failure: ScriptedFailure,
    /// The number of leases under which it fails.
    until: u64,
    /// How long it works, waits or snoozes.
    span: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptedFailure {
    Fail,
    Panic,
    Reject,
    Snooze,
    Hold,
    RetryAfter,
    Hang,
}

const FAILURE_NAMES: [(ScriptedFailure, &str); 7] = [
    (ScriptedFailure::Fail, "fail"),
    (ScriptedFailure::Panic, "panic"),
    (ScriptedFailure::Reject, "reject"),
    (ScriptedFailure::Snooze, "snooze"),
    (ScriptedFailure::Hold, "hold"),
    (ScriptedFailure::RetryAfter, "retry-after"),
    (ScriptedFailure::Hang, "hang"),
];

impl JobScript {
    /// Draws a script. Half of all jobs succeed at once.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let (failure, _) = pick(rng, &FAILURE_NAMES);
        let until = if rng.bool() { 0 } else { rng.u64(1..10) };
        let longest_ms = match failure {
            ScriptedFailure::Hang => 20 * 60_000,
            ScriptedFailure::Snooze | ScriptedFailure::Hold | ScriptedFailure::RetryAfter => 5 * 60_000,
            ScriptedFailure::Fail | ScriptedFailure::Panic | ScriptedFailure::Reject => 5_000,
        };
        Self { failure, until, span: Duration::from_millis(rng.u64(0..longest_ms)) }
    }

    pub(super) fn to_payload(self) -> Vec<u8> {
        let word =
            FAILURE_NAMES.iter().find(|(failure, _)| *failure == self.failure).map_or("", |(_, word)| word);
        format!("{word} {} {}", self.until, self.span.as_millis()).into_bytes()
    }

    fn from_payload(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let mut words = text.split(' ');
        let word = words.next()?;
        let (failure, _) = FAILURE_NAMES.iter().find(|(_, name)| *name == word)?;
        let until = words.next()?.parse().ok()?;
        let span = Duration::from_millis(words.next()?.parse().ok()?);
        Some(Self { failure: *failure, until, span })
    }

    /// The handler of every job.
    pub(super) async fn handle(cx: Context, history: History) -> Outcome {
        history.add(HistoryEvent::Started(cx.job.lease()));
        let Some(script) = Self::from_payload(&cx.job.payload) else {
            return Outcome::reject("the script cannot be read");
        };
        if u64::from(cx.job.lease_count()) > script.until {
            sleep(script.span.min(Duration::from_secs(5))).await;
            return Outcome::Done(Some(cx.job.payload.clone()));
        }
        script.fail().await
    }

    async fn fail(self) -> Outcome {
        match self.failure {
            ScriptedFailure::Snooze => return Outcome::Snooze(self.span),
            ScriptedFailure::Hold => return Outcome::Hold(self.span),
            ScriptedFailure::RetryAfter => return Outcome::retry_after("come back later", self.span),
            ScriptedFailure::Fail
            | ScriptedFailure::Panic
            | ScriptedFailure::Reject
            | ScriptedFailure::Hang => sleep(self.span).await,
        }
        match self.failure {
            // Skips the panic hook, which would print thousands of panics.
            ScriptedFailure::Panic => std::panic::resume_unwind(Box::new("scripted")),
            ScriptedFailure::Reject => Outcome::reject("never"),
            ScriptedFailure::Fail
            | ScriptedFailure::Snooze
            | ScriptedFailure::Hold
            | ScriptedFailure::RetryAfter => Outcome::fail("not yet"),
            ScriptedFailure::Hang => Outcome::Done(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_unchanged_after_encoding_and_decoding() {
        let mut rng = Rng::with_seed(7);
        for _ in 0..100 {
            let script = JobScript::draw(&mut rng);
            assert_eq!(JobScript::from_payload(&script.to_payload()), Some(script));
        }
        assert_eq!(JobScript::from_payload(b"\xff"), None);
    }
}
