//! Thousands of tasks and an origin that fails, in simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tokio::time::Instant;

use super::{AttemptKind, EnterResult, GateRules, Gates, OriginHealth, Permit};

const CALL: Duration = Duration::from_millis(20);

/// The result of a simulation.
#[derive(Debug, Default)]
struct Report {
    calls_while_down: usize,
    /// Calls in each second after the start.
    calls: Vec<usize>,
    delivered: usize,
    holds: usize,
    holds_worst: u32,
    finished: Duration,
    /// The number of failed calls.
    failed: usize,
    /// The delays of tasks that were delivered at their first attempt.
    first_delays: Vec<Duration>,
}

struct Task {
    kind: AttemptKind,
    failures: i32,
    holds: u32,
    path: usize,
    due: Duration,
}

/// Tasks for one origin, and the gates that they pass.
struct Simulation {
    gates: Gates,
    start: Instant,
    random: fastrand::Rng,
    tasks: Vec<Task>,
    /// The next events by time: a task arrives, or its call ends.
    events: BinaryHeap<Reverse<(Duration, usize)>>,
    calling: Vec<Option<Permit>>,
    in_progress: usize,
    report: Report,
}

impl Simulation {
    /// Creates `count` tasks for `paths` paths of the origin. Their due times are spread over the first `over`.
    fn new(count: usize, over: Duration, paths: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut task = |at: usize| {
            let due = over.mul_f64(random.f64());
            Task { kind: AttemptKind::First, failures: 0, holds: 0, path: at % paths, due }
        };
        let tasks: Vec<Task> = (0..count).map(&mut task).collect();
        Self {
            gates: Gates::new(GateRules::default()),
            start: Instant::now(),
            events: tasks.iter().enumerate().map(|(at, task)| Reverse((task.due, at))).collect(),
            random,
            tasks,
            calling: (0..count).map(|_| None).collect(),
            in_progress: 0,
            report: Report::default(),
        }
    }

    /// Runs until every task is delivered; `down` decides by the time and the calls in progress whether calls fail.
    fn run(mut self, down: impl Fn(Duration, usize) -> bool) -> Report {
        while let Some(Reverse((now, task))) = self.events.pop() {
            match self.calling[task].take() {
                None => self.arrive(task, now, &down),
                Some(permit) => self.end(task, permit, now, &down),
            }
            assert!(now < Duration::from_secs(3_600), "the simulation does not end: {:?}", self.report);
        }
        self.report
    }

    fn arrive(&mut self, task: usize, now: Duration, down: &impl Fn(Duration, usize) -> bool) {
        let Task { kind, path, .. } = self.tasks[task];
        let random = &mut self.random;
        let path = format!("/{path}");
        match self.gates.enter("http://o:80", &path, kind, self.start + now, &mut || random.f64()) {
            EnterResult::Admitted(permit) => {
                self.calling[task] = Some(permit);
                self.in_progress += 1;
                self.count_call(now, down(now, self.in_progress));
                self.events.push(Reverse((now + CALL, task)));
            }
            EnterResult::Held { wait, .. } => {
                self.report.holds += 1;
                self.tasks[task].holds += 1;
                self.report.holds_worst = self.report.holds_worst.max(self.tasks[task].holds);
                self.events.push(Reverse((now + wait, task)));
            }
        }
    }

    fn end(&mut self, task: usize, permit: Permit, now: Duration, down: &impl Fn(Duration, usize) -> bool) {
        let failed = down(now, self.in_progress);
        self.in_progress -= 1;
        let health = if failed { OriginHealth::Struggling(None) } else { OriginHealth::Working };
        permit.report(health, CALL, self.start + now);
        if failed {
            self.report.failed += 1;
            let task_state = &mut self.tasks[task];
            task_state.kind = AttemptKind::Retry;
            let backoff = Duration::from_secs(1).mul_f64(2_f64.powi(task_state.failures.min(6)));
            task_state.failures += 1;
            self.events.push(Reverse((now + backoff.mul_f64(self.random.f64()), task)));
        } else {
            self.report.delivered += 1;
            self.report.finished = now;
            if self.tasks[task].kind == AttemptKind::First {
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

/// Asserts that the number of calls at most doubles from one second to the next, with a tolerance of 100 calls.
fn assert_ramp(calls: &[usize]) {
    for pair in calls.windows(2) {
        assert!(pair[1] <= 2 * pair[0] + 100, "from {} to {} calls in a second: {calls:?}", pair[0], pair[1]);
    }
}

#[test]
fn few_calls_are_made_in_an_outage_with_five_thousand_tasks() {
    for (seed, paths) in [(1, 1), (2, 1), (3, 7), (4, 5_000)] {
        let report =
            Simulation::new(5_000, Duration::from_secs(1), paths, seed).run(|now, _| now.as_secs() < 30);
        assert_eq!(report.delivered, 5_000);
        assert!(report.calls_while_down <= 100, "{} calls while down", report.calls_while_down);
        assert!(report.finished < Duration::from_secs(75), "finished after {:?}", report.finished);
        assert!(report.holds <= 30 * 5_000, "{} holds", report.holds);
        assert!(report.holds_worst <= 100, "{} holds of one task", report.holds_worst);
        assert_ramp(&report.calls[30..]);
    }
}

#[test]
fn the_limit_recovers_after_an_outage() {
    let down = |now: Duration, _| (5..15).contains(&now.as_secs());
    let report = Simulation::new(20_000, Duration::from_secs(30), 3, 5).run(down);
    assert_eq!(report.delivered, 20_000);
    assert!(report.calls_while_down <= 150, "{} calls while down", report.calls_while_down);
    assert_ramp(&report.calls[5..]);
    assert!(report.finished < Duration::from_secs(60), "finished after {:?}", report.finished);
}

#[test]
fn a_healthy_origin_is_kept_busy() {
    let report = Simulation::new(20_000, Duration::from_millis(1), 1, 6).run(|_, _| false);
    // 64 calls of 20 ms make 3,200 a second: at best 6.25 s.
    assert!(report.finished < Duration::from_secs(9), "finished after {:?}", report.finished);
}

#[test]
fn a_single_task_is_sent_soon_after_an_outage() {
    for seed in 0..20 {
        let report = Simulation::new(1, Duration::ZERO, 1, seed).run(|now, _| now.as_secs() < 3);
        assert!(report.finished < Duration::from_secs(20), "finished after {:?}", report.finished);
    }
}

#[test]
fn the_limit_adapts_to_an_origin_that_supports_twenty_calls() {
    let report =
        Simulation::new(20_000, Duration::from_millis(1), 1, 7).run(|_, in_progress| in_progress > 20);
    assert_eq!(report.delivered, 20_000);
    // 20 calls of 20 ms make 1,000 a second: at best 20 s.
    assert!(report.finished < Duration::from_secs(40), "finished after {:?}", report.finished);
    assert!(report.failed < 4_000, "{} calls failed", report.failed);
}

#[test]
fn first_attempts_are_not_delayed_by_many_retries() {
    let mut simulation = Simulation::new(10_000, Duration::from_millis(1), 1, 8);
    for (at, task) in simulation.tasks.iter_mut().enumerate() {
        match at {
            // 200 first attempts arrive per second, beside retries that use up the limit for several seconds.
            0..1_000 => task.due = Duration::from_millis(5 * at as u64),
            _ => task.kind = AttemptKind::Retry,
        }
    }
    simulation.gates = Gates::new(GateRules::default().with_origin_concurrency(16));
    simulation.events =
        simulation.tasks.iter().enumerate().map(|(at, task)| Reverse((task.due, at))).collect();
    let mut report = simulation.run(|_, _| false);
    report.first_delays.sort();
    let (late, worst) = (report.first_delays[950], report.first_delays[999]);
    assert!(late < Duration::from_millis(100), "p95 of the wait of first attempts: {late:?}");
    assert!(worst < Duration::from_secs(2), "longest wait of a first attempt: {worst:?}");
}
