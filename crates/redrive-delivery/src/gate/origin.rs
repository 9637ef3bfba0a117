//! The rules of one gate, over data: who may enter, and what an outcome changes.

use std::time::Duration;

use redrive_core::Chance;
use tokio::time::Instant;

use super::limit::Limit;
use super::waiting::Waiting;
use super::window::{Judgement, Window};
use super::{
    CLOSE_AFTER_FAILURES, HOLD_LONGEST, Hold, HoldKind, OriginState, OriginStatus, PROBE_FIRST,
    PROBE_LONGEST, Signal, Turn,
};

/// The shortest and the longest wait for a place at an open gate.
const QUEUE_SHORTEST: Duration = Duration::from_millis(5);
const QUEUE_LONGEST: Duration = Duration::from_secs(2);
/// The shortest wait while a probe is under way.
const PROBING_SHORTEST: Duration = Duration::from_millis(50);
/// The share of time that each parked task adds to the spread of their return.
const SPREAD_PER_TASK: Duration = Duration::from_millis(2);
/// What a call is taken to last before the first one ended.
const LATENCY_UNKNOWN: Duration = Duration::from_millis(10);
/// The weight of the newest call in the smoothed duration.
const LATENCY_WEIGHT: f64 = 0.2;
/// Fewer outcomes than this since the last judgement do not overrule it.
const OUTCOMES_TO_OVERRULE: u32 = 4;

/// One origin's gate.
#[derive(Debug)]
pub(super) struct Gate {
    phase: Phase,
    held_until: Option<Instant>,
    limit: Limit,
    in_flight: u32,
    retries_in_flight: u32,
    /// Counts halvings and openings: a call begun before the last one must not be judged again.
    round: u64,
    window: Window,
    judgement: Judgement,
    failures: u32,
    latency_ms: Option<f64>,
    waiting: Waiting,
    /// When the last one in the queue of the parked has its turn.
    queue_end: Instant,
    last_used: Instant,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Open,
    Closed { since: Instant, until: Instant, interval: Duration },
    Probing { since: Instant, until: Instant, interval: Duration },
}

/// The right to one call, as the gate knows it.
#[derive(Debug)]
pub(super) struct Pass {
    turn: Turn,
    path: u64,
    round: u64,
    probe: bool,
    /// Drawn on entering, so that leaving needs no chance.
    luck: f64,
}

/// What a gate says to who wants to enter.
#[derive(Debug)]
pub(super) enum Decision {
    Go(Pass),
    Park { wait: Duration, hold: Hold },
}

impl Gate {
    /// A gate of an origin that nobody has called yet.
    pub(super) fn new(limit_max: u32, now: Instant) -> Self {
        Self {
            phase: Phase::Open,
            held_until: None,
            limit: Limit::new(limit_max),
            in_flight: 0,
            retries_in_flight: 0,
            round: 0,
            window: Window::default(),
            judgement: Judgement::Works,
            failures: 0,
            latency_ms: None,
            waiting: Waiting::default(),
            queue_end: now,
            last_used: now,
        }
    }

    /// Lets a call in, or says when to come back.
    pub(super) fn enter(&mut self, turn: Turn, path: u64, now: Instant, chance: &mut dyn Chance) -> Decision {
        self.last_used = now;
        self.waiting.arrive(turn, now);
        let luck = chance.unit();
        match self.obstacle(turn, now) {
            None => Decision::Go(self.admit(turn, path, luck)),
            Some(hold) => {
                let wait = self.wait(hold, turn, luck, now);
                self.waiting.park(turn, wait, now);
                Decision::Park { wait, hold }
            }
        }
    }

    /// Takes note of what came of a call.
    pub(super) fn leave(&mut self, pass: &Pass, signal: Signal, took: Duration, now: Instant) {
        self.release(pass);
        self.last_used = now;
        self.smooth(took);
        match signal {
            Signal::Success => {
                self.answer(pass, now);
                self.limit.succeed(now);
            }
            Signal::Alive => self.answer(pass, now),
            Signal::Struggle(hold) => {
                self.hold(hold, now);
                self.fail(pass, now);
            }
        }
    }

    /// Frees the place of a call that was given up, without judging. After a probe another may go at once.
    pub(super) fn abandon(&mut self, pass: &Pass) {
        self.release(pass);
        if let (true, Phase::Probing { since, until, interval }) = (pass.probe, self.phase) {
            self.phase = Phase::Closed { since, until, interval };
        }
    }

    /// What would hold back a task that comes now.
    pub(super) fn obstacle(&self, turn: Turn, now: Instant) -> Option<Hold> {
        let hold = |kind, opens_in| Some(Hold { kind, opens_in });
        if let Some(until) = self.held_until.filter(|until| *until > now) {
            return hold(HoldKind::RetryAfter, until - now);
        }
        match self.phase {
            Phase::Closed { until, .. } if until > now => hold(HoldKind::Closed, until - now),
            Phase::Closed { .. } => None,
            Phase::Probing { .. } => hold(HoldKind::Probing, self.latency()),
            Phase::Open if self.in_flight >= self.limit.calls() => hold(HoldKind::Full, self.gap()),
            Phase::Open if turn == Turn::Retry && self.retries_must_yield(now) => {
                hold(HoldKind::RetriesYield, self.gap())
            }
            Phase::Open => None,
        }
    }

    /// What is known, for people.
    pub(super) fn status(&self, origin: &str, now: Instant) -> OriginStatus {
        let held = self.held_until.filter(|until| *until > now);
        let (state, since, until) = match self.phase {
            Phase::Open => (OriginState::Open, None, None),
            Phase::Closed { since, until, .. } => (OriginState::Closed, Some(since), Some(until)),
            Phase::Probing { since, .. } => (OriginState::Probing, Some(since), None),
        };
        let (answered, failed) = self.window.counts();
        OriginStatus {
            origin: origin.to_owned(),
            state: if held.is_some() { OriginState::Held } else { state },
            limit: self.limit.calls(),
            in_flight: self.in_flight,
            waiting: self.waiting.count(),
            answered,
            failed,
            latency: self.latency_ms.map(|_| self.latency()),
            closed_for: since.map(|since| now.saturating_duration_since(since)),
            opens_in: held.max(until).map(|until| until.saturating_duration_since(now)),
        }
    }

    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Whether it would be missed last, and when it was used last: what is forgotten first sorts first.
    pub(super) fn worth(&self, now: Instant) -> (bool, Instant) {
        let open = matches!(self.phase, Phase::Open) && self.held_until.is_none_or(|until| until <= now);
        (!open, self.last_used)
    }

    fn retries_must_yield(&self, now: Instant) -> bool {
        self.retries_in_flight >= (self.limit.calls() / 2).max(1) && self.waiting.firsts_soon(now)
    }

    fn admit(&mut self, turn: Turn, path: u64, luck: f64) -> Pass {
        let probe = match self.phase {
            Phase::Closed { since, until, interval } => {
                self.phase = Phase::Probing { since, until, interval };
                true
            }
            Phase::Open | Phase::Probing { .. } => false,
        };
        self.in_flight += 1;
        self.retries_in_flight += u32::from(turn == Turn::Retry);
        if self.in_flight >= self.limit.calls() {
            self.limit.press();
        }
        Pass { turn, path, round: self.round, probe, luck }
    }

    fn release(&mut self, pass: &Pass) {
        self.in_flight -= 1;
        self.retries_in_flight -= u32::from(pass.turn == Turn::Retry);
    }

    fn answer(&mut self, pass: &Pass, now: Instant) {
        self.failures = 0;
        match self.phase {
            Phase::Open => {}
            Phase::Closed { .. } | Phase::Probing { .. } => self.open(now),
        }
        self.window.answered(pass.path, now);
        self.judge(now);
    }

    fn fail(&mut self, pass: &Pass, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        match self.phase {
            Phase::Probing { since, interval, .. } if pass.probe => {
                self.close(since, (2 * interval).min(PROBE_LONGEST), pass.luck, now);
            }
            // A call from before it closed: its end is no news.
            Phase::Closed { .. } | Phase::Probing { .. } => {}
            Phase::Open => {
                if pass.round == self.round {
                    self.window.failed(pass.path, now);
                    self.judge(now);
                }
                if self.is_dead(now) {
                    self.close(now, PROBE_FIRST, pass.luck, now);
                }
            }
        }
    }

    fn judge(&mut self, now: Instant) {
        let Some(judgement) = self.window.close(self.limit.calls(), now) else { return };
        self.judgement = judgement;
        match judgement {
            Judgement::Works => self.limit.prove(),
            Judgement::Struggles => self.round += u64::from(self.limit.halve(now)),
        }
    }

    /// At the floor, many failures without one answer, and not of one path alone.
    fn is_dead(&self, now: Instant) -> bool {
        let judgement =
            if self.window.len() < OUTCOMES_TO_OVERRULE { self.judgement } else { self.window.judge(now) };
        self.limit.calls() == 1 && self.failures >= CLOSE_AFTER_FAILURES && judgement == Judgement::Struggles
    }

    fn close(&mut self, since: Instant, interval: Duration, luck: f64, now: Instant) {
        let until = now + interval.mul_f64(0.8 + 0.4 * luck);
        self.phase = Phase::Closed { since, until, interval };
    }

    fn open(&mut self, now: Instant) {
        self.phase = Phase::Open;
        self.window = Window::default();
        self.judgement = Judgement::Works;
        self.queue_end = now;
        self.limit.begin_again(now);
        self.round += 1;
    }

    fn hold(&mut self, hold: Option<Duration>, now: Instant) {
        let until = hold.map(|hold| now + hold.min(HOLD_LONGEST));
        self.held_until = self.held_until.max(until);
    }

    fn smooth(&mut self, took: Duration) {
        let ms = took.as_secs_f64() * 1e3;
        self.latency_ms = Some(self.latency_ms.map_or(ms, |old| old + LATENCY_WEIGHT * (ms - old)));
    }

    fn latency(&self) -> Duration {
        self.latency_ms.map_or(LATENCY_UNKNOWN, |ms| Duration::from_secs_f64(ms / 1e3))
    }

    /// The mean time from one free place to the next.
    fn gap(&self) -> Duration {
        self.latency() / self.limit.calls()
    }

    fn wait(&mut self, hold: Hold, turn: Turn, luck: f64, now: Instant) -> Duration {
        match hold.kind {
            // Retries have more than their half and get no more: the next places are for the first attempts.
            HoldKind::Full if turn == Turn::First && 2 * self.retries_in_flight > self.limit.calls() => {
                self.limit.press();
                self.latency().mul_f64(0.5 + luck).clamp(QUEUE_SHORTEST, QUEUE_LONGEST)
            }
            HoldKind::Full | HoldKind::RetriesYield => {
                self.limit.press();
                self.queue(luck, now)
            }
            HoldKind::RetryAfter => hold.opens_in + self.spread(hold.opens_in).mul_f64(luck),
            HoldKind::Closed => hold.opens_in + self.spread(self.interval()).mul_f64(luck),
            HoldKind::Probing => {
                self.spread(self.interval()).mul_f64(0.25 + 0.75 * luck).max(PROBING_SHORTEST)
            }
        }
    }

    /// The turn of the last one in the queue; beyond the longest wait, any time in its second half.
    fn queue(&mut self, luck: f64, now: Instant) -> Duration {
        let end = self.queue_end.max(now) + self.gap();
        self.queue_end = end.min(now + QUEUE_LONGEST);
        let wait = self.queue_end - now;
        if wait >= QUEUE_LONGEST {
            return QUEUE_LONGEST.mul_f64(0.5 + 0.5 * luck);
        }
        wait.mul_f64(0.75 + 0.5 * luck).max(QUEUE_SHORTEST)
    }

    /// Over how long those who wait come back: the more they are and the longer it lasts, the longer.
    fn spread(&self, interval: Duration) -> Duration {
        let tasks = u32::try_from(self.waiting.count()).unwrap_or(u32::MAX);
        SPREAD_PER_TASK.saturating_mul(tasks).clamp(interval / 10, interval)
    }

    fn interval(&self) -> Duration {
        match self.phase {
            Phase::Open => PROBE_FIRST,
            Phase::Closed { interval, .. } | Phase::Probing { interval, .. } => interval,
        }
    }
}

#[cfg(test)]
mod tests;
