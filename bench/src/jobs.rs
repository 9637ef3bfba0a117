//! Measures durable jobs: how fast steps are stored, children are joined, fan-outs fail, and jobs are drained with a limit per key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::{Context, JobError, Limits, Queue, QueueLimits, Redrive, Settings, Task};
use redrive_core::State;
use redrive_core::store::Backend;
use redrive_store_redis::{Options as RedisOptions, RedisStore};
use redrive_testkit::servers::Redis;
use serde::{Deserialize, Serialize};

use crate::figures::{Bar, Figure, Samples};
use crate::postgres::PrivateServer;
use crate::{drain, fail_fast, setup};

/// The size of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Workflows of five steps in each repeat.
    pub flows: usize,
    /// Children of a fan-out.
    pub children: usize,
    /// Jobs drained with a limit per key.
    pub limited: usize,
    /// Repeats of each measurement.
    pub repeats: usize,
}

impl Size {
    /// The size by which the bars are judged.
    pub const FULL: Self = Self { flows: 20_000, children: 10_000, limited: 100_000, repeats: 5 };
    /// A short run.
    pub const QUICK: Self = Self { flows: 4_000, children: 10_000, limited: 20_000, repeats: 3 };
}

/// Steps of a workflow.
const STEPS: usize = 5;
/// Workflows at once.
const FLOWS_AT_ONCE: usize = 64;
/// The keys of the limited jobs.
const KEYS: usize = 1_000;

#[derive(Serialize, Deserialize)]
struct Flow {}

impl Task for Flow {
    const KIND: &'static str = "flow";
    type Output = ();
}

#[derive(Serialize, Deserialize)]
struct Parent {
    children: usize,
}

impl Task for Parent {
    const KIND: &'static str = "parent";
    type Output = usize;
}

#[derive(Serialize, Deserialize)]
struct Child {}

impl Task for Child {
    const KIND: &'static str = "child";
    type Output = ();
}

/// Measures every bar on SQLite and on a private Postgres server, and failing fan-outs also on a private Redis server. Calls `progress` with
/// the name of each measurement.
pub fn measure(size: Size, mut progress: impl FnMut(&str)) -> anyhow::Result<Vec<Figure>> {
    let server = PrivateServer::start();
    let mut figures = Vec::new();
    for store in [StoreKind::Sqlite, StoreKind::Postgres(&server), StoreKind::Redis] {
        let name = store.name();
        progress(&format!("failing fast on {name}"));
        figures.extend(fail_fast(&store, size)?);
        if matches!(store, StoreKind::Redis) {
            continue;
        }
        progress(&format!("steps on {name}"));
        figures.push(steps(&store, size)?);
        progress(&format!("fan-out on {name}"));
        figures.push(fan_out(&store, size)?);
        progress(&format!("limits on {name}"));
        figures.push(limited(&store, size)?);
    }
    Ok(figures)
}

/// The kind of store to measure.
enum StoreKind<'a> {
    Sqlite,
    Postgres(&'a PrivateServer),
    Redis,
}

impl StoreKind<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres(_) => "Postgres",
            Self::Redis => "Redis",
        }
    }

    /// The bar in steps per second.
    fn steps_bar(&self) -> f64 {
        match self {
            Self::Sqlite => 10_000.0,
            Self::Postgres(_) | Self::Redis => 5_000.0,
        }
    }

    /// Runs `measure` on an empty store.
    fn with_empty_store<T, Fut>(&self, measure: impl FnOnce(Arc<dyn Backend>) -> Fut) -> anyhow::Result<T>
    where
        Fut: Future<Output = anyhow::Result<T>>,
    {
        match self {
            Self::Sqlite => {
                let folder = setup::folder()?;
                setup::block_on(async { measure(Arc::new(setup::open(folder.path()).await?.0)).await })
            }
            Self::Postgres(server) => {
                let database = server.database();
                setup::block_on(async { measure(Arc::new(database.open().await?.0)).await })
            }
            Self::Redis => {
                let server = Redis::start();
                setup::block_on(async {
                    let store = RedisStore::open(&server.address(), RedisOptions::default()).await?;
                    measure(Arc::new(store)).await
                })
            }
        }
    }
}

/// Measures how soon a fan-out ends after a child was rejected, and how many children ran before that.
fn fail_fast(store: &StoreKind<'_>, size: Size) -> anyhow::Result<Vec<Figure>> {
    let results: Vec<fail_fast::FanOutResult> = (0..size.repeats)
        .map(|_| store.with_empty_store(fail_fast::measure))
        .collect::<anyhow::Result<_>>()?;
    let (name, children, at_once) = (store.name(), fail_fast::CHILDREN, fail_fast::CONCURRENCY);
    let child_ms = fail_fast::CHILD_DURATION.as_millis();
    let figure = |name, unit, values, bar| Figure {
        name,
        unit,
        ours: Samples::of(values),
        other: None,
        bar: Some(bar),
    };
    let took: Vec<f64> = results.iter().map(|result| result.took.as_secs_f64() * 1e3).collect();
    let ran: Vec<f64> =
        results.iter().map(|result| f64::from(result.ran) * 100.0 / f64::from(children)).collect();
    Ok(vec![
        figure(
            format!(
                "{name}: from the rejection of a child to the end of its parent, {children} children of {child_ms} ms, {at_once} at once"
            ),
            "ms",
            took,
            Bar::AtMost(100.0),
        ),
        figure(format!("{name}: children that ran before the parent ended"), "%", ran, Bar::AtMost(5.0)),
    ])
}

fn steps(store: &StoreKind<'_>, size: Size) -> anyhow::Result<Figure> {
    let rate = || {
        store.with_empty_store(|backend| async move {
            let redrive = Redrive::on(backend);
            redrive.enqueue_all((0..size.flows).map(|_| Flow {})).await?;
            let worker = redrive.worker().settings(settings(FLOWS_AT_ONCE)).on(flow);
            let took = until_done(&redrive, worker, size.flows as u64).await?;
            Ok((size.flows * STEPS) as f64 / took.as_secs_f64())
        })
    };
    Ok(Figure {
        name: format!("{}: steps stored, workflows of {STEPS}, {FLOWS_AT_ONCE} at once", store.name()),
        unit: "/s",
        ours: Samples::take(size.repeats, rate)?,
        other: None,
        bar: Some(Bar::AtLeast(store.steps_bar())),
    })
}

async fn flow(_: Flow, cx: Context) -> Result<(), JobError> {
    for step in 0..STEPS {
        cx.step(&format!("step {step}"), || async { Ok::<_, JobError>(step) }).await?;
    }
    Ok(())
}

/// Compares children and their join with the same number of jobs without a parent.
fn fan_out(store: &StoreKind<'_>, size: Size) -> anyhow::Result<Figure> {
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..size.repeats {
        plain.push(store.with_empty_store(|store| plain_drain(store, size.children))?);
        ours.push(store.with_empty_store(|backend| async move {
            let redrive = Redrive::on(backend);
            redrive.enqueue(Parent { children: size.children }).await?;
            let worker = redrive
                .worker()
                .settings(settings(drain::CONCURRENCY))
                .on(|job: Parent, cx: Context| async move {
                    Ok(cx.fan_out((0..job.children).map(|_| Child {})).await?.len())
                })
                .on(|_: Child, _: Context| async { Ok(()) });
            let took = until_done(&redrive, worker, size.children as u64 + 1).await?;
            Ok(size.children as f64 / took.as_secs_f64())
        })?);
    }
    Ok(Figure {
        name: format!("{}: fan-out of {} children and the join", store.name(), size.children),
        unit: "/s",
        ours: Samples::of(ours),
        other: Some(("enqueue and drain without a parent".to_owned(), Samples::of(plain))),
        bar: Some(Bar::AtLeast(0.5)),
    })
}

/// Enqueues and drains jobs without a parent.
async fn plain_drain(store: Arc<dyn Backend>, jobs: usize) -> anyhow::Result<f64> {
    let redrive = Redrive::on(store);
    let started = Instant::now();
    redrive.enqueue_all((0..jobs).map(|_| Child {})).await?;
    let worker =
        redrive.worker().settings(settings(drain::CONCURRENCY)).on(|_: Child, _: Context| async { Ok(()) });
    until_done(&redrive, worker, jobs as u64).await?;
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}

/// Compares the drain with a limit for each of a thousand keys with the drain without limits.
fn limited(store: &StoreKind<'_>, size: Size) -> anyhow::Result<Figure> {
    let (mut ours, mut unlimited) = (Vec::new(), Vec::new());
    for _ in 0..size.repeats {
        unlimited.push(store.with_empty_store(|store| keyed_drain(store, size.limited, false))?);
        ours.push(store.with_empty_store(|store| keyed_drain(store, size.limited, true))?);
    }
    Ok(Figure {
        name: format!("{}: drain with a limit per key on {KEYS} keys", store.name()),
        unit: "/s",
        ours: Samples::of(ours),
        other: Some(("drain without it".to_owned(), Samples::of(unlimited))),
        bar: Some(Bar::AtLeast(0.5)),
    })
}

async fn keyed_drain(store: Arc<dyn Backend>, jobs: usize, limited: bool) -> anyhow::Result<f64> {
    let redrive = Redrive::on(store);
    let enqueues = (0..jobs).map(|n| {
        let enqueue = redrive.enqueue(Child {});
        if limited { enqueue.partition_key(&format!("key-{}", n % KEYS)) } else { enqueue }
    });
    redrive.enqueue_all(enqueues).await?;
    if limited {
        let per_key = Limits { concurrency: Some(4), rate: None };
        redrive.set_limits(&Queue::default(), QueueLimits { per_key, ..QueueLimits::default() }).await?;
    }
    let worker =
        redrive.worker().settings(settings(drain::CONCURRENCY)).on(|_: Child, _: Context| async { Ok(()) });
    let took = until_done(&redrive, worker, jobs as u64).await?;
    Ok(jobs as f64 / took.as_secs_f64())
}

fn settings(concurrency: usize) -> Settings {
    Settings::default().with_concurrency(concurrency)
}

/// Runs the worker until the store counts `jobs` succeeded jobs.
async fn until_done(redrive: &Redrive, worker: redrive::TaskWorker, jobs: u64) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let done = async {
        while redrive.backend().stats().await.is_ok_and(|stats| stats.in_state(State::Succeeded) < jobs) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), worker.run_until(done)).await??;
    let succeeded = redrive.backend().stats().await?.in_state(State::Succeeded);
    anyhow::ensure!(succeeded == jobs, "{succeeded} of {jobs} jobs succeeded");
    Ok(started.elapsed())
}
