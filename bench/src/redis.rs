//! High volume on Redis, against the raw limit and against peers, on private servers and a private cluster.

mod probe;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use redrive_core::store::Store as _;
use redrive_core::{Policy, PolicyRef, Start, Tenant, catalog};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::{Redis, RedisCluster};

use crate::beside::{Rows, beside, figure};
use crate::figures::{Bar, Figure, Samples};
use crate::{drain, pickup, scene};

/// How much is measured.
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
    /// What the bars are judged by.
    pub const FULL: Self = Self { jobs: 200_000, picks: 200, repeats: 5 };
    /// A first look.
    pub const QUICK: Self = Self { jobs: 50_000, picks: 60, repeats: 3 };
}

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Draining no-op jobs, with the log written out every second.
    Drain,
    /// The same with every write on disk before its answer.
    Always,
    /// Getting jobs in.
    Enqueue,
    /// Idle pick-up.
    Pickup,
    /// A cluster of three primaries against one server.
    Cluster,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 5] = [Self::Drain, Self::Always, Self::Enqueue, Self::Pickup, Self::Cluster];
}

/// Measures the parts asked for; `said` hears what is under way.
pub fn measure(
    size: Size,
    peers: &[PathBuf],
    parts: &[Part],
    mut said: impl FnMut(&str),
) -> anyhow::Result<Vec<Figure>> {
    let run = Run { size, peers };
    let mut figures = Vec::new();
    for part in parts {
        said(&format!("{part:?}").to_lowercase());
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

/// A server that writes its log as it comes, or as often as asked.
fn server(fsync: &str) -> Redis {
    Redis::start_with(&[("appendfsync", fsync)])
}

/// A store at an address, with the default policy.
async fn open(address: &str) -> anyhow::Result<(RedisStore, PolicyRef)> {
    let store = RedisStore::open(address, Options::default()).await?;
    let policy = catalog::put_inline(&store, &Policy::default()).await?;
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
        let rows = self.beside("drain", peers, ours, |peer| peer.drain_per_s)?;
        for _ in 0..self.size.repeats {
            let server = server(fsync);
            raw.push(scene::block_on(probe::drain(&server.address(), self.size.jobs))?);
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
        let rows = self.beside("enqueue", self.peers, ours, |peer| peer.enqueue_batch_per_s)?;
        let raw = Samples::take(self.size.repeats, || {
            let server = server("everysec");
            scene::block_on(probe::enqueue(&server.address(), self.size.jobs))
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
            scene::block_on(async {
                let (store, policy) = open(&server.address()).await?;
                let pause = || Duration::from_millis(fastrand::u64(20..120));
                Ok(pickup::delays(&store, &policy, self.size.picks, pause).await?.at(0.99))
            })
        };
        let rows = self.beside("pickup", self.peers, ours, |peer| peer.pickup_p99_ms)?;
        let mut figures = vec![figure(name, "ms", &rows.ours, None, Some(Bar::AtMost(2.0)))];
        figures.extend(rows.against(name, "ms", |_| None));
        Ok(figures)
    }

    /// The same spread and the same program on both.
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

    fn beside(
        &self,
        part: &str,
        peers: &[PathBuf],
        ours: impl Fn() -> anyhow::Result<f64>,
        theirs: impl Fn(&crate::peers::Peer) -> Option<f64>,
    ) -> anyhow::Result<Rows> {
        let size = [("--jobs", self.size.jobs), ("--picks", self.size.picks)];
        beside(self.size.repeats, peers, part, &size, || server("everysec"), Redis::address, ours, theirs)
    }
}

fn drain_at(address: &str, jobs: usize) -> anyhow::Result<f64> {
    scene::block_on(async {
        let (store, policy) = open(address).await?;
        fill(&store, &policy, jobs).await?;
        drain::drain(&store, jobs, 0).await
    })
}

fn enqueue_at(address: &str, jobs: usize) -> anyhow::Result<f64> {
    scene::block_on(async {
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

/// Jobs of some tenants, as a service has them.
async fn fill(store: &RedisStore, policy: &PolicyRef, jobs: usize) -> anyhow::Result<()> {
    let mut left = jobs;
    let mut tenant = 0;
    while left > 0 {
        let batch = left.min(scene::BATCH);
        let mut some = Vec::with_capacity(batch);
        for _ in 0..batch {
            let mut job = scene::job(policy, Start::Now)?;
            job.tenant = Tenant::new(format!("tenant-{}", tenant % 8))?;
            some.push(job);
        }
        tenant += 1;
        store.enqueue(some).await?;
        left -= batch;
    }
    Ok(())
}
