//! Many clients write one versioned row: the experiment on backoff and jitter of the AWS architecture blog.
//!
//! Each client reads the version of the row and writes the row. The write fails if the version has changed since the read. The
//! client then waits for the time that its policy gives, and starts again with the read, until its write succeeds. Every message has
//! its own network delay. The results are the number of write calls, and the time at which the last client has received its success.

use std::time::Duration;

use redrive_core::{Failure, FailureKind, Invalid, Outcome, Policy, Run, Timestamp, Verdict, decide};
use serde::Serialize;

use crate::event_queue::EventQueue;
use crate::policies::{NamedPolicy, published_policies};
use crate::random::{NetworkDelay, SeededRandom};
use crate::timeline::Timeline;

/// The length of a step of the timeline.
const STEP_MS: u32 = 10;

/// The parameters of the experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct ContentionExperiment {
    /// The number of clients.
    pub clients: u32,
    /// How often the experiment is repeated. The results are means.
    pub trials: u32,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The base of the waits.
    pub base: Duration,
    /// The longest wait.
    pub cap: Duration,
    /// The delay of a message in one direction.
    pub network_delay: NetworkDelay,
}

impl Default for ContentionExperiment {
    /// The values of the published experiment: base 5 ms, cap 2,000 ms, 100 trials; with 100 clients.
    fn default() -> Self {
        Self {
            clients: 100,
            trials: 100,
            seed: 1,
            base: Duration::from_millis(5),
            cap: Duration::from_millis(2_000),
            network_delay: NetworkDelay::default(),
        }
    }
}

/// The results of the experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The number of trials.
    pub trials: u32,
    /// The seed.
    pub seed: u64,
    /// The base of the waits.
    pub base_ms: u64,
    /// The longest wait.
    pub cap_ms: u64,
    /// The delay of a message in one direction.
    pub network_delay: NetworkDelay,
    /// One row for each number of clients and each policy.
    pub rows: Vec<Row>,
}

/// The results of one policy with one number of clients.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The number of clients.
    pub clients: u32,
    /// The name of the policy.
    pub jitter: String,
    /// The mean number of write calls until all clients were done.
    pub mean_write_calls: f64,
    /// The mean time at which the last client was done.
    pub mean_completion_ms: f64,
    /// The mean number of write calls over time.
    #[serde(skip)]
    pub writes: Timeline,
}

impl Report {
    /// The row of a policy with a number of clients.
    pub fn row(&self, jitter: &str, clients: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.jitter == jitter && row.clients == clients)
    }
}

impl ContentionExperiment {
    /// Runs the experiment with the five published policies.
    pub fn run(&self) -> Result<Report, Invalid> {
        self.sweep([self.clients])
    }

    /// Runs the experiment for each number of clients.
    pub fn sweep(&self, clients: impl IntoIterator<Item = u32>) -> Result<Report, Invalid> {
        let mut rows = Vec::new();
        for clients in clients {
            // A write fails only if another client's write succeeded in between. So a client fails less often than there are
            // clients, and no policy runs out of attempts.
            let policies = published_policies(self.base, self.cap, clients)?;
            let experiment = Self { clients, ..self.clone() };
            rows.extend((0..).zip(&policies).map(|(part, named)| experiment.run_policy(part, named)));
        }
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (base_ms, cap_ms) = (ms(self.base), ms(self.cap));
        Ok(Report {
            trials: self.trials,
            seed: self.seed,
            base_ms,
            cap_ms,
            network_delay: self.network_delay,
            rows,
        })
    }

    fn run_policy(&self, part: u64, named: &NamedPolicy) -> Row {
        let mut writes = Timeline::new(STEP_MS);
        let mut completion = Duration::ZERO;
        for trial in 0..self.trials {
            let random = SeededRandom::new(self.seed, part << 32 | u64::from(self.clients), trial);
            completion += Trial::new(self, &named.policy, random, &mut writes).run();
        }
        let trials = f64::from(self.trials.max(1));
        Row {
            clients: self.clients,
            jitter: named.name.clone(),
            mean_write_calls: writes.sum() / trials,
            mean_completion_ms: completion.as_secs_f64() * 1e3 / trials,
            writes: writes.mean_of(self.trials),
        }
    }
}

/// A message from or to the client with this number.
enum Message {
    Read(usize),
    Version(usize, u64),
    Write(usize, u64),
    Written(usize, WriteResult),
}

enum WriteResult {
    Success,
    Conflict,
}

#[derive(Clone, Copy, Default)]
struct Client {
    conflicts: u32,
    previous_wait: Option<Duration>,
}

struct Trial<'a> {
    policy: &'a Policy,
    delay: NetworkDelay,
    random: SeededRandom,
    clients: Vec<Client>,
    version: u64,
    events: EventQueue<Message>,
    writes: &'a mut Timeline,
}

impl<'a> Trial<'a> {
    fn new(
        setup: &ContentionExperiment,
        policy: &'a Policy,
        random: SeededRandom,
        writes: &'a mut Timeline,
    ) -> Self {
        let clients = vec![Client::default(); setup.clients as usize];
        Self {
            policy,
            delay: setup.network_delay,
            random,
            clients,
            version: 0,
            events: EventQueue::new(),
            writes,
        }
    }

    /// Runs until every client is done, and returns when that was.
    fn run(mut self) -> Duration {
        for client in 0..self.clients.len() {
            self.send(Duration::ZERO, Message::Read(client));
        }
        let mut now = Duration::ZERO;
        while let Some((at, message)) = self.events.next() {
            now = at;
            self.receive(now, message);
        }
        now
    }

    fn send(&mut self, at: Duration, message: Message) {
        let delay = self.delay.sample(&mut self.random);
        self.events.add(at + delay, message);
    }

    fn receive(&mut self, now: Duration, message: Message) {
        match message {
            Message::Read(client) => self.send(now, Message::Version(client, self.version)),
            Message::Version(client, version) => self.send(now, Message::Write(client, version)),
            Message::Write(client, version) => {
                self.writes.count(now);
                let result =
                    if version == self.version { WriteResult::Success } else { WriteResult::Conflict };
                self.version += u64::from(version == self.version);
                self.send(now, Message::Written(client, result));
            }
            Message::Written(_, WriteResult::Success) => {}
            Message::Written(client, WriteResult::Conflict) => self.wait_and_read_again(now, client),
        }
    }

    fn wait_and_read_again(&mut self, now: Duration, client: usize) {
        let Client { conflicts, previous_wait } = self.clients[client];
        let attempt = conflicts + 1;
        let run = Run {
            policy: self.policy,
            attempt,
            began_at: Timestamp::default(),
            previous_wait,
            estimated_call: Duration::ZERO,
        };
        let conflict = Outcome::Fail(Failure::new(FailureKind::Error, "the version has changed"));
        match decide(&run, &conflict, Timestamp::default().after(now), &mut self.random) {
            Verdict::Retry(wait) => {
                self.clients[client] = Client { conflicts: attempt, previous_wait: Some(wait) };
                self.send(now + wait, Message::Read(client));
            }
            other => {
                unreachable!("a policy with an attempt for each client never runs out of attempts: {other:?}")
            }
        }
    }
}
