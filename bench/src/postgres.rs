//! Measures several nodes on Postgres, and compares them with raw statements and with peers, all on one private server with default
//! settings.

mod drain;
mod enqueue;
mod heartbeats;
mod key_limits;
mod node;
mod nodes;
mod open_transaction;
mod pickup;
mod probe;
mod prune;
mod queue_limits;
mod server;
mod waiting;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum as _;
use redrive_core::NewJob;
use redrive_store_postgres::PostgresStore;

use crate::comparison::{Comparison, measure_with_peers};
use crate::figures::Figure;
use crate::peers::Peer;
use crate::setup;
pub use node::run_node;
pub use server::{Database, PrivateServer};

/// The size of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Jobs in each drain and enqueue of the smallest payload.
    pub jobs: usize,
    /// Jobs that wait in the future.
    pub waiting: usize,
    /// Idle pick-ups in each repeat.
    pub picks: usize,
    /// How long another session keeps a transaction open, at least.
    pub open_transaction: Duration,
    /// Jobs drained while the transaction is open, at least.
    pub open_transaction_jobs: usize,
    /// The least time from the start of one round of that drain to the next. It bounds the size of the tables.
    pub open_transaction_round: Duration,
    /// How long heartbeats are measured in each repeat: a multiple of ten seconds.
    pub heartbeats: Duration,
    /// Ended children of a live parent, which a prune must pass.
    pub children: usize,
    /// Repeats of each measurement.
    pub repeats: usize,
}

impl Size {
    /// The size by which the bars are judged.
    pub const FULL: Self = Self {
        jobs: 200_000,
        waiting: 10_000_000,
        picks: 200,
        open_transaction: Duration::from_secs(600),
        open_transaction_jobs: 10_000_000,
        open_transaction_round: Duration::ZERO,
        heartbeats: Duration::from_secs(60),
        children: 1_000_000,
        repeats: 5,
    };
    /// The same, with a transaction that stays open for an hour. Without pauses, the tables would need about 100 GB.
    pub const LONG: Self = Self {
        open_transaction: Duration::from_secs(3600),
        open_transaction_round: Duration::from_secs(5),
        ..Self::FULL
    };
    /// A short run.
    pub const QUICK: Self = Self {
        jobs: 50_000,
        waiting: 200_000,
        picks: 60,
        open_transaction: Duration::from_secs(45),
        open_transaction_jobs: 0,
        open_transaction_round: Duration::ZERO,
        heartbeats: Duration::from_secs(10),
        children: 200_000,
        repeats: 3,
    };

    /// The payloads of drains and enqueues, the smallest first. There are fewer jobs with larger payloads, to bound the time.
    fn payloads(self) -> [Payload; 3] {
        [(100, 1), (2 * 1024, 2), (32 * 1024, 8)]
            .map(|(bytes, divisor)| Payload { bytes, jobs: self.jobs / divisor })
    }
}

/// A size of payloads, and the number of jobs to measure with it.
#[derive(Debug, Clone, Copy)]
struct Payload {
    bytes: usize,
    jobs: usize,
}

impl Payload {
    fn content(self) -> Vec<u8> {
        setup::payload(self.bytes)
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes < 1024 {
            write!(f, "{} bytes", self.bytes)
        } else {
            write!(f, "{} KB", self.bytes / 1024)
        }
    }
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Draining no-op jobs.
    Drain,
    /// Enqueues in batches.
    Enqueue,
    /// Enqueues one at a time.
    Singles,
    /// Idle pick-up.
    Pickup,
    /// Draining jobs with a limit per partition key.
    KeyLimits,
    /// Draining next to another queue that is at its limit.
    QueueLimits,
    /// The CPU time of the server for heartbeats.
    Heartbeats,
    /// Claims during a prune.
    Prune,
    /// Two nodes compared with one.
    Nodes,
    /// Draining with jobs that wait in the future.
    Waiting,
    /// Draining while another session keeps a transaction open.
    OpenTransaction,
}

impl Part {
    /// Every part, the longest last.
    pub const ALL: [Self; 11] = [
        Self::Drain,
        Self::Enqueue,
        Self::Singles,
        Self::Pickup,
        Self::KeyLimits,
        Self::QueueLimits,
        Self::Heartbeats,
        Self::Prune,
        Self::Nodes,
        Self::Waiting,
        Self::OpenTransaction,
    ];
}

/// The peer that the bars compare with.
const MAIN_PEER: &str = "graphile_worker";

/// Measures these parts. Calls `progress` with the name of each.
pub fn measure(
    size: Size,
    peers: &[PathBuf],
    parts: &[Part],
    mut progress: impl FnMut(&str),
) -> anyhow::Result<Vec<Figure>> {
    let run = Run { server: PrivateServer::start(), size, peers };
    let mut figures = Vec::new();
    for part in parts {
        progress(part.to_possible_value().as_ref().map_or("", |value| value.get_name()));
        figures.extend(match part {
            Part::Drain => drain::figures(&run)?,
            Part::Enqueue => enqueue::batches(&run)?,
            Part::Singles => enqueue::singles(&run)?,
            Part::Pickup => pickup::figures(&run)?,
            Part::KeyLimits => key_limits::figures(&run)?,
            Part::QueueLimits => queue_limits::figures(&run)?,
            Part::Heartbeats => heartbeats::figures(&run)?,
            Part::Prune => prune::figures(&run)?,
            Part::Nodes => nodes::figures(&run)?,
            Part::Waiting => waiting::figures(&run)?,
            Part::OpenTransaction => open_transaction::figures(&run)?,
        });
    }
    Ok(figures)
}

struct Run<'a> {
    server: PrivateServer,
    size: Size,
    peers: &'a [PathBuf],
}

impl Run<'_> {
    fn with_peers(
        &self,
        part: &str,
        payload: Payload,
        ours: impl Fn() -> anyhow::Result<f64>,
        theirs: impl Fn(&Peer) -> Option<f64>,
    ) -> anyhow::Result<Comparison> {
        let size = [("--jobs", payload.jobs), ("--payload", payload.bytes), ("--picks", self.size.picks)];
        let database = || self.server.database();
        measure_with_peers(
            self.size.repeats,
            self.peers,
            part,
            &size,
            database,
            Database::address,
            ours,
            theirs,
        )
    }
}

/// Enqueues from four tasks at once.
async fn fill_from_four_tasks(
    store: &PostgresStore,
    jobs: usize,
    make: impl Fn() -> anyhow::Result<NewJob> + Clone + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, make) = (store.clone(), make.clone());
        tasks.spawn(async move { setup::fill_with(&store, jobs / 4, |_| make()).await });
    }
    tasks.join_all().await.into_iter().collect()
}
