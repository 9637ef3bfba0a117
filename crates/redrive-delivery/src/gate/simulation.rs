//! Thousands of tasks, an origin that goes down, and simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Admission, GateRules, Gates, Permit, Signal, Turn};

const CALL: Duration = Duration::from_millis(20);

/// What a simulation saw.
#[derive(Debug, Default)]
struct Report {
    calls_while_down: usize,
    /// Calls in each second after the start.
    calls: Vec<usize>,
    delivered: usize,
    parks: usize,
    parks_worst: u32,
    finished: Duration,
    /// Failed calls, and the delays of tasks that were delivered at their first attempt.
    failed: usize,
    first_delays: Vec<Duration>,
}

struct Task {
    turn: Turn,
    failures: i32,
    parks: u32,
    path: usize,
    due: Duration,
}

/// A world of tasks for one origin.
struct World {
    gates: Gates,
    start: Instant,
    dice: fastrand::Rng,
    tasks: Vec<Task>,
    /// What happens next: a task comes, or its call ends.
    events: BinaryHeap<Reverse<(Duration, usize)>>,
    calling: Vec<Option<Permit>>,
    under_way: usize,
    report: Report,
}

impl World {
    /// `count` tasks that come due over the first `over`, on as many paths as given.
    fn new(count: usize, over: Duration, paths: usize, seed: u64) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut task = |at: usize| {
            let due = over.mul_f64(dice.f64());
            Task { turn: Turn::First, failures: 0, parks: 0, path: at % paths, due }
        };
        let tasks: Vec<Task> = (0..count).map(&mut task).collect();
        Self {
            gates: Gates::new(GateRules::default()),
            start: Instant::now(),
            events: tasks.iter().enumerate().map(|(at, task)| Reverse((task.due, at))).collect(),
            dice,
            tasks,
            calling: (0..count).map(|_| None).collect(),
            under_way: 0,
            report: Report::default(),
        }
    }

    /// Runs until every task is delivered; `down` says, from the time and the calls under way, whether calls fail.
    fn run(mut self, down: impl Fn(Duration, usize) -> bool) -> Report {
        while let Some(Reverse((now, task))) = self.events.pop() {
            match self.calling[task].take() {
                None => self.come(task, now, &down),
                Some(permit) => self.end(task, permit, now, &down),
            }
            assert!(now < Duration::from_secs(3_600), "does not end: {:?}", self.report);
        }
        self.report
    }

    fn come(&mut self, task: usize, now: Duration, down: &impl Fn(Duration, usize) -> bool) {
        let Task { turn, path, .. } = self.tasks[task];
        let dice = &mut self.dice;
        let path = format!("/{path}");
        match self.gates.enter("http://o:80", &path, turn, self.start + now, &mut || dice.f64()) {
            Admission::Go(permit) => {
                self.calling[task] = Some(permit);
                self.under_way += 1;
                self.count_call(now, down(now, self.under_way));
                self.events.push(Reverse((now + CALL, task)));
            }
            Admission::Park { wait, .. } => {
                self.report.parks += 1;
                self.tasks[task].parks += 1;
                self.report.parks_worst = self.report.parks_worst.max(self.tasks[task].parks);
                self.events.push(Reverse((now + wait, task)));
            }
        }
    }

    fn end(&mut self, task: usize, permit: Permit, now: Duration, down: &impl Fn(Duration, usize) -> bool) {
        let failed = down(now, self.under_way);
        self.under_way -= 1;
        let signal = if failed { Signal::Struggle(None) } else { Signal::Success };
        permit.leave(signal, CALL, self.start + now);
        if failed {
            self.report.failed += 1;
            let task_state = &mut self.tasks[task];
            task_state.turn = Turn::Retry;
            let backoff = Duration::from_secs(1).mul_f64(2_f64.powi(task_state.failures.min(6)));
            task_state.failures += 1;
            self.events.push(Reverse((now + backoff.mul_f64(self.dice.f64()), task)));
        } else {
            self.report.delivered += 1;
            self.report.finished = now;
            if self.tasks[task].turn == Turn::First {
                self.report.first_delays.push(now - self.tasks[task].due);
            }
        }
    }

    fn count_call(&mut self, now: Duration, down: bool) {
        let second = now.as_secs() as usize;
        self.report.calls.resize(self.report.calls.len().max(second + 1), 0);
        self.report.calls[second] += 1;
        self.report.calls_while_down += usize::from(down);
    }
}

/// Each second at most doubles the one before, give or take a second's calls of a single place.
fn assert_ramp(calls: &[usize]) {
    for pair in calls.windows(2) {
        assert!(pair[1] <= 2 * pair[0] + 100, "from {} to {} calls in a second: {calls:?}", pair[0], pair[1]);
    }
}

#[test]
fn an_outage_of_thirty_seconds_under_five_thousand_tasks() {
    for (seed, paths) in [(1, 1), (2, 1), (3, 7), (4, 5_000)] {
        let report = World::new(5_000, Duration::from_secs(1), paths, seed).run(|now, _| now.as_secs() < 30);
        assert_eq!(report.delivered, 5_000);
        assert!(report.calls_while_down <= 100, "{} calls while down", report.calls_while_down);
        assert!(report.finished < Duration::from_secs(75), "finished after {:?}", report.finished);
        assert!(report.parks <= 30 * 5_000, "{} parks", report.parks);
        assert!(report.parks_worst <= 100, "{} parks of one task", report.parks_worst);
        assert_ramp(&report.calls[30..]);
    }
}

#[test]
fn an_origin_that_fails_in_the_middle_recovers_to_what_it_bore() {
    let down = |now: Duration, _| (5..15).contains(&now.as_secs());
    let report = World::new(20_000, Duration::from_secs(30), 3, 5).run(down);
    assert_eq!(report.delivered, 20_000);
    assert!(report.calls_while_down <= 150, "{} calls while down", report.calls_while_down);
    assert_ramp(&report.calls[5..]);
    assert!(report.finished < Duration::from_secs(60), "finished after {:?}", report.finished);
}

#[test]
fn a_healthy_origin_is_kept_busy() {
    let report = World::new(20_000, Duration::from_millis(1), 1, 6).run(|_, _| false);
    // 64 calls of 20 ms make 3,200 a second: at best 6.25 s.
    assert!(report.finished < Duration::from_secs(9), "finished after {:?}", report.finished);
}

#[test]
fn a_lone_task_is_not_kept_waiting_for_a_crowd() {
    for seed in 0..20 {
        let report = World::new(1, Duration::ZERO, 1, seed).run(|now, _| now.as_secs() < 3);
        assert!(report.finished < Duration::from_secs(20), "finished after {:?}", report.finished);
    }
}

#[test]
fn an_origin_that_bears_twenty_calls_is_given_about_as_many() {
    let report = World::new(20_000, Duration::from_millis(1), 1, 7).run(|_, under_way| under_way > 20);
    assert_eq!(report.delivered, 20_000);
    // 20 calls of 20 ms make 1,000 a second: at best 20 s.
    assert!(report.finished < Duration::from_secs(40), "finished after {:?}", report.finished);
    assert!(report.failed < 4_000, "{} calls failed", report.failed);
}

#[test]
fn fresh_tasks_get_through_beside_a_pile_of_retries() {
    let mut world = World::new(10_000, Duration::from_millis(1), 1, 8);
    for (at, task) in world.tasks.iter_mut().enumerate() {
        match at {
            // Two hundred a second come fresh, beside as many retries as there are places for seconds.
            0..1_000 => task.due = Duration::from_millis(5 * at as u64),
            _ => task.turn = Turn::Retry,
        }
    }
    world.gates = Gates::new(GateRules::default().with_origin_concurrency(16));
    world.events = world.tasks.iter().enumerate().map(|(at, task)| Reverse((task.due, at))).collect();
    let mut report = world.run(|_, _| false);
    report.first_delays.sort();
    let (late, worst) = (report.first_delays[950], report.first_delays[999]);
    assert!(late < Duration::from_millis(100), "one in twenty fresh tasks waits for more than {late:?}");
    assert!(worst < Duration::from_secs(2), "a fresh task waits for {worst:?}");
}
