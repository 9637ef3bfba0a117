//! Measures several nodes on Postgres, and compares them with raw statements and with peers, all on one private server with default
//! settings.

mod node;
mod open_transaction;
mod probe;
mod server;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use redrive_core::Start;

use crate::comparison::{Comparison, figure, measure_with_peers};
use crate::figures::{Bar, Figure, Samples};
use crate::peers::Peer;
use crate::{drain, enqueue, pickup, setup};
pub use node::run_node;
pub use server::{Database, PrivateServer};

/// The size of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Jobs in each drain and enqueue.
    pub jobs: usize,
    /// Jobs that wait in the future.
    pub waiting: usize,
    /// Idle pick-ups in each repeat.
    pub picks: usize,
    /// How long another session keeps a transaction open.
    pub open_transaction: Duration,
    /// Repeats of each measurement.
    pub repeats: usize,
}

impl Size {
    /// The size by which the bars are judged.
    pub const FULL: Self = Self {
        jobs: 200_000,
        waiting: 5_000_000,
        picks: 200,
        open_transaction: Duration::from_secs(600),
        repeats: 5,
    };
    /// A short run.
    pub const QUICK: Self = Self {
        jobs: 50_000,
        waiting: 200_000,
        picks: 60,
        open_transaction: Duration::from_secs(30),
        repeats: 3,
    };
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Draining no-op jobs.
    Drain,
    /// Enqueues.
    Enqueue,
    /// Idle pick-up.
    Pickup,
    /// Draining while another session keeps a transaction open.
    OpenTransaction,
    /// Draining with jobs that wait in the future.
    Waiting,
    /// Two nodes compared with one.
    Nodes,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 6] =
        [Self::Drain, Self::Enqueue, Self::Pickup, Self::OpenTransaction, Self::Waiting, Self::Nodes];
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
        progress(&format!("{part:?}").to_lowercase());
        figures.extend(match part {
            Part::Drain => run.drain()?,
            Part::Enqueue => run.enqueue()?,
            Part::Pickup => run.pickup()?,
            Part::OpenTransaction => run.open_transaction()?,
            Part::Waiting => run.waiting()?,
            Part::Nodes => run.nodes()?,
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
    fn drain(&self) -> anyhow::Result<Vec<Figure>> {
        let name = "drain no-op jobs, history kept, confirmed by the database";
        let rows = self.with_peers("drain", || self.drain_once(), |peer| peer.drain_per_s)?;
        let mut raw = Vec::new();
        for _ in 0..self.size.repeats {
            let database = self.server.database();
            raw.push(setup::block_on(probe::drain(&database.address(), self.size.jobs))?);
        }
        let limit = ("raw claim and complete, the limit".to_owned(), Samples::of(raw));
        let mut figures = vec![figure(name, "/s", &rows.ours, Some(limit), None)];
        figures.extend(rows.against(name, "/s", |peer| (peer == MAIN_PEER).then_some(Bar::AtLeast(1.1))));
        Ok(figures)
    }

    fn drain_once(&self) -> anyhow::Result<f64> {
        let database = self.server.database();
        setup::block_on(async {
            let (store, policy) = database.open().await?;
            setup::fill(&store, &policy, self.size.jobs, Start::Now).await?;
            drain::drain(&store, self.size.jobs, 0).await
        })
    }

    fn enqueue(&self) -> anyhow::Result<Vec<Figure>> {
        let batches = self.with_peers("enqueue", || self.enqueue_once(), |peer| peer.enqueue_batch_per_s)?;
        let bar = |peer: &str| Some(Bar::AtLeast(if peer == MAIN_PEER { 4.0 } else { 1.0 }));
        let mut figures = batches.against("enqueue in batches of 1000, four at once", "/s", bar);
        let singles = Samples::take(self.size.repeats, || {
            let database = self.server.database();
            setup::block_on(async {
                let (store, policy) = database.open().await?;
                enqueue::enqueue_singly(&store, &policy, self.size.jobs / 4).await
            })
        })?;
        figures.push(figure("enqueue one at a time from 64 tasks", "/s", &singles, None, None));
        Ok(figures)
    }

    /// Enqueues from four tasks, because the peers may use four connections.
    fn enqueue_once(&self) -> anyhow::Result<f64> {
        let database = self.server.database();
        setup::block_on(async {
            let (store, policy) = database.open().await?;
            let started = Instant::now();
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let (store, policy, jobs) = (store.clone(), policy.clone(), self.size.jobs / 4);
                tasks.spawn(async move { setup::fill(&store, &policy, jobs, Start::Now).await });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            Ok(self.size.jobs as f64 / started.elapsed().as_secs_f64())
        })
    }

    fn pickup(&self) -> anyhow::Result<Vec<Figure>> {
        let name = "idle pick-up, enqueue to handler start, p99";
        let rows = self.with_peers("pickup", || self.pickup_once(), |peer| peer.pickup_p99_ms)?;
        let mut figures = vec![figure(name, "ms", &rows.ours, None, Some(Bar::AtMost(5.0)))];
        figures.extend(rows.against(name, "ms", |peer| (peer == MAIN_PEER).then_some(Bar::AtMost(1.0))));
        Ok(figures)
    }

    fn pickup_once(&self) -> anyhow::Result<f64> {
        let database = self.server.database();
        setup::block_on(async {
            let (store, policy) = database.open().await?;
            let pause = || Duration::from_millis(fastrand::u64(20..120));
            Ok(pickup::delays(&store, &policy, self.size.picks, pause).await?.quantile(0.99))
        })
    }

    fn open_transaction(&self) -> anyhow::Result<Vec<Figure>> {
        let free = open_transaction::rates(&self.server, self.size.open_transaction / 5, false)?;
        let held = open_transaction::rates(&self.server, self.size.open_transaction, true)?;
        let name =
            format!("drain during {:?} of another session's open transaction", self.size.open_transaction);
        let without = Samples::of(held.iter().map(|_| free.median()));
        let last = held.iter().skip(held.len() * 9 / 10);
        let mut figures = vec![figure(
            &name,
            "/s",
            &held,
            Some(("without it".to_owned(), without)),
            Some(Bar::AtLeast(0.7)),
        )];
        let last = Samples::of(last);
        let without = Samples::of(last.iter().map(|_| free.median()));
        figures.push(figure(
            "drain in the last tenth of that time",
            "/s",
            &last,
            Some(("without it".to_owned(), without)),
            None,
        ));
        Ok(figures)
    }

    fn waiting(&self) -> anyhow::Result<Vec<Figure>> {
        let rates = |waiting: usize| {
            let database = self.server.database();
            setup::block_on(async {
                let (store, policy) = database.open().await?;
                let later = Start::After(Duration::from_secs(24 * 60 * 60));
                setup::fill(&store, &policy, waiting, later).await?;
                let mut rates = Vec::new();
                for round in 0..self.size.repeats {
                    setup::fill(&store, &policy, self.size.jobs, Start::Now).await?;
                    rates.push(drain::drain(&store, self.size.jobs, round * self.size.jobs).await?);
                }
                Ok(Samples::of(rates))
            })
        };
        let few = rates(10_000)?;
        let many = rates(self.size.waiting)?;
        let name = format!("drain with {} waiting in the future", self.size.waiting);
        let other = Some(("with 10,000 waiting".to_owned(), few));
        Ok(vec![figure(&name, "/s", &many, other, Some(Bar::AtLeast(0.8)))])
    }

    fn nodes(&self) -> anyhow::Result<Vec<Figure>> {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for _ in 0..self.size.repeats {
            one.push(node::rate(&self.server, 1, self.size.jobs)?);
            two.push(node::rate(&self.server, 2, self.size.jobs)?);
        }
        // A node uses about one core, and the server uses the others.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let bar = if cores > 2 { 1.3 } else { 1.0 };
        let other = Some((format!("one node, on {cores} cores"), Samples::of(one)));
        Ok(vec![figure("drain by two nodes", "/s", &Samples::of(two), other, Some(Bar::AtLeast(bar)))])
    }

    fn with_peers(
        &self,
        part: &str,
        ours: impl Fn() -> anyhow::Result<f64>,
        theirs: impl Fn(&Peer) -> Option<f64>,
    ) -> anyhow::Result<Comparison> {
        let size = [("--jobs", self.size.jobs), ("--picks", self.size.picks)];
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
