//! The code that the peers on a database server share: the command line, and the order of the phases.

#[path = "payload.rs"]
mod payload;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use crate::phases::{self, Enqueue, Notes, Phase, Probe, Report};

/// The range of the pauses between pickups.
const PAUSE_MS: Range<u64> = 20..120;
/// How long to wait for the remaining jobs of earlier phases before the pickups.
const REMAINING_JOBS_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a new worker has to start listening before the first pickup.
const LISTEN_WAIT: Duration = Duration::from_secs(1);

/// A connection that reads the state of the database and does not belong to the peer.
pub trait Database {
    /// The settings of the server that decide which acknowledged writes survive a power failure.
    fn durability(&self) -> impl Future<Output = Result<String>>;
    /// Refreshes the statistics of the server, which it would do by itself within a minute after a load.
    fn refresh_statistics(&self) -> impl Future<Output = Result<()>>;
}

/// A job queue on a database server.
pub trait Peer: Enqueue {
    /// Runs jobs until it is stopped.
    type Worker;
    type Database: Database;

    const NAME: &'static str;
    /// The number of connections that enqueue batches at once.
    const BATCH_CALLERS: usize;

    fn settings() -> String;
    fn version() -> Result<String>;
    fn start(&self, load: Load, probe: &Arc<Probe>) -> impl Future<Output = Result<Self::Worker>>;
    fn stop(&self, worker: Self::Worker) -> impl Future<Output = Result<()>>;
    /// The number of the `added` jobs that are done in the database.
    fn done(&self, reader: &Self::Database, added: usize) -> impl Future<Output = Result<usize>>;
}

/// The load that a worker is configured for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Many due jobs.
    Backlog,
    /// One job at a time.
    Idle,
}

/// The command line.
pub struct Args {
    pub url: String,
    /// The text in the payload of each job.
    pub data: String,
    jobs: usize,
    picks: usize,
    only: Option<Part>,
}

/// The part of the figures to measure, so that repeats of several programs can take turns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Enqueue,
    Singles,
    Drain,
    Pickup,
}

impl Args {
    pub fn parse() -> Result<Self> {
        let (mut url, mut jobs, mut payload_bytes, mut picks, mut only) = (None, None, 0, 200, None);
        let mut arguments = std::env::args().skip(1);
        while let Some(flag) = arguments.next() {
            let value = arguments.next().with_context(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--url" => url = Some(value),
                "--jobs" => jobs = Some(value.parse().context("--jobs")?),
                "--payload" => payload_bytes = value.parse().context("--payload")?,
                "--picks" => picks = value.parse().context("--picks")?,
                "--only" => only = Some(Part::parse(&value)?),
                _ => bail!("unknown flag {flag}"),
            }
        }
        let url = url.context("--url is required")?;
        let jobs = jobs.context("--jobs is required")?;
        Ok(Self { url, data: payload::data(payload_bytes), jobs, picks, only })
    }

    fn includes(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

impl Part {
    fn parse(name: &str) -> Result<Self> {
        match name {
            "enqueue" => Ok(Self::Enqueue),
            "singles" => Ok(Self::Singles),
            "drain" => Ok(Self::Drain),
            "pickup" => Ok(Self::Pickup),
            _ => bail!("--only takes enqueue, singles, drain or pickup"),
        }
    }
}

/// Runs the phases that the arguments include, and prints the report.
pub async fn measure<P: Peer>(args: &Args, peer: P, reader: P::Database) -> Result<()> {
    let mut run = Run { peer, reader, added: 0, notes: Notes::default() };
    let (mut batch, mut drained, mut singles) = (None, None, None);
    if args.includes(Part::Enqueue) || args.includes(Part::Drain) {
        batch = Some(run.enqueue_batches(args.jobs).await?);
    }
    if args.includes(Part::Drain) {
        drained = Some(run.drain().await?);
    }
    if args.includes(Part::Singles) {
        singles = Some(run.enqueue_singles(phases::singles(args.jobs)).await?);
    }
    let picks = if args.includes(Part::Pickup) { args.picks } else { 0 };
    let waits = run.pickups(picks).await?;
    Report {
        peer: P::NAME,
        version: P::version()?,
        durability: run.reader.durability().await?,
        settings: P::settings(),
        enqueue_batch_per_s: batch.filter(|_| args.includes(Part::Enqueue)).and_then(Phase::per_s),
        enqueue_one_by_one_64_tasks_per_s: singles.and_then(Phase::per_s),
        drain_per_s: drained.and_then(Phase::per_s),
        pickup_p50_ms: phases::percentile_ms(&waits, 50.0),
        pickup_p99_ms: phases::percentile_ms(&waits, 99.0),
        note: run.notes.joined(),
    }
    .print()
}

struct Run<P: Peer> {
    peer: P,
    reader: P::Database,
    /// The number of jobs that were enqueued so far.
    added: usize,
    notes: Notes,
}

impl<P: Peer> Run<P> {
    async fn enqueue_batches(&mut self, jobs: usize) -> Result<Phase> {
        let phase = phases::enqueue_batches(&self.peer, P::BATCH_CALLERS, jobs, &mut self.notes).await?;
        self.added += phase.done;
        Ok(phase)
    }

    async fn enqueue_singles(&mut self, jobs: usize) -> Result<Phase> {
        let phase = phases::enqueue_singles(&self.peer, jobs, &mut self.notes).await?;
        self.added += phase.done;
        Ok(phase)
    }

    /// The clock starts before the worker does.
    async fn drain(&mut self) -> Result<Phase> {
        let probe = Arc::new(Probe::new());
        let start = Instant::now();
        let worker = self.peer.start(Load::Backlog, &probe).await?;
        let count = async || self.peer.done(&self.reader, self.added).await;
        let phase = phases::drain(self.added, start, &probe, count, &mut self.notes).await?;
        self.peer.stop(worker).await?;
        Ok(phase)
    }

    async fn pickups(&mut self, picks: usize) -> Result<Vec<Duration>> {
        if picks == 0 || !self.drain_remaining_jobs().await? {
            return Ok(Vec::new());
        }
        let probe = Arc::new(Probe::new());
        let worker = self.peer.start(Load::Idle, &probe).await?;
        sleep(LISTEN_WAIT).await;
        let waits = phases::pickups(&self.peer, &probe, picks, PAUSE_MS, &mut self.notes).await;
        self.peer.stop(worker).await?;
        Ok(waits)
    }

    /// Drains the remaining jobs of earlier phases. Returns false if this takes too long: the worker would not be idle then, and the
    /// start of another job would count as the pickup.
    async fn drain_remaining_jobs(&mut self) -> Result<bool> {
        let start = Instant::now();
        let worker = self.peer.start(Load::Backlog, &Arc::new(Probe::new())).await?;
        let mut drained = false;
        while !drained && start.elapsed() < REMAINING_JOBS_TIMEOUT {
            sleep(Duration::from_millis(100)).await;
            drained = self.peer.done(&self.reader, self.added).await? >= self.added;
        }
        self.peer.stop(worker).await?;
        if !drained {
            self.notes.add("pickup: skipped, because jobs of earlier phases were not done".to_owned());
        }
        self.reader.refresh_statistics().await?;
        Ok(drained)
    }
}
