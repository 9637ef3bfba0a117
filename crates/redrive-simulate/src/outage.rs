//! Many tasks become due while their target is down: the calls that the target receives, and how the tasks end.
//!
//! Each task is handled as in the worker: [`admit`] before a call, [`decide`] after it. The gates of the service are not part of the
//! experiment, so it shows the effect of the policies alone.

use std::time::Duration;

use redrive_core::{Outcome, Policy, Reason, Run, Timestamp, Verdict, admit, decide};
use serde::Serialize;

use crate::event_queue::EventQueue;
use crate::policies::NamedPolicy;
use crate::random::{NetworkDelay, SeededRandom};
use crate::target::Target;
use crate::timeline::Timeline;

/// The length of a step of the timeline.
const STEP_MS: u32 = 1_000;

/// The parameters of the experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct OutageExperiment {
    /// The number of tasks.
    pub tasks: u32,
    /// The tasks become due evenly over this time, from the start of the outage.
    pub arrivals: Duration,
    /// How long the target is down, from the start.
    pub down: Duration,
    /// The calls per second that the target accepts afterwards.
    pub capacity: u32,
    /// The delay of a message in one direction.
    pub network_delay: NetworkDelay,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for OutageExperiment {
    /// 10,000 tasks within a second, an outage of 30 s, 500 calls per second.
    fn default() -> Self {
        Self {
            tasks: 10_000,
            arrivals: Duration::from_secs(1),
            down: Duration::from_secs(30),
            capacity: 500,
            network_delay: NetworkDelay::default(),
            seed: 1,
        }
    }
}

/// The results of the experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The number of tasks.
    pub tasks: u32,
    /// The time over which the tasks became due.
    pub arrivals_ms: u64,
    /// How long the target was down.
    pub outage_ms: u64,
    /// The calls per second that the target accepted afterwards.
    pub capacity_per_second: u32,
    /// The seed.
    pub seed: u64,
    /// One row for each policy.
    pub rows: Vec<Row>,
}

/// The results of one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The name of the policy.
    pub policy: String,
    /// All calls.
    pub calls: u64,
    /// Calls while the target was down.
    pub calls_while_down: u64,
    /// Calls after the outage that the target refused because of its capacity.
    pub refused_over_capacity: u64,
    /// The most calls in one second after the outage.
    pub peak_per_second: u64,
    /// Tasks that succeeded.
    pub succeeded: u32,
    /// Tasks that died because they ran out of attempts.
    pub lost_to_attempts: u32,
    /// Tasks that died because their time budget ran out.
    pub lost_to_budget: u32,
    /// The time from the end of the outage to the last success; `None` if no task succeeded after it.
    pub drained_after_ms: Option<u64>,
    /// Calls per second.
    #[serde(skip)]
    pub calls_over_time: Timeline,
}

impl Report {
    /// The row of a policy.
    pub fn row(&self, policy: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.policy == policy)
    }
}

impl OutageExperiment {
    /// Runs the experiment for each policy.
    pub fn run(&self, policies: &[NamedPolicy]) -> Report {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let rows = (0..).zip(policies).map(|(part, named)| {
            let random = SeededRandom::new(self.seed, part, 0);
            OutageRun::new(self, named, random).run()
        });
        Report {
            tasks: self.tasks,
            arrivals_ms: ms(self.arrivals),
            outage_ms: ms(self.down),
            capacity_per_second: self.capacity,
            seed: self.seed,
            rows: rows.collect(),
        }
    }

    fn due_at(&self, task: u32) -> Duration {
        self.arrivals.mul_f64(f64::from(task) / f64::from(self.tasks.max(1)))
    }
}

/// An event of the task with this number.
enum Event {
    Claimed(usize),
    Called(usize),
    Answered(usize, Outcome),
}

/// The fields of a job that the engine reads.
#[derive(Clone, Copy)]
struct Task {
    attempt: u32,
    began_at: Timestamp,
    previous_wait: Option<Duration>,
}

struct OutageRun<'a> {
    policy: &'a Policy,
    delay: NetworkDelay,
    down: Duration,
    random: SeededRandom,
    target: Target,
    tasks: Vec<Task>,
    events: EventQueue<Event>,
    row: Row,
}

impl<'a> OutageRun<'a> {
    fn new(setup: &OutageExperiment, named: &'a NamedPolicy, random: SeededRandom) -> Self {
        let mut events = EventQueue::new();
        let mut tasks = Vec::with_capacity(setup.tasks as usize);
        for (number, task) in (0..setup.tasks).enumerate() {
            let due = setup.due_at(task);
            events.add(due, Event::Claimed(number));
            tasks.push(Task { attempt: 0, began_at: instant(due), previous_wait: None });
        }
        Self {
            policy: &named.policy,
            delay: setup.network_delay,
            down: setup.down,
            random,
            target: Target::new(setup.down, setup.capacity),
            tasks,
            events,
            row: Row::new(&named.name),
        }
    }

    fn run(mut self) -> Row {
        while let Some((now, event)) = self.events.next() {
            match event {
                Event::Claimed(task) => self.claim(now, task),
                Event::Called(task) => self.call(now, task),
                Event::Answered(task, outcome) => self.settle(now, task, &outcome),
            }
        }
        self.row.peak_per_second = self.row.calls_over_time.peak_from(self.down) as u64;
        self.row
    }

    fn run_of(&self, task: usize) -> Run<'a> {
        let Task { attempt, began_at, previous_wait } = self.tasks[task];
        Run { policy: self.policy, attempt, began_at, previous_wait, estimated_call: Duration::ZERO }
    }

    /// Charges the attempt, and checks the time budget before anything is sent.
    fn claim(&mut self, now: Duration, task: usize) {
        self.tasks[task].attempt += 1;
        match admit(&self.run_of(task), instant(now)) {
            Some(verdict) => self.apply(now, task, &verdict),
            None => {
                let arrives = now + self.delay.sample(&mut self.random);
                self.events.add(arrives, Event::Called(task));
            }
        }
    }

    fn call(&mut self, now: Duration, task: usize) {
        let outcome = self.target.call(now);
        self.row.count(now, now < self.down, &outcome);
        let answered = now + self.delay.sample(&mut self.random);
        self.events.add(answered, Event::Answered(task, outcome));
    }

    fn settle(&mut self, now: Duration, task: usize, outcome: &Outcome) {
        let verdict = decide(&self.run_of(task), outcome, instant(now), &mut self.random);
        self.apply(now, task, &verdict);
    }

    fn apply(&mut self, now: Duration, task: usize, verdict: &Verdict) {
        match verdict {
            Verdict::Retry(wait) => {
                self.tasks[task].previous_wait = Some(*wait);
                self.events.add(now + *wait, Event::Claimed(task));
            }
            Verdict::Complete(_) => {
                self.row.succeeded += 1;
                let after = now.saturating_sub(self.down).as_millis();
                self.row.drained_after_ms = Some(u64::try_from(after).unwrap_or(u64::MAX));
            }
            Verdict::DeadLetter(Reason::BudgetExceeded) => self.row.lost_to_budget += 1,
            Verdict::DeadLetter(_) => self.row.lost_to_attempts += 1,
            Verdict::Snooze(_) | Verdict::Hold(_) | Verdict::Wait(_) | Verdict::Release | Verdict::Cancel => {
                unreachable!("a simulated task has no verdict {verdict:?}")
            }
        }
    }
}

impl Row {
    fn new(policy: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            calls: 0,
            calls_while_down: 0,
            refused_over_capacity: 0,
            peak_per_second: 0,
            succeeded: 0,
            lost_to_attempts: 0,
            lost_to_budget: 0,
            drained_after_ms: None,
            calls_over_time: Timeline::new(STEP_MS),
        }
    }

    fn count(&mut self, at: Duration, down: bool, outcome: &Outcome) {
        self.calls += 1;
        self.calls_while_down += u64::from(down);
        self.refused_over_capacity += u64::from(!down && matches!(outcome, Outcome::Fail(_)));
        self.calls_over_time.count(at);
    }
}

fn instant(at: Duration) -> Timestamp {
    Timestamp::default().after(at)
}
