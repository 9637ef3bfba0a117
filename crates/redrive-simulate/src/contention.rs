//! Many clients write one versioned row: the experiment on backoff and jitter of the AWS architecture blog.
//!
//! Each client reads the row's version and writes it back; the write is refused when the version has changed meanwhile.
//! Then the client waits by its policy and starts again with the read, until its write is done. Every message travels for
//! a hop of its own. What counts is write calls at the row, and the time at which the last client hears that it is done.

use std::time::Duration;

use redrive_core::{Failure, Fault, Invalid, Outcome, Policy, Run, Timestamp, Verdict, decide};
use serde::Serialize;

use crate::agenda::Agenda;
use crate::contenders::{Contender, published};
use crate::dice::{Dice, Hop};
use crate::timeline::Timeline;

/// Steps in which calls are counted.
const STEP_MS: u32 = 10;

/// The experiment with its dials.
#[derive(Debug, Clone, PartialEq)]
pub struct Contention {
    /// Clients that write at once.
    pub clients: u32,
    /// How often each experiment is repeated; figures are means.
    pub trials: u32,
    /// What chance starts from.
    pub seed: u64,
    /// The base of the waits.
    pub base: Duration,
    /// The longest wait.
    pub cap: Duration,
    /// How long a message travels.
    pub hop: Hop,
}

impl Default for Contention {
    /// As published: base 5 ms, cap 2,000 ms, 100 trials; with 100 clients.
    fn default() -> Self {
        Self {
            clients: 100,
            trials: 100,
            seed: 1,
            base: Duration::from_millis(5),
            cap: Duration::from_millis(2_000),
            hop: Hop::default(),
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Trials behind each figure.
    pub trials: u32,
    /// The seed.
    pub seed: u64,
    /// The base of the waits.
    pub base_ms: u64,
    /// The longest wait.
    pub cap_ms: u64,
    /// How long a message travels.
    pub hop: Hop,
    /// One for each number of clients and each contender.
    pub rows: Vec<Row>,
}

/// One contender with one number of clients.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// How many clients there were.
    pub clients: u32,
    /// Whose waits they kept.
    pub jitter: String,
    /// Write calls at the row until all were done, in the mean.
    pub mean_write_calls: f64,
    /// When the last client was done, in the mean.
    pub mean_completion_ms: f64,
    /// Write calls at the row over time, in the mean.
    #[serde(skip)]
    pub writes: Timeline,
}

impl Report {
    /// The row of a contender with a number of clients.
    pub fn of(&self, jitter: &str, clients: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.jitter == jitter && row.clients == clients)
    }
}

impl Contention {
    /// Runs it for the five of the published experiment.
    pub fn run(&self) -> Result<Report, Invalid> {
        self.sweep([self.clients])
    }

    /// Runs it for each number of clients.
    pub fn sweep(&self, clients: impl IntoIterator<Item = u32>) -> Result<Report, Invalid> {
        let mut rows = Vec::new();
        for clients in clients {
            // Each refusal means that another client's write was done meanwhile, so nobody is refused as often as there
            // are clients: the policies never give up.
            let contenders = published(self.base, self.cap, clients)?;
            let one = Self { clients, ..self.clone() };
            rows.extend((0..).zip(&contenders).map(|(part, contender)| one.contend(part, contender)));
        }
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (base_ms, cap_ms) = (ms(self.base), ms(self.cap));
        Ok(Report { trials: self.trials, seed: self.seed, base_ms, cap_ms, hop: self.hop, rows })
    }

    fn contend(&self, part: u64, contender: &Contender) -> Row {
        let mut writes = Timeline::new(STEP_MS);
        let mut completion = Duration::ZERO;
        for trial in 0..self.trials {
            let dice = Dice::new(self.seed, part << 32 | u64::from(self.clients), trial);
            completion += Trial::new(self, &contender.policy, dice, &mut writes).run();
        }
        let trials = f64::from(self.trials.max(1));
        Row {
            clients: self.clients,
            jitter: contender.name.clone(),
            mean_write_calls: writes.sum() / trials,
            mean_completion_ms: completion.as_secs_f64() * 1e3 / trials,
            writes: writes.over(self.trials),
        }
    }
}

/// A message on its way, from or to the client of that number.
enum Message {
    Read(usize),
    Version(usize, u64),
    Write(usize, u64),
    Written(usize, Written),
}

enum Written {
    Done,
    Refused,
}

#[derive(Clone, Copy, Default)]
struct Client {
    refused: u32,
    previous_wait: Option<Duration>,
}

struct Trial<'a> {
    policy: &'a Policy,
    hop: Hop,
    dice: Dice,
    clients: Vec<Client>,
    version: u64,
    agenda: Agenda<Message>,
    writes: &'a mut Timeline,
}

impl<'a> Trial<'a> {
    fn new(setup: &Contention, policy: &'a Policy, dice: Dice, writes: &'a mut Timeline) -> Self {
        let clients = vec![Client::default(); setup.clients as usize];
        Self { policy, hop: setup.hop, dice, clients, version: 0, agenda: Agenda::new(), writes }
    }

    /// Runs until every client is done, and says when that was.
    fn run(mut self) -> Duration {
        for client in 0..self.clients.len() {
            self.send(Duration::ZERO, Message::Read(client));
        }
        let mut now = Duration::ZERO;
        while let Some((at, message)) = self.agenda.next() {
            now = at;
            self.arrive(now, message);
        }
        now
    }

    fn send(&mut self, at: Duration, message: Message) {
        let hop = self.hop.travel(&mut self.dice);
        self.agenda.add(at + hop, message);
    }

    fn arrive(&mut self, now: Duration, message: Message) {
        match message {
            Message::Read(client) => self.send(now, Message::Version(client, self.version)),
            Message::Version(client, version) => self.send(now, Message::Write(client, version)),
            Message::Write(client, version) => {
                self.writes.count(now);
                let written = if version == self.version { Written::Done } else { Written::Refused };
                self.version += u64::from(version == self.version);
                self.send(now, Message::Written(client, written));
            }
            Message::Written(_, Written::Done) => {}
            Message::Written(client, Written::Refused) => self.wait_and_read_again(now, client),
        }
    }

    fn wait_and_read_again(&mut self, now: Duration, client: usize) {
        let Client { refused, previous_wait } = self.clients[client];
        let attempt = refused + 1;
        let run = Run {
            policy: self.policy,
            attempt,
            began_at: Timestamp::default(),
            previous_wait,
            estimated_call: Duration::ZERO,
        };
        let refusal = Outcome::Fail(Failure::new(Fault::Error, "the version has changed"));
        match decide(&run, &refusal, Timestamp::default().after(now), &mut self.dice) {
            Verdict::Retry(wait) => {
                self.clients[client] = Client { refused: attempt, previous_wait: Some(wait) };
                self.send(now + wait, Message::Read(client));
            }
            other => unreachable!("a policy with an attempt for each client never gives up: {other:?}"),
        }
    }
}
