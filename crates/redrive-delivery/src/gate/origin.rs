//! The rules of one gate: which calls it admits, and how their results change it.

use std::time::Duration;

use redrive_core::RandomSource;
use tokio::time::Instant;

use super::expected_returns::ExpectedReturns;
use super::limit::Limit;
use super::window::{Judgement, OutcomeWindow};
use super::{
    AttemptKind, BLOCK_AFTER_FAILURES, HOLD_LONGEST, Hold, HoldKind, OriginHealth, OriginState, OriginStatus,
    PROBE_FIRST, PROBE_LONGEST,
};

/// The shortest and the longest wait of a task that is held because the limit is reached.
const QUEUE_SHORTEST: Duration = Duration::from_millis(5);
const QUEUE_LONGEST: Duration = Duration::from_secs(2);
/// The shortest wait while a probe is in progress.
const PROBING_SHORTEST: Duration = Duration::from_millis(50);
/// The time by which each held task widens the interval over which held tasks return.
const SPREAD_PER_TASK: Duration = Duration::from_millis(2);
/// The assumed duration of a call before the first one has ended.
const LATENCY_UNKNOWN: Duration = Duration::from_millis(10);
/// The weight of the latest call in the smoothed duration.
const LATENCY_WEIGHT: f64 = 0.2;
/// The fewest outcomes since the last judgement that can overrule it.
const OUTCOMES_TO_OVERRULE: u32 = 4;

/// The gate of one origin.
#[derive(Debug)]
pub(super) struct Gate {
    phase: Phase,
    held_until: Option<Instant>,
    limit: Limit,
    in_flight: u32,
    retries_in_flight: u32,
    /// Counts changes of the limit. A call from before the last change is not counted against the new limit.
    round: u64,
    window: OutcomeWindow,
    judgement: Judgement,
    /// Failures since the last answer.
    failures: u32,
    latency_ms: Option<f64>,
    returns: ExpectedReturns,
    /// When the last task in the queue of held tasks may be sent.
    queue_end: Instant,
    last_used: Instant,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Passing,
    Blocked { since: Instant, until: Instant, interval: Duration },
    Probing { since: Instant, until: Instant, interval: Duration },
}

/// A call that the gate has admitted.
#[derive(Debug)]
pub(super) struct AdmittedCall {
    kind: AttemptKind,
    path: u64,
    round: u64,
    probe: bool,
    /// A random number that was drawn at admission, so that `leave` draws none.
    random: f64,
}

/// The decision about a call.
#[derive(Debug)]
pub(super) enum Decision {
    Admit(AdmittedCall),
    Hold { wait: Duration, hold: Hold },
}

impl Gate {
    /// The gate of an origin that has not been called yet.
    pub(super) fn new(limit_max: u32, now: Instant) -> Self {
        Self {
            phase: Phase::Passing,
            held_until: None,
            limit: Limit::new(limit_max),
            in_flight: 0,
            retries_in_flight: 0,
            round: 0,
            window: OutcomeWindow::default(),
            judgement: Judgement::Works,
            failures: 0,
            latency_ms: None,
            returns: ExpectedReturns::default(),
            queue_end: now,
            last_used: now,
        }
    }

    /// Admits a call, or holds it for a while.
    pub(super) fn enter(
        &mut self,
        kind: AttemptKind,
        path: u64,
        now: Instant,
        random_source: &mut dyn RandomSource,
    ) -> Decision {
        self.last_used = now;
        self.returns.remove_one(kind, now);
        let random = random_source.unit();
        match self.current_hold(kind, now) {
            None => Decision::Admit(self.admit(kind, path, random)),
            Some(hold) => {
                let wait = self.wait(hold, kind, random, now);
                self.returns.add(kind, wait, now);
                Decision::Hold { wait, hold }
            }
        }
    }

    /// Records the result of a call.
    pub(super) fn leave(&mut self, call: &AdmittedCall, health: OriginHealth, took: Duration, now: Instant) {
        self.release(call);
        self.last_used = now;
        self.update_latency(took);
        match health {
            OriginHealth::Working => {
                self.answer(call, now);
                self.limit.grow_after_success(now);
            }
            OriginHealth::Answering => self.answer(call, now),
            OriginHealth::Struggling(hold) => {
                self.hold(hold, now);
                self.fail(call, now);
            }
        }
    }

    /// Forgets a call that was dropped. After a dropped probe another one may be sent at once.
    pub(super) fn abandon(&mut self, call: &AdmittedCall) {
        self.release(call);
        if let (true, Phase::Probing { since, until, interval }) = (call.probe, self.phase) {
            self.phase = Phase::Blocked { since, until, interval };
        }
    }

    /// Returns why a call would be held now, or none if it would be admitted.
    pub(super) fn current_hold(&self, kind: AttemptKind, now: Instant) -> Option<Hold> {
        let hold = |kind, ends_in| Some(Hold { kind, ends_in });
        if let Some(until) = self.held_until.filter(|until| *until > now) {
            return hold(HoldKind::RetryAfter, until - now);
        }
        match self.phase {
            Phase::Blocked { until, .. } if until > now => hold(HoldKind::Blocked, until - now),
            Phase::Blocked { .. } => None,
            Phase::Probing { .. } => hold(HoldKind::Probing, self.latency()),
            Phase::Passing if self.in_flight >= self.limit.calls() => {
                hold(HoldKind::Full, self.call_interval())
            }
            Phase::Passing if kind == AttemptKind::Retry && self.retries_must_yield(now) => {
                hold(HoldKind::RetriesYield, self.call_interval())
            }
            Phase::Passing => None,
        }
    }

    /// The state as operators see it.
    pub(super) fn status(&self, origin: &str, now: Instant) -> OriginStatus {
        let held = self.held_until.filter(|until| *until > now);
        let (state, since, until) = match self.phase {
            Phase::Passing => (OriginState::Passing, None, None),
            Phase::Blocked { since, until, .. } => (OriginState::Blocked, Some(since), Some(until)),
            Phase::Probing { since, .. } => (OriginState::Probing, Some(since), None),
        };
        let (answered, failed) = self.window.counts();
        OriginStatus {
            origin: origin.to_owned(),
            state: if held.is_some() { OriginState::Held } else { state },
            limit: self.limit.calls(),
            in_flight: self.in_flight,
            waiting: self.returns.count(),
            answered,
            failed,
            latency: self.latency_ms.map(|_| self.latency()),
            blocked_for: since.map(|since| now.saturating_duration_since(since)),
            next_call_in: held.max(until).map(|until| until.saturating_duration_since(now)),
        }
    }

    /// Whether no call is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// The order in which gates are dropped from memory: passing gates first, least recently used first.
    pub(super) fn eviction_rank(&self, now: Instant) -> (bool, Instant) {
        let passing =
            matches!(self.phase, Phase::Passing) && self.held_until.is_none_or(|until| until <= now);
        (!passing, self.last_used)
    }

    fn retries_must_yield(&self, now: Instant) -> bool {
        self.retries_in_flight >= (self.limit.calls() / 2).max(1) && self.returns.has_first_attempts_soon(now)
    }

    fn admit(&mut self, kind: AttemptKind, path: u64, random: f64) -> AdmittedCall {
        let probe = match self.phase {
            Phase::Blocked { since, until, interval } => {
                self.phase = Phase::Probing { since, until, interval };
                true
            }
            Phase::Passing | Phase::Probing { .. } => false,
        };
        self.in_flight += 1;
        self.retries_in_flight += u32::from(kind == AttemptKind::Retry);
        if self.in_flight >= self.limit.calls() {
            self.limit.mark_reached();
        }
        AdmittedCall { kind, path, round: self.round, probe, random }
    }

    fn release(&mut self, call: &AdmittedCall) {
        self.in_flight -= 1;
        self.retries_in_flight -= u32::from(call.kind == AttemptKind::Retry);
    }

    fn answer(&mut self, call: &AdmittedCall, now: Instant) {
        self.failures = 0;
        match self.phase {
            Phase::Passing => {}
            Phase::Blocked { .. } | Phase::Probing { .. } => self.unblock(now),
        }
        self.window.add_answer(call.path, now);
        self.judge(now);
    }

    fn fail(&mut self, call: &AdmittedCall, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        match self.phase {
            Phase::Probing { since, interval, .. } if call.probe => {
                self.block(since, (2 * interval).min(PROBE_LONGEST), call.random, now);
            }
            // The call started before the gate blocked, so its failure says nothing new.
            Phase::Blocked { .. } | Phase::Probing { .. } => {}
            Phase::Passing => {
                if call.round == self.round {
                    self.window.add_failure(call.path, now);
                    self.judge(now);
                }
                if self.is_down(now) {
                    self.block(now, PROBE_FIRST, call.random, now);
                }
            }
        }
    }

    fn judge(&mut self, now: Instant) {
        let Some(judgement) = self.window.judge_if_full(self.limit.calls(), now) else { return };
        self.judgement = judgement;
        match judgement {
            Judgement::Works => self.limit.confirm(),
            Judgement::Struggles => self.round += u64::from(self.limit.halve(now)),
        }
    }

    /// Whether the origin is down: the lowest limit, many failures without an answer, and not of one path only.
    fn is_down(&self, now: Instant) -> bool {
        let judgement =
            if self.window.len() < OUTCOMES_TO_OVERRULE { self.judgement } else { self.window.judge(now) };
        self.limit.calls() == 1 && self.failures >= BLOCK_AFTER_FAILURES && judgement == Judgement::Struggles
    }

    fn block(&mut self, since: Instant, interval: Duration, random: f64, now: Instant) {
        let until = now + interval.mul_f64(0.8 + 0.4 * random);
        self.phase = Phase::Blocked { since, until, interval };
    }

    fn unblock(&mut self, now: Instant) {
        self.phase = Phase::Passing;
        self.window = OutcomeWindow::default();
        self.judgement = Judgement::Works;
        self.queue_end = now;
        self.limit.restart(now);
        self.round += 1;
    }

    fn hold(&mut self, hold: Option<Duration>, now: Instant) {
        let until = hold.map(|hold| now + hold.min(HOLD_LONGEST));
        self.held_until = self.held_until.max(until);
    }

    fn update_latency(&mut self, took: Duration) {
        let ms = took.as_secs_f64() * 1e3;
        self.latency_ms = Some(self.latency_ms.map_or(ms, |old| old + LATENCY_WEIGHT * (ms - old)));
    }

    fn latency(&self) -> Duration {
        self.latency_ms.map_or(LATENCY_UNKNOWN, |ms| Duration::from_secs_f64(ms / 1e3))
    }

    /// The mean time between the ends of two calls.
    fn call_interval(&self) -> Duration {
        self.latency() / self.limit.calls()
    }

    fn wait(&mut self, hold: Hold, kind: AttemptKind, random: f64, now: Instant) -> Duration {
        match hold.kind {
            // Retries use more than their half and get no more, so the next calls are for first attempts.
            HoldKind::Full
                if kind == AttemptKind::First && 2 * self.retries_in_flight > self.limit.calls() =>
            {
                self.limit.mark_reached();
                self.latency().mul_f64(0.5 + random).clamp(QUEUE_SHORTEST, QUEUE_LONGEST)
            }
            HoldKind::Full | HoldKind::RetriesYield => {
                self.limit.mark_reached();
                self.queue_wait(random, now)
            }
            HoldKind::RetryAfter => hold.ends_in + self.spread(hold.ends_in).mul_f64(random),
            HoldKind::Blocked => hold.ends_in + self.spread(self.probe_interval()).mul_f64(random),
            HoldKind::Probing => {
                self.spread(self.probe_interval()).mul_f64(0.25 + 0.75 * random).max(PROBING_SHORTEST)
            }
        }
    }

    /// The wait until the end of the queue. If the queue is longer than the longest wait, a random time in its second half.
    fn queue_wait(&mut self, random: f64, now: Instant) -> Duration {
        let end = self.queue_end.max(now) + self.call_interval();
        self.queue_end = end.min(now + QUEUE_LONGEST);
        let wait = self.queue_end - now;
        if wait >= QUEUE_LONGEST {
            return QUEUE_LONGEST.mul_f64(0.5 + 0.5 * random);
        }
        wait.mul_f64(0.75 + 0.5 * random).max(QUEUE_SHORTEST)
    }

    /// The interval over which held tasks return. It grows with their number, within a tenth of `interval` and `interval`.
    fn spread(&self, interval: Duration) -> Duration {
        let tasks = u32::try_from(self.returns.count()).unwrap_or(u32::MAX);
        SPREAD_PER_TASK.saturating_mul(tasks).clamp(interval / 10, interval)
    }

    fn probe_interval(&self) -> Duration {
        match self.phase {
            Phase::Passing => PROBE_FIRST,
            Phase::Blocked { interval, .. } | Phase::Probing { interval, .. } => interval,
        }
    }
}

#[cfg(test)]
mod tests;
