//! The gate of one origin, by itself and under a clock that is told.

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
