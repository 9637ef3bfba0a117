//! The rules of one gate, with a manual clock.

use super::*;

const CALL: Duration = Duration::from_millis(20);
const DOWN: OriginHealth = OriginHealth::Struggling(None);

/// A gate and a manual clock.
struct GateFixture {
    gate: Gate,
    now: Instant,
}

impl GateFixture {
    fn new(limit_max: u32) -> Self {
        let now = Instant::now();
        Self { gate: Gate::new(limit_max, now), now }
    }

    fn enter(&mut self, kind: AttemptKind, path: u64) -> Decision {
        self.gate.enter(kind, path, self.now, &mut || 0.5)
    }

    /// Admits as many first attempts as the limit allows.
    fn fill(&mut self, path: u64) -> Vec<AdmittedCall> {
        std::iter::from_fn(|| match self.enter(AttemptKind::First, path) {
            Decision::Admit(call) => Some(call),
            Decision::Hold { .. } => None,
        })
        .take(1_000)
        .collect()
    }

    fn admit_one(&mut self) -> AdmittedCall {
        match self.enter(AttemptKind::First, 1) {
            Decision::Admit(call) => call,
            Decision::Hold { hold, .. } => panic!("the call was held: {hold:?}"),
        }
    }

    fn hold_kind(&mut self, kind: AttemptKind) -> Option<HoldKind> {
        match self.enter(kind, 1) {
            Decision::Admit(call) => {
                self.gate.abandon(&call);
                None
            }
            Decision::Hold { hold, .. } => Some(hold.kind),
        }
    }

    fn end_calls(&mut self, calls: Vec<AdmittedCall>, health: OriginHealth) {
        self.now += CALL;
        for call in calls {
            self.gate.leave(&call, health, CALL, self.now);
        }
    }

    /// Runs as many calls as the limit allows, all with the same result, and returns their number.
    fn round(&mut self, health: OriginHealth) -> usize {
        let calls = self.fill(1);
        let count = calls.len();
        self.end_calls(calls, health);
        count
    }

    fn block(&mut self) {
        for _ in 0..100 {
            if !matches!(self.gate.phase, Phase::Passing) {
                return;
            }
            self.round(DOWN);
        }
        panic!("the gate does not block: {:?}", self.gate);
    }
}

#[test]
fn the_limit_grows_while_calls_succeed_and_reach_it() {
    let mut fixture = GateFixture::new(64);
    assert_eq!([(); 4].map(|()| fixture.round(OriginHealth::Working)), [16, 32, 64, 64]);
}

#[test]
fn the_limit_stays_while_it_is_not_reached() {
    let mut fixture = GateFixture::new(64);
    for _ in 0..1_000 {
        let call = fixture.admit_one();
        fixture.end_calls(vec![call], OriginHealth::Working);
    }
    assert_eq!(fixture.gate.limit.calls(), 16);
}

#[test]
fn an_answer_without_success_does_not_change_the_limit() {
    let mut fixture = GateFixture::new(64);
    for _ in 0..100 {
        fixture.round(OriginHealth::Answering);
    }
    assert_eq!(fixture.gate.limit.calls(), 16);
    fixture.block();
    fixture.now += Duration::from_secs(5);
    let probe = fixture.admit_one();
    fixture.end_calls(vec![probe], OriginHealth::Answering);
    assert!(matches!(fixture.gate.phase, Phase::Passing), "an answer shows that the origin works");
}

#[test]
fn a_window_of_failures_halves_the_limit_once() {
    let mut fixture = GateFixture::new(64);
    while fixture.gate.limit.calls() < 64 {
        fixture.round(OriginHealth::Working);
    }
    // Calls from before the halving do not count against the new limit.
    let early = fixture.fill(1);
    fixture.end_calls(early, DOWN);
    assert_eq!(fixture.gate.limit.calls(), 32);
    let mut calls = fixture.fill(1);
    let late = calls.split_off(20);
    fixture.end_calls(calls, DOWN);
    let more = fixture.fill(1);
    fixture.end_calls(more, DOWN);
    assert_eq!(fixture.gate.limit.calls(), 16);
    fixture.end_calls(late, DOWN);
    assert_eq!(fixture.gate.limit.calls(), 16);
}

#[test]
fn a_window_with_half_of_its_calls_failed_does_not_halve_the_limit() {
    let mut fixture = GateFixture::new(16);
    for _ in 0..50 {
        let mut calls = fixture.fill(1);
        let good = calls.split_off(calls.len() / 2);
        fixture.end_calls(calls, DOWN);
        fixture.end_calls(good, OriginHealth::Working);
    }
    assert_eq!(fixture.gate.limit.calls(), 16);
}

#[test]
fn a_gate_at_its_lowest_limit_blocks_after_twenty_failures() {
    let mut fixture = GateFixture::new(1);
    for _ in 0..19 {
        let call = fixture.admit_one();
        fixture.end_calls(vec![call], DOWN);
    }
    assert_eq!(fixture.hold_kind(AttemptKind::First), None);
    let call = fixture.admit_one();
    fixture.end_calls(vec![call], OriginHealth::Working);
    for _ in 0..19 {
        let call = fixture.admit_one();
        fixture.end_calls(vec![call], DOWN);
    }
    assert_eq!(fixture.hold_kind(AttemptKind::First), None, "a success starts the count again");
    let call = fixture.admit_one();
    fixture.end_calls(vec![call], DOWN);
    assert_eq!(fixture.hold_kind(AttemptKind::First), Some(HoldKind::Blocked));
}

#[test]
fn the_wait_for_a_probe_is_one_second_and_doubles_up_to_sixty() {
    let mut fixture = GateFixture::new(64);
    fixture.block();
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        fixture.now += Duration::from_secs(seconds) - CALL;
        assert_eq!(fixture.hold_kind(AttemptKind::First), Some(HoldKind::Blocked), "{seconds} s");
        fixture.now += CALL;
        let probe = fixture.admit_one();
        assert_eq!(fixture.hold_kind(AttemptKind::First), Some(HoldKind::Probing));
        fixture.gate.leave(&probe, DOWN, CALL, fixture.now);
    }
}

#[test]
fn probe_times_are_spread() {
    let spans = [0.0, 0.999].map(|random| {
        let mut fixture = GateFixture::new(64);
        fixture.gate.block(fixture.now, Duration::from_secs(10), random, fixture.now);
        fixture.gate.current_hold(AttemptKind::First, fixture.now).unwrap().ends_in.as_millis()
    });
    assert_eq!(spans, [8_000, 11_996]);
}

#[test]
fn the_limit_restarts_at_one_and_at_most_doubles_each_second() {
    let mut fixture = GateFixture::new(64);
    for _ in 0..3 {
        fixture.round(OriginHealth::Working);
    }
    fixture.block();
    fixture.now += Duration::from_secs(2);
    let probe = fixture.admit_one();
    fixture.end_calls(vec![probe], OriginHealth::Working);
    assert_eq!(fixture.gate.limit.calls(), 1);
    let mut peaks = vec![];
    for _ in 0..7 {
        // Just less than a second.
        for _ in 0..49 {
            fixture.round(OriginHealth::Working);
        }
        peaks.push(fixture.gate.limit.calls());
    }
    assert_eq!(peaks, [2, 4, 8, 16, 32, 64, 64]);
}

#[test]
fn a_dropped_probe_allows_another_one() {
    let mut fixture = GateFixture::new(64);
    fixture.block();
    fixture.now += Duration::from_secs(1);
    let probe = fixture.admit_one();
    assert_eq!(fixture.hold_kind(AttemptKind::First), Some(HoldKind::Probing));
    fixture.gate.abandon(&probe);
    fixture.admit_one();
    assert_eq!(fixture.hold_kind(AttemptKind::First), Some(HoldKind::Probing));
}

#[test]
fn a_late_success_unblocks_and_a_late_failure_is_ignored() {
    let mut fixture = GateFixture::new(64);
    let (good, bad) = (fixture.admit_one(), fixture.admit_one());
    fixture.gate.block(fixture.now, PROBE_FIRST, 0.5, fixture.now);
    let until = fixture.gate.current_hold(AttemptKind::First, fixture.now).unwrap().ends_in;
    fixture.gate.leave(&bad, DOWN, CALL, fixture.now);
    assert_eq!(fixture.gate.current_hold(AttemptKind::First, fixture.now).unwrap().ends_in, until);
    fixture.gate.leave(&good, OriginHealth::Working, CALL, fixture.now);
    assert_eq!((fixture.hold_kind(AttemptKind::First), fixture.gate.limit.calls()), (None, 1));
}

#[test]
fn retries_use_half_of_the_limit_while_first_attempts_wait() {
    let mut fixture = GateFixture::new(8);
    let admitted_retries = |fixture: &mut GateFixture| {
        let mut calls = vec![];
        while let Decision::Admit(call) = fixture.enter(AttemptKind::Retry, 1) {
            calls.push(call);
        }
        let count = calls.len();
        calls.iter().for_each(|call| fixture.gate.abandon(call));
        count
    };
    assert_eq!(admitted_retries(&mut fixture), 8, "no first attempt waits");
    let firsts = fixture.fill(1);
    firsts.iter().for_each(|call| fixture.gate.abandon(call));
    assert_eq!(admitted_retries(&mut fixture), 4, "one first attempt is held");
    assert_eq!(fixture.hold_kind(AttemptKind::First), None, "the held first attempt is admitted");
    fixture.now += Duration::from_secs(10);
    assert_eq!(admitted_retries(&mut fixture), 8, "no first attempt is expected any more");
}

#[test]
fn retry_after_holds_the_whole_origin_for_an_hour_at_most() {
    let mut fixture = GateFixture::new(64);
    let calls = [fixture.admit_one(), fixture.admit_one(), fixture.admit_one()];
    let [first, second, third] = calls;
    fixture.gate.leave(&first, OriginHealth::Struggling(Some(Duration::from_secs(30))), CALL, fixture.now);
    fixture.gate.leave(&second, OriginHealth::Struggling(Some(Duration::from_secs(5))), CALL, fixture.now);
    fixture.now += Duration::from_secs(29);
    assert_eq!(fixture.hold_kind(AttemptKind::Retry), Some(HoldKind::RetryAfter));
    assert_eq!(fixture.gate.status("o", fixture.now).state, OriginState::Held);
    fixture.now += Duration::from_secs(1);
    assert_eq!(fixture.hold_kind(AttemptKind::Retry), None);
    fixture.gate.leave(
        &third,
        OriginHealth::Struggling(Some(Duration::from_secs(31_536_000))),
        CALL,
        fixture.now,
    );
    fixture.now += HOLD_LONGEST;
    assert_eq!(fixture.hold_kind(AttemptKind::First), None);
}

#[test]
fn one_failing_path_does_not_affect_the_gate_of_a_working_origin() {
    let mut fixture = GateFixture::new(64);
    for number in 0..5_000 {
        // Nineteen of twenty calls go to the path that fails.
        let path = u64::from(number % 20 == 0);
        let Decision::Admit(call) = fixture.enter(AttemptKind::First, path) else {
            panic!("call {number} was held")
        };
        fixture.end_calls(vec![call], if path == 1 { OriginHealth::Working } else { DOWN });
    }
    assert_eq!(fixture.gate.limit.calls(), 16);
}

#[test]
fn an_origin_whose_paths_are_all_different_is_blocked_too() {
    let mut fixture = GateFixture::new(64);
    let mut path = 0;
    let mut calls = 0;
    for health in [OriginHealth::Working, DOWN] {
        for _ in 0..100 {
            path += 1;
            if let Decision::Admit(call) = fixture.enter(AttemptKind::First, path) {
                fixture.end_calls(vec![call], health);
                calls += 1;
            }
        }
    }
    assert!(matches!(fixture.gate.phase, Phase::Blocked { .. }), "{calls} calls");
}

#[test]
fn held_tasks_return_spread_out() {
    let mut fixture = GateFixture::new(64);
    fixture.block();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut hundredths = [0; 200];
    for _ in 0..5_000 {
        let Decision::Hold { wait, .. } =
            fixture.gate.enter(AttemptKind::First, 1, fixture.now, &mut || rng.f64())
        else {
            panic!("a blocked gate admitted a call");
        };
        hundredths[wait.as_millis() as usize / 10] += 1;
    }
    assert!(hundredths.iter().all(|count| *count < 200), "too many tasks return at once: {hundredths:?}");
}
