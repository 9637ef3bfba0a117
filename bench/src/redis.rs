//! Measures high volume on Redis, and compares it with raw commands and with peers, on private servers and a private cluster.

mod probe;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use redrive_core::store::Store as _;
use redrive_core::{Policy, PolicyRef, Start, Tenant, catalog};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::{Redis, RedisCluster};

use crate::comparison::{Comparison, figure, measure_with_peers};
use crate::figures::{Bar, Figure, Samples};
use crate::{drain, pickup, setup};

/// The size of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Jobs in each drain and enqueue.
    pub jobs: usize,
    /// Idle pick-ups in each repeat.
    pub picks: usize,
    /// Repeats of each measurement.
    pub repeats: usize,
}

impl Size {
    /// The size by which the bars are judged.
    pub const FULL: Self = Self { jobs: 200_000, picks: 200, repeats: 5 };
    /// A short run.
    pub const QUICK: Self = Self { jobs: 50_000, picks: 60, repeats: 3 };
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Draining no-op jobs, with the log synced every second.
    Drain,
    /// Draining no-op jobs, with every write synced before its answer.
    Always,
    /// Enqueues.
    Enqueue,
    /// Idle pick-up.
    Pickup,
    /// A cluster of three primaries compared with one server.
    Cluster,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 5] = [Self::Drain, Self::Always, Self::Enqueue, Self::Pickup, Self::Cluster];
}

/// Measures these parts. Calls `progress` with the name of each.
pub fn measure(
    size: Size,
    peers: &[PathBuf],
    parts: &[Part],
    mut progress: impl FnMut(&str),
) -> anyhow::Result<Vec<Figure>> {
    let run = Run { size, peers };
    let mut figures = Vec::new();
    for part in parts {
        progress(&format!("{part:?}").to_lowercase());
        figures.extend(match part {
            Part::Drain => run.drain("everysec", peers)?,
            Part::Always => run.drain("always", &[])?,
            Part::Enqueue => run.enqueue()?,
            Part::Pickup => run.pickup()?,
            Part::Cluster => run.cluster()?,
        });
    }
    Ok(figures)
}

/// A server with this `appendfsync`.
fn server(fsync: &str) -> Redis {
    Redis::start_with(&[("appendfsync", fsync)])
}

/// A store at an address, with the default policy.
async fn open(address: &str) -> anyhow::Result<(RedisStore, PolicyRef)> {
    let store = RedisStore::open(address, Options::default()).await?;
    let policy = catalog::put_inline(&store, &Policy::default(), redrive_core::Timestamp::default()).await?;
    Ok((store, policy))
}

struct Run<'a> {
    size: Size,
    peers: &'a [PathBuf],
}

impl Run<'_> {
    fn drain(&self, fsync: &str, peers: &[PathBuf]) -> anyhow::Result<Vec<Figure>> {
        let name = format!("drain no-op jobs, appendfsync {fsync}");
        let mut raw = Vec::new();
        let ours = || {
            let server = server(fsync);
            drain_at(&server.address(), self.size.jobs)
        };
        let rows = self.with_peers("drain", peers, ours, |peer| peer.drain_per_s)?;
        for _ in 0..self.size.repeats {
            let server = server(fsync);
            raw.push(setup::block_on(probe::drain(&server.address(), self.size.jobs))?);
        }
        let limit = ("raw Lua claim and complete of 100".to_owned(), Samples::of(raw));
        let mut figures = vec![figure(&name, "/s", &rows.ours, Some(limit), Some(Bar::AtLeast(0.5)))];
        figures.extend(rows.against(&name, "/s", |_| None));
        Ok(figures)
    }

    fn enqueue(&self) -> anyhow::Result<Vec<Figure>> {
        let name = "enqueue in batches of 1000, four at once";
        let ours = || {
            let server = server("everysec");
            enqueue_at(&server.address(), self.size.jobs)
        };
        let rows = self.with_peers("enqueue", self.peers, ours, |peer| peer.enqueue_batch_per_s)?;
        let raw = Samples::take(self.size.repeats, || {
            let server = server("everysec");
            setup::block_on(probe::enqueue(&server.address(), self.size.jobs))
        })?;
        let limit = ("raw pipelined ZADD + HSET".to_owned(), raw);
        let mut figures = vec![figure(name, "/s", &rows.ours, Some(limit), Some(Bar::AtLeast(0.5)))];
        figures.extend(rows.against(name, "/s", |_| None));
        Ok(figures)
    }

    fn pickup(&self) -> anyhow::Result<Vec<Figure>> {
        let name = "idle pick-up, enqueue to handler start, p99";
        let ours = || {
            let server = server("everysec");
            setup::block_on(async {
                let (store, policy) = open(&server.address()).await?;
                let pause = || Duration::from_millis(fastrand::u64(20..120));
                Ok(pickup::delays(&store, &policy, self.size.picks, pause).await?.quantile(0.99))
            })
        };
        let rows = self.with_peers("pickup", self.peers, ours, |peer| peer.pickup_p99_ms)?;
        let mut figures = vec![figure(name, "ms", &rows.ours, None, Some(Bar::AtMost(2.0)))];
        figures.extend(rows.against(name, "ms", |_| None));
        Ok(figures)
    }

    /// Compares a cluster with a single server. Both spread jobs by key.
    fn cluster(&self) -> anyhow::Result<Vec<Figure>> {
        let (mut one, mut three) = (Vec::new(), Vec::new());
        for _ in 0..self.size.repeats {
            let server = server("everysec");
            one.push(drain_at(&format!("{}?spread_by=key", server.address()), self.size.jobs)?);
            drop(server);
            let cluster = RedisCluster::start(3, 0, &[("appendfsync", "everysec")]);
            three.push(drain_at(&format!("{}&spread_by=key", cluster.address()), self.size.jobs)?);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let other = Some((format!("one server, on {cores} cores"), Samples::of(one)));
        let name = "drain on a cluster of three primaries";
        Ok(vec![figure(name, "/s", &Samples::of(three), other, Some(Bar::AtLeast(1.0)))])
    }

    fn with_peers(
        &self,
        part: &str,
        peers: &[PathBuf],
        ours: impl Fn() -> anyhow::Result<f64>,
        theirs: impl Fn(&crate::peers::Peer) -> Option<f64>,
    ) -> anyhow::Result<Comparison> {
        let size = [("--jobs", self.size.jobs), ("--picks", self.size.picks)];
        measure_with_peers(
            self.size.repeats,
            peers,
            part,
            &size,
            || server("everysec"),
            Redis::address,
            ours,
            theirs,
        )
    }
}

fn drain_at(address: &str, jobs: usize) -> anyhow::Result<f64> {
    setup::block_on(async {
        let (store, policy) = open(address).await?;
        fill(&store, &policy, jobs).await?;
        drain::drain(&store, jobs, 0).await
    })
}

fn enqueue_at(address: &str, jobs: usize) -> anyhow::Result<f64> {
    setup::block_on(async {
        let (store, policy) = open(address).await?;
        let started = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (store, policy) = (store.clone(), policy.clone());
            tasks.spawn(async move { fill(&store, &policy, jobs / 4).await });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(jobs as f64 / started.elapsed().as_secs_f64())
    })
}

/// Enqueues jobs of several tenants, like a service.
async fn fill(store: &RedisStore, policy: &PolicyRef, jobs: usize) -> anyhow::Result<()> {
    let mut left = jobs;
    let mut tenant = 0;
    while left > 0 {
        let batch = left.min(setup::BATCH);
        let mut new_jobs = Vec::with_capacity(batch);
        for _ in 0..batch {
            let mut job = setup::job(policy, Start::Now)?;
            job.tenant = Tenant::new(format!("tenant-{}", tenant % 8))?;
            new_jobs.push(job);
        }
        tenant += 1;
        store.enqueue(new_jobs).await?;
        left -= batch;
    }
    Ok(())
}
