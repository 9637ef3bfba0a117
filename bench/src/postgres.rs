//! Several nodes on Postgres, against the raw limit and against peers, all on one private server with default settings.

mod held;
mod node;
mod probe;
mod scene;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use redrive_core::Start;

use crate::beside::{Rows, beside, figure};
use crate::figures::{Bar, Figure, Samples};
use crate::peers::Peer;
use crate::{drain, enqueue, pickup, scene as common};
pub use node::be_a_node;
pub use scene::{Database, Scene};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Jobs in each drain and enqueue.
    pub jobs: usize,
    /// Jobs that wait in the future.
    pub waiting: usize,
    /// Idle pick-ups in each repeat.
    pub picks: usize,
    /// How long another session's transaction is held open.
    pub held: Duration,
    /// Repeats of each measurement.
    pub repeats: usize,
}

impl Size {
    /// What the bars are judged by.
    pub const FULL: Self =
        Self { jobs: 200_000, waiting: 5_000_000, picks: 200, held: Duration::from_secs(600), repeats: 5 };
    /// A first look.
    pub const QUICK: Self =
        Self { jobs: 50_000, waiting: 200_000, picks: 60, held: Duration::from_secs(30), repeats: 3 };
}

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Draining no-op jobs.
    Drain,
    /// Getting jobs in.
    Enqueue,
    /// Idle pick-up.
    Pickup,
    /// Draining beside another session's open transaction.
    Held,
    /// Draining beside jobs in the future.
    Waiting,
    /// Two nodes against one.
    Nodes,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 6] =
        [Self::Drain, Self::Enqueue, Self::Pickup, Self::Held, Self::Waiting, Self::Nodes];
}

/// The peer that the bars are about.
const RIVAL: &str = "graphile_worker";

/// Measures the parts asked for; `said` hears what is under way.
pub fn measure(
    size: Size,
    peers: &[PathBuf],
    parts: &[Part],
    mut said: impl FnMut(&str),
) -> anyhow::Result<Vec<Figure>> {
    let run = Run { scene: Scene::start(), size, peers };
    let mut figures = Vec::new();
    for part in parts {
        said(&format!("{part:?}").to_lowercase());
        figures.extend(match part {
            Part::Drain => run.drain()?,
            Part::Enqueue => run.enqueue()?,
            Part::Pickup => run.pickup()?,
            Part::Held => run.held()?,
            Part::Waiting => run.waiting()?,
            Part::Nodes => run.nodes()?,
        });
    }
    Ok(figures)
}

struct Run<'a> {
    scene: Scene,
    size: Size,
    peers: &'a [PathBuf],
}

impl Run<'_> {
    fn drain(&self) -> anyhow::Result<Vec<Figure>> {
        let name = "drain no-op jobs, history kept, confirmed by the database";
        let rows = self.beside("drain", || self.drain_once(), |peer| peer.drain_per_s)?;
        let mut raw = Vec::new();
        for _ in 0..self.size.repeats {
            let database = self.scene.database();
            raw.push(common::block_on(probe::drain(&database.address(), self.size.jobs))?);
        }
        let limit = ("raw claim and complete, the limit".to_owned(), Samples::of(raw));
        let mut figures = vec![figure(name, "/s", &rows.ours, Some(limit), None)];
        figures.extend(rows.against(name, "/s", |peer| (peer == RIVAL).then_some(Bar::AtLeast(1.1))));
        Ok(figures)
    }

    fn drain_once(&self) -> anyhow::Result<f64> {
        let database = self.scene.database();
        common::block_on(async {
            let (store, policy) = database.open().await?;
            common::fill(&store, &policy, self.size.jobs, Start::Now).await?;
            drain::drain(&store, self.size.jobs, 0).await
        })
    }

    fn enqueue(&self) -> anyhow::Result<Vec<Figure>> {
        let batches = self.beside("enqueue", || self.enqueue_once(), |peer| peer.enqueue_batch_per_s)?;
        let bar = |peer: &str| Some(Bar::AtLeast(if peer == RIVAL { 4.0 } else { 1.0 }));
        let mut figures = batches.against("enqueue in batches of 1000, four at once", "/s", bar);
        let singles = Samples::take(self.size.repeats, || {
            let database = self.scene.database();
            common::block_on(async {
                let (store, policy) = database.open().await?;
                enqueue::singly(&store, &policy, self.size.jobs / 4).await
            })
        })?;
        figures.push(figure("enqueue one at a time from 64 tasks", "/s", &singles, None, None));
        Ok(figures)
    }

    /// From four tasks, as many connections as the peers may use.
    fn enqueue_once(&self) -> anyhow::Result<f64> {
        let database = self.scene.database();
        common::block_on(async {
            let (store, policy) = database.open().await?;
            let started = Instant::now();
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let (store, policy, jobs) = (store.clone(), policy.clone(), self.size.jobs / 4);
                tasks.spawn(async move { common::fill(&store, &policy, jobs, Start::Now).await });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            Ok(self.size.jobs as f64 / started.elapsed().as_secs_f64())
        })
    }

    fn pickup(&self) -> anyhow::Result<Vec<Figure>> {
        let name = "idle pick-up, enqueue to handler start, p99";
        let rows = self.beside("pickup", || self.pickup_once(), |peer| peer.pickup_p99_ms)?;
        let mut figures = vec![figure(name, "ms", &rows.ours, None, Some(Bar::AtMost(5.0)))];
        figures.extend(rows.against(name, "ms", |peer| (peer == RIVAL).then_some(Bar::AtMost(1.0))));
        Ok(figures)
    }

    fn pickup_once(&self) -> anyhow::Result<f64> {
        let database = self.scene.database();
        common::block_on(async {
            let (store, policy) = database.open().await?;
            let pause = || Duration::from_millis(fastrand::u64(20..120));
            Ok(pickup::delays(&store, &policy, self.size.picks, pause).await?.at(0.99))
        })
    }

    fn held(&self) -> anyhow::Result<Vec<Figure>> {
        let free = held::rates(&self.scene, self.size.held / 5, false)?;
        let held = held::rates(&self.scene, self.size.held, true)?;
        let name = format!("drain through {:?} of another session's open transaction", self.size.held);
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
            "the last tenth of it",
            "/s",
            &last,
            Some(("without it".to_owned(), without)),
            None,
        ));
        Ok(figures)
    }

    fn waiting(&self) -> anyhow::Result<Vec<Figure>> {
        let rates = |waiting: usize| {
            let database = self.scene.database();
            common::block_on(async {
                let (store, policy) = database.open().await?;
                let later = Start::After(Duration::from_secs(24 * 60 * 60));
                common::fill(&store, &policy, waiting, later).await?;
                let mut rates = Vec::new();
                for round in 0..self.size.repeats {
                    common::fill(&store, &policy, self.size.jobs, Start::Now).await?;
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
            one.push(node::rate(&self.scene, 1, self.size.jobs)?);
            two.push(node::rate(&self.scene, 2, self.size.jobs)?);
        }
        // A node keeps about a core busy and the server the others.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let bar = if cores > 2 { 1.3 } else { 1.0 };
        let other = Some((format!("one node, on {cores} cores"), Samples::of(one)));
        Ok(vec![figure("drain by two nodes", "/s", &Samples::of(two), other, Some(Bar::AtLeast(bar)))])
    }

    fn beside(
        &self,
        part: &str,
        ours: impl Fn() -> anyhow::Result<f64>,
        theirs: impl Fn(&Peer) -> Option<f64>,
    ) -> anyhow::Result<Rows> {
        let size = [("--jobs", self.size.jobs), ("--picks", self.size.picks)];
        let database = || self.scene.database();
        beside(self.size.repeats, self.peers, part, &size, database, Database::address, ours, theirs)
    }
}
