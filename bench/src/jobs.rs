//! Durable jobs: how fast steps are remembered, children are joined, fan-outs fail, and jobs are drained under a bound for each
//! key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::{Bounds, Context, JobError, Queue, Quota, Redrive, Settings, Task};
use redrive_core::State;
use redrive_core::store::Backend;
use redrive_store_redis::{Options as RedisOptions, RedisStore};
use redrive_testkit::servers::Redis;
use serde::{Deserialize, Serialize};

use crate::figures::{Bar, Figure, Samples};
use crate::postgres::Scene;
use crate::{drain, fail_fast, scene};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Workflows of five steps in each repeat.
    pub flows: usize,
    /// Children of a fan-out.
    pub children: usize,
    /// Jobs drained under a bound for each key.
    pub bounded: usize,
    /// Repeats of each measurement.
    pub repeats: usize,
}

impl Size {
    /// What the bars are judged by.
    pub const FULL: Self = Self { flows: 20_000, children: 10_000, bounded: 100_000, repeats: 5 };
    /// A first look.
    pub const QUICK: Self = Self { flows: 4_000, children: 10_000, bounded: 20_000, repeats: 3 };
}

/// Steps of a workflow.
const STEPS: usize = 5;
/// Workflows at once.
const FLOWS_AT_ONCE: usize = 64;
/// Keys that share the bounded jobs.
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

/// Measures every bar on SQLite and on a private Postgres server, and how fan-outs fail on a private Redis server too; `said`
/// hears what is under way.
pub fn measure(size: Size, mut said: impl FnMut(&str)) -> anyhow::Result<Vec<Figure>> {
    let server = Scene::start();
    let mut figures = Vec::new();
    for place in [Place::Sqlite, Place::Postgres(&server), Place::Redis] {
        let name = place.name();
        said(&format!("failing fast on {name}"));
        figures.extend(fail_fast(&place, size)?);
        if matches!(place, Place::Redis) {
            continue;
        }
        said(&format!("steps on {name}"));
        figures.push(steps(&place, size)?);
        said(&format!("fan-out on {name}"));
        figures.push(fan_out(&place, size)?);
        said(&format!("bounds on {name}"));
        figures.push(bounded(&place, size)?);
    }
    Ok(figures)
}

/// Where it is measured.
enum Place<'a> {
    Sqlite,
    Postgres(&'a Scene),
    Redis,
}

impl Place<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres(_) => "Postgres",
            Self::Redis => "Redis",
        }
    }

    /// Steps per second that must be remembered.
    fn steps_bar(&self) -> f64 {
        match self {
            Self::Sqlite => 10_000.0,
            Self::Postgres(_) | Self::Redis => 5_000.0,
        }
    }

    /// Measures on an empty store.
    fn on<T, Fut>(&self, measure: impl FnOnce(Arc<dyn Backend>) -> Fut) -> anyhow::Result<T>
    where
        Fut: Future<Output = anyhow::Result<T>>,
    {
        match self {
            Self::Sqlite => {
                let folder = scene::folder()?;
                scene::block_on(async { measure(Arc::new(scene::open(folder.path()).await?.0)).await })
            }
            Self::Postgres(server) => {
                let database = server.database();
                scene::block_on(async { measure(Arc::new(database.open().await?.0)).await })
            }
            Self::Redis => {
                let server = Redis::start();
                scene::block_on(async {
                    let store = RedisStore::open(&server.address(), RedisOptions::default()).await?;
                    measure(Arc::new(store)).await
                })
            }
        }
    }
}

/// How soon a fan-out ends once a child was rejected, and how many of the others have run.
fn fail_fast(place: &Place<'_>, size: Size) -> anyhow::Result<Vec<Figure>> {
    let outcomes: Vec<fail_fast::Outcome> =
        (0..size.repeats).map(|_| place.on(fail_fast::measure)).collect::<anyhow::Result<_>>()?;
    let (name, children, at_once) = (place.name(), fail_fast::CHILDREN, fail_fast::AT_ONCE);
    let takes = fail_fast::CHILD_TAKES.as_millis();
    let figure = |name, unit, values, bar| Figure {
        name,
        unit,
        ours: Samples::of(values),
        other: None,
        bar: Some(bar),
    };
    let took: Vec<f64> = outcomes.iter().map(|outcome| outcome.took.as_secs_f64() * 1e3).collect();
    let ran: Vec<f64> =
        outcomes.iter().map(|outcome| f64::from(outcome.ran) * 100.0 / f64::from(children)).collect();
    Ok(vec![
        figure(
            format!(
                "{name}: a child is rejected until the parent has ended, {children} children of {takes} ms, {at_once} at once"
            ),
            "ms",
            took,
            Bar::AtMost(100.0),
        ),
        figure(format!("{name}: children that ran by then"), "%", ran, Bar::AtMost(5.0)),
    ])
}

fn steps(place: &Place<'_>, size: Size) -> anyhow::Result<Figure> {
    let rate = || {
        place.on(|store| async move {
            let redrive = Redrive::on(store);
            redrive.enqueue_all((0..size.flows).map(|_| Flow {})).await?;
            let worker = redrive.worker().settings(settings(FLOWS_AT_ONCE)).on(flow);
            let took = until_done(&redrive, worker, size.flows as u64).await?;
            Ok((size.flows * STEPS) as f64 / took.as_secs_f64())
        })
    };
    Ok(Figure {
        name: format!("{}: steps remembered, workflows of {STEPS}, {FLOWS_AT_ONCE} at once", place.name()),
        unit: "/s",
        ours: Samples::take(size.repeats, rate)?,
        other: None,
        bar: Some(Bar::AtLeast(place.steps_bar())),
    })
}

async fn flow(_: Flow, cx: Context) -> Result<(), JobError> {
    for step in 0..STEPS {
        cx.step(&format!("step {step}"), || async { Ok::<_, JobError>(step) }).await?;
    }
    Ok(())
}

/// Children and the join, against as many jobs without a parent.
fn fan_out(place: &Place<'_>, size: Size) -> anyhow::Result<Figure> {
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..size.repeats {
        plain.push(place.on(|store| plain_drain(store, size.children))?);
        ours.push(place.on(|store| async move {
            let redrive = Redrive::on(store);
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
        name: format!("{}: fan-out of {} children and the join", place.name(), size.children),
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

/// The drain under a bound for each of a thousand keys, against the same without.
fn bounded(place: &Place<'_>, size: Size) -> anyhow::Result<Figure> {
    let (mut ours, mut free) = (Vec::new(), Vec::new());
    for _ in 0..size.repeats {
        free.push(place.on(|store| keyed_drain(store, size.bounded, false))?);
        ours.push(place.on(|store| keyed_drain(store, size.bounded, true))?);
    }
    Ok(Figure {
        name: format!("{}: drain with a limit per key on {KEYS} keys", place.name()),
        unit: "/s",
        ours: Samples::of(ours),
        other: Some(("drain without it".to_owned(), Samples::of(free))),
        bar: Some(Bar::AtLeast(0.5)),
    })
}

async fn keyed_drain(store: Arc<dyn Backend>, jobs: usize, limited: bool) -> anyhow::Result<f64> {
    let redrive = Redrive::on(store);
    let enqueues = (0..jobs).map(|n| {
        let enqueue = redrive.enqueue(Child {});
        if limited { enqueue.limit_key(&format!("key-{}", n % KEYS)) } else { enqueue }
    });
    redrive.enqueue_all(enqueues).await?;
    if limited {
        let per_key = Bounds { concurrency: Some(4), rate: None };
        redrive.limit(&Queue::default(), Quota { per_key, ..Quota::default() }).await?;
    }
    let worker =
        redrive.worker().settings(settings(drain::CONCURRENCY)).on(|_: Child, _: Context| async { Ok(()) });
    let took = until_done(&redrive, worker, jobs as u64).await?;
    Ok(jobs as f64 / took.as_secs_f64())
}

fn settings(concurrency: usize) -> Settings {
    Settings::default().with_concurrency(concurrency)
}

/// Works until the store itself says that so many jobs have succeeded.
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
