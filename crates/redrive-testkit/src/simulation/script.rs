//! What a job's handler does, written in the job's payload.

use std::time::Duration;

use fastrand::Rng;
use redrive_core::Outcome;
use redrive_worker::Context;
use tokio::time::sleep;

use super::plan::pick;
use crate::history::{Happening, History};

/// Does its worst under the first leases and succeeds under later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Script {
    trouble: Trouble,
    /// Up to which epoch.
    until: u64,
    /// How long it works, or waits, or asks for.
    span: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Fail,
    Panic,
    Reject,
    Snooze,
    Park,
    RetryAfter,
    Hang,
}

const TROUBLES: [(Trouble, &str); 7] = [
    (Trouble::Fail, "fail"),
    (Trouble::Panic, "panic"),
    (Trouble::Reject, "reject"),
    (Trouble::Snooze, "snooze"),
    (Trouble::Park, "park"),
    (Trouble::RetryAfter, "retry-after"),
    (Trouble::Hang, "hang"),
];

impl Script {
    /// Half of all jobs simply work.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let (trouble, _) = pick(rng, &TROUBLES);
        let until = if rng.bool() { 0 } else { rng.u64(1..10) };
        let longest_ms = match trouble {
            Trouble::Hang => 20 * 60_000,
            Trouble::Snooze | Trouble::Park | Trouble::RetryAfter => 5 * 60_000,
            Trouble::Fail | Trouble::Panic | Trouble::Reject => 5_000,
        };
        Self { trouble, until, span: Duration::from_millis(rng.u64(0..longest_ms)) }
    }

    pub(super) fn to_payload(self) -> Vec<u8> {
        let word = TROUBLES.iter().find(|(trouble, _)| *trouble == self.trouble).map_or("", |(_, word)| word);
        format!("{word} {} {}", self.until, self.span.as_millis()).into_bytes()
    }

    fn of_payload(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let mut words = text.split(' ');
        let word = words.next()?;
        let (trouble, _) = TROUBLES.iter().find(|(_, name)| *name == word)?;
        let until = words.next()?.parse().ok()?;
        let span = Duration::from_millis(words.next()?.parse().ok()?);
        Some(Self { trouble: *trouble, until, span })
    }

    /// The handler of every job.
    pub(super) async fn handle(cx: Context, history: History) -> Outcome {
        history.add(Happening::Started(cx.job.lease()));
        let Some(script) = Self::of_payload(&cx.job.payload) else {
            return Outcome::reject("the script cannot be read");
        };
        if cx.job.epoch > script.until {
            sleep(script.span.min(Duration::from_secs(5))).await;
            return Outcome::Done(Some(cx.job.payload.clone()));
        }
        script.go_wrong().await
    }

    async fn go_wrong(self) -> Outcome {
        match self.trouble {
            Trouble::Snooze => return Outcome::Snooze(self.span),
            Trouble::Park => return Outcome::Park(self.span),
            Trouble::RetryAfter => return Outcome::retry_after("come back later", self.span),
            Trouble::Fail | Trouble::Panic | Trouble::Reject | Trouble::Hang => sleep(self.span).await,
        }
        match self.trouble {
            // Past the panic hook, which would print each of thousands.
            Trouble::Panic => std::panic::resume_unwind(Box::new("scripted")),
            Trouble::Reject => Outcome::reject("never"),
            Trouble::Fail | Trouble::Snooze | Trouble::Park | Trouble::RetryAfter => Outcome::fail("not yet"),
            Trouble::Hang => Outcome::Done(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_survives_its_payload() {
        let mut rng = Rng::with_seed(7);
        for _ in 0..100 {
            let script = Script::draw(&mut rng);
            assert_eq!(Script::of_payload(&script.to_payload()), Some(script));
        }
        assert_eq!(Script::of_payload(b"\xff"), None);
    }
}
