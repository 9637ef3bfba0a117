//! Many tasks fall due while their target is down: what it sees when it is back, and what becomes of them.
//!
//! Each task goes as in the worker: [`admit`] before a call, [`decide`] after it. The tasks know nothing of each other: the
//! service's gate, which leaves a struggling origin alone, is not part of it, so this is what policies do by themselves.

use std::time::Duration;

use redrive_core::{Outcome, Policy, Reason, Run, Timestamp, Verdict, admit, decide};
use serde::Serialize;

use crate::agenda::Agenda;
use crate::contenders::Contender;
use crate::dice::{Dice, Hop};
use crate::target::Target;
use crate::timeline::Timeline;

/// Calls are counted by the second.
const STEP_MS: u32 = 1_000;

/// The experiment with its dials.
#[derive(Debug, Clone, PartialEq)]
pub struct Outage {
    /// How many tasks there are.
    pub tasks: u32,
    /// They fall due evenly over this time, from the beginning of the outage on.
    pub arrivals: Duration,
    /// How long the target is down, from the beginning.
    pub down: Duration,
    /// How many calls a second it bears afterwards.
    pub capacity: u32,
    /// How long a message travels.
    pub hop: Hop,
    /// What chance starts from.
    pub seed: u64,
}

impl Default for Outage {
    /// 10,000 tasks within a second, 30 s of outage, 500 calls a second.
    fn default() -> Self {
        Self {
            tasks: 10_000,
            arrivals: Duration::from_secs(1),
            down: Duration::from_secs(30),
            capacity: 500,
            hop: Hop::default(),
            seed: 1,
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// How many tasks there were.
    pub tasks: u32,
    /// Over which time they fell due.
    pub arrivals_ms: u64,
    /// How long the target was down.
    pub outage_ms: u64,
    /// How many calls a second it bore afterwards.
    pub capacity_per_second: u32,
    /// The seed.
    pub seed: u64,
    /// One for each policy.
    pub rows: Vec<Row>,
}

/// One policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its name.
    pub policy: String,
    /// Calls that reached the target or found nobody there.
    pub calls: u64,
    /// Those made while it was down.
    pub calls_while_down: u64,
    /// Those refused afterwards because there were too many.
    pub refused_over_capacity: u64,
    /// The most calls in one second after the outage.
    pub peak_per_second: u64,
    /// Tasks that succeeded.
    pub succeeded: u32,
    /// Tasks that are dead because their attempts were used up.
    pub lost_to_attempts: u32,
    /// Tasks that are dead because their budget was.
    pub lost_to_budget: u32,
    /// From the end of the outage until the last task succeeded; none if none did after it.
    pub drained_after_ms: Option<u64>,
    /// Calls by the second.
    #[serde(skip)]
    pub calls_over_time: Timeline,
}

impl Report {
    /// The row of a policy.
    pub fn of(&self, policy: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.policy == policy)
    }
}

impl Outage {
    /// Runs it for each contender.
    pub fn run(&self, contenders: &[Contender]) -> Report {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let rows = (0..).zip(contenders).map(|(part, contender)| {
            let dice = Dice::new(self.seed, part, 0);
            Course::new(self, contender, dice).run()
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

/// What happens to the task of that number.
enum Event {
    Claimed(usize),
    Called(usize),
    Answered(usize, Outcome),
}

/// What the engine keeps on the row.
#[derive(Clone, Copy)]
struct Task {
    attempt: u32,
    began_at: Timestamp,
    previous_wait: Option<Duration>,
}

struct Course<'a> {
    policy: &'a Policy,
    hop: Hop,
    down: Duration,
    dice: Dice,
    target: Target,
    tasks: Vec<Task>,
    agenda: Agenda<Event>,
    row: Row,
}

impl<'a> Course<'a> {
    fn new(setup: &Outage, contender: &'a Contender, dice: Dice) -> Self {
        let mut agenda = Agenda::new();
        let mut tasks = Vec::with_capacity(setup.tasks as usize);
        for (number, task) in (0..setup.tasks).enumerate() {
            let due = setup.due_at(task);
            agenda.add(due, Event::Claimed(number));
            tasks.push(Task { attempt: 0, began_at: instant(due), previous_wait: None });
        }
        Self {
            policy: &contender.policy,
            hop: setup.hop,
            down: setup.down,
            dice,
            target: Target::new(setup.down, setup.capacity),
            tasks,
            agenda,
            row: Row::new(&contender.name),
        }
    }

    fn run(mut self) -> Row {
        while let Some((now, event)) = self.agenda.next() {
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

    /// The attempt is charged here, and the budget checked before anything is sent.
    fn claim(&mut self, now: Duration, task: usize) {
        self.tasks[task].attempt += 1;
        match admit(&self.run_of(task), instant(now)) {
            Some(verdict) => self.apply(now, task, &verdict),
            None => {
                let arrives = now + self.hop.travel(&mut self.dice);
                self.agenda.add(arrives, Event::Called(task));
            }
        }
    }

    fn call(&mut self, now: Duration, task: usize) {
        let outcome = self.target.call(now);
        self.row.count(now, now < self.down, &outcome);
        let answered = now + self.hop.travel(&mut self.dice);
        self.agenda.add(answered, Event::Answered(task, outcome));
    }

    fn settle(&mut self, now: Duration, task: usize, outcome: &Outcome) {
        let verdict = decide(&self.run_of(task), outcome, instant(now), &mut self.dice);
        self.apply(now, task, &verdict);
    }

    fn apply(&mut self, now: Duration, task: usize, verdict: &Verdict) {
        match verdict {
            Verdict::Retry(wait) => {
                self.tasks[task].previous_wait = Some(*wait);
                self.agenda.add(now + *wait, Event::Claimed(task));
            }
            Verdict::Complete(_) => {
                self.row.succeeded += 1;
                let after = now.saturating_sub(self.down).as_millis();
                self.row.drained_after_ms = Some(u64::try_from(after).unwrap_or(u64::MAX));
            }
            Verdict::DeadLetter(Reason::BudgetExceeded) => self.row.lost_to_budget += 1,
            Verdict::DeadLetter(_) => self.row.lost_to_attempts += 1,
            Verdict::Snooze(_) | Verdict::Park(_) | Verdict::Wait(_) | Verdict::Release | Verdict::Cancel => {
                unreachable!("no task here asks for {verdict:?}")
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
