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
mod tests {
    use super::*;

    const CALL: Duration = Duration::from_millis(20);
    const DOWN: Signal = Signal::Struggle(None);

    /// A gate with its own time.
    struct Play {
        gate: Gate,
        now: Instant,
    }

    impl Play {
        fn new(limit_max: u32) -> Self {
            let now = Instant::now();
            Self { gate: Gate::new(limit_max, now), now }
        }

        fn enter(&mut self, turn: Turn, path: u64) -> Decision {
            self.gate.enter(turn, path, self.now, &mut || 0.5)
        }

        /// Lets in as many first attempts as go.
        fn fill(&mut self, path: u64) -> Vec<Pass> {
            std::iter::from_fn(|| match self.enter(Turn::First, path) {
                Decision::Go(pass) => Some(pass),
                Decision::Park { .. } => None,
            })
            .take(1_000)
            .collect()
        }

        fn go(&mut self) -> Pass {
            match self.enter(Turn::First, 1) {
                Decision::Go(pass) => pass,
                Decision::Park { hold, .. } => panic!("held back: {hold:?}"),
            }
        }

        fn held(&mut self, turn: Turn) -> Option<HoldKind> {
            match self.enter(turn, 1) {
                Decision::Go(pass) => {
                    self.gate.abandon(&pass);
                    None
                }
                Decision::Park { hold, .. } => Some(hold.kind),
            }
        }

        fn end(&mut self, passes: Vec<Pass>, signal: Signal) {
            self.now += CALL;
            for pass in passes {
                self.gate.leave(&pass, signal, CALL, self.now);
            }
        }

        /// One full round of calls with the same end; how many they were.
        fn round(&mut self, signal: Signal) -> usize {
            let passes = self.fill(1);
            let count = passes.len();
            self.end(passes, signal);
            count
        }

        fn close(&mut self) {
            for _ in 0..100 {
                if !matches!(self.gate.phase, Phase::Open) {
                    return;
                }
                self.round(DOWN);
            }
            panic!("still open: {:?}", self.gate);
        }
    }

    #[test]
    fn grows_while_calls_succeed_and_the_limit_is_used() {
        let mut play = Play::new(64);
        assert_eq!([(); 4].map(|()| play.round(Signal::Success)), [16, 32, 64, 64]);
    }

    #[test]
    fn stays_when_the_limit_is_not_used() {
        let mut play = Play::new(64);
        for _ in 0..1_000 {
            let pass = play.go();
            play.end(vec![pass], Signal::Success);
        }
        assert_eq!(play.gate.limit.calls(), 16);
    }

    #[test]
    fn an_answer_that_is_no_success_neither_grows_nor_shrinks() {
        let mut play = Play::new(64);
        for _ in 0..100 {
            play.round(Signal::Alive);
        }
        assert_eq!(play.gate.limit.calls(), 16);
        play.close();
        play.now += Duration::from_secs(5);
        let probe = play.go();
        play.end(vec![probe], Signal::Alive);
        assert!(matches!(play.gate.phase, Phase::Open), "it answers, so it is alive");
    }

    #[test]
    fn a_window_that_mostly_fails_halves_once() {
        let mut play = Play::new(64);
        while play.gate.limit.calls() < 64 {
            play.round(Signal::Success);
        }
        // Calls begun before the halving are not held against the new limit.
        let early = play.fill(1);
        play.end(early, DOWN);
        assert_eq!(play.gate.limit.calls(), 32);
        let mut passes = play.fill(1);
        let late = passes.split_off(20);
        play.end(passes, DOWN);
        let more = play.fill(1);
        play.end(more, DOWN);
        assert_eq!(play.gate.limit.calls(), 16);
        play.end(late, DOWN);
        assert_eq!(play.gate.limit.calls(), 16);
    }

    #[test]
    fn a_window_that_fails_in_half_of_the_calls_halves_nothing() {
        let mut play = Play::new(16);
        for _ in 0..50 {
            let mut passes = play.fill(1);
            let good = passes.split_off(passes.len() / 2);
            play.end(passes, DOWN);
            play.end(good, Signal::Success);
        }
        assert_eq!(play.gate.limit.calls(), 16);
    }

    #[test]
    fn closes_at_the_floor_after_twenty_failures_without_a_success() {
        let mut play = Play::new(1);
        for _ in 0..19 {
            let pass = play.go();
            play.end(vec![pass], DOWN);
        }
        assert_eq!(play.held(Turn::First), None);
        let pass = play.go();
        play.end(vec![pass], Signal::Success);
        for _ in 0..19 {
            let pass = play.go();
            play.end(vec![pass], DOWN);
        }
        assert_eq!(play.held(Turn::First), None, "a success starts the count again");
        let pass = play.go();
        play.end(vec![pass], DOWN);
        assert_eq!(play.held(Turn::First), Some(HoldKind::Closed));
    }

    #[test]
    fn probes_after_one_second_and_doubles_to_sixty() {
        let mut play = Play::new(64);
        play.close();
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            play.now += Duration::from_secs(seconds) - CALL;
            assert_eq!(play.held(Turn::First), Some(HoldKind::Closed), "{seconds} s");
            play.now += CALL;
            let probe = play.go();
            assert_eq!(play.held(Turn::First), Some(HoldKind::Probing));
            play.gate.leave(&probe, DOWN, CALL, play.now);
        }
    }

    #[test]
    fn probe_times_are_spread() {
        let spans = [0.0, 0.999].map(|luck| {
            let mut play = Play::new(64);
            play.gate.close(play.now, Duration::from_secs(10), luck, play.now);
            play.gate.obstacle(Turn::First, play.now).unwrap().opens_in.as_millis()
        });
        assert_eq!(spans, [8_000, 11_996]);
    }

    #[test]
    fn opens_with_one_call_and_at_most_doubles_each_second() {
        let mut play = Play::new(64);
        for _ in 0..3 {
            play.round(Signal::Success);
        }
        play.close();
        play.now += Duration::from_secs(2);
        let probe = play.go();
        play.end(vec![probe], Signal::Success);
        assert_eq!(play.gate.limit.calls(), 1);
        let mut peaks = vec![];
        for _ in 0..7 {
            // Just less than a second.
            for _ in 0..49 {
                play.round(Signal::Success);
            }
            peaks.push(play.gate.limit.calls());
        }
        assert_eq!(peaks, [2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn a_dropped_probe_lets_another_go() {
        let mut play = Play::new(64);
        play.close();
        play.now += Duration::from_secs(1);
        let probe = play.go();
        assert_eq!(play.held(Turn::First), Some(HoldKind::Probing));
        play.gate.abandon(&probe);
        play.go();
        assert_eq!(play.held(Turn::First), Some(HoldKind::Probing));
    }

    #[test]
    fn a_late_success_opens_and_a_late_failure_says_nothing() {
        let mut play = Play::new(64);
        let (good, bad) = (play.go(), play.go());
        play.gate.close(play.now, PROBE_FIRST, 0.5, play.now);
        let until = play.gate.obstacle(Turn::First, play.now).unwrap().opens_in;
        play.gate.leave(&bad, DOWN, CALL, play.now);
        assert_eq!(play.gate.obstacle(Turn::First, play.now).unwrap().opens_in, until);
        play.gate.leave(&good, Signal::Success, CALL, play.now);
        assert_eq!((play.held(Turn::First), play.gate.limit.calls()), (None, 1));
    }

    #[test]
    fn retries_take_half_while_first_attempts_wait() {
        let mut play = Play::new(8);
        let retries = |play: &mut Play| {
            let mut passes = vec![];
            while let Decision::Go(pass) = play.enter(Turn::Retry, 1) {
                passes.push(pass);
            }
            let count = passes.len();
            passes.iter().for_each(|pass| play.gate.abandon(pass));
            count
        };
        assert_eq!(retries(&mut play), 8, "nobody else waits");
        let firsts = play.fill(1);
        firsts.iter().for_each(|pass| play.gate.abandon(pass));
        assert_eq!(retries(&mut play), 4, "one first attempt was parked");
        assert_eq!(play.held(Turn::First), None, "and finds a place");
        play.now += Duration::from_secs(10);
        assert_eq!(retries(&mut play), 8, "it is no longer expected");
    }

    #[test]
    fn retry_after_holds_the_whole_origin_for_an_hour_at_most() {
        let mut play = Play::new(64);
        let passes = [play.go(), play.go(), play.go()];
        let [first, second, third] = passes;
        play.gate.leave(&first, Signal::Struggle(Some(Duration::from_secs(30))), CALL, play.now);
        play.gate.leave(&second, Signal::Struggle(Some(Duration::from_secs(5))), CALL, play.now);
        play.now += Duration::from_secs(29);
        assert_eq!(play.held(Turn::Retry), Some(HoldKind::RetryAfter));
        assert_eq!(play.gate.status("o", play.now).state, OriginState::Held);
        play.now += Duration::from_secs(1);
        assert_eq!(play.held(Turn::Retry), None);
        play.gate.leave(&third, Signal::Struggle(Some(Duration::from_secs(31_536_000))), CALL, play.now);
        play.now += HOLD_LONGEST;
        assert_eq!(play.held(Turn::First), None);
    }

    #[test]
    fn a_path_that_fails_beside_one_that_works_neither_slows_nor_closes() {
        let mut play = Play::new(64);
        for turn in 0..5_000 {
            // Nineteen of twenty calls go to the path that fails.
            let path = u64::from(turn % 20 == 0);
            let Decision::Go(pass) = play.enter(Turn::First, path) else { panic!("held back at {turn}") };
            play.end(vec![pass], if path == 1 { Signal::Success } else { DOWN });
        }
        assert_eq!(play.gate.limit.calls(), 16);
    }

    #[test]
    fn an_origin_whose_paths_are_all_different_closes_too() {
        let mut play = Play::new(64);
        let mut path = 0;
        let mut calls = 0;
        for signal in [Signal::Success, DOWN] {
            for _ in 0..100 {
                path += 1;
                if let Decision::Go(pass) = play.enter(Turn::First, path) {
                    play.end(vec![pass], signal);
                    calls += 1;
                }
            }
        }
        assert!(matches!(play.gate.phase, Phase::Closed { .. }), "{calls} calls");
    }

    #[test]
    fn those_who_wait_come_back_spread_out() {
        let mut play = Play::new(64);
        play.close();
        let mut dice = fastrand::Rng::with_seed(7);
        let mut hundredths = [0; 200];
        for _ in 0..5_000 {
            let Decision::Park { wait, .. } = play.gate.enter(Turn::First, 1, play.now, &mut || dice.f64())
            else {
                panic!("closed");
            };
            hundredths[wait.as_millis() as usize / 10] += 1;
        }
        assert!(hundredths.iter().all(|count| *count < 200), "a herd: {hundredths:?}");
    }
}
