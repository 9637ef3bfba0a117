//! How late tasks reach their target when a thousand fall due each second, as the target's clock says.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinSet;

use super::bare::Bare;
use super::cpu::{Cores, Meter};
use super::request::{self, When};
use super::running::Running;
use super::sink::{Sink, Tally};
use crate::figures::{Bar, Figure, Samples};

/// Tasks that fall due each second, one in each millisecond.
const DUE_PER_S: usize = 1_000;
/// From before the tasks are created until the first is due.
const AHEAD: Duration = Duration::from_secs(4);
/// How long after the last is due all must have arrived.
const ARRIVE_WITHIN: Duration = Duration::from_secs(20);

/// Percentiles of the service, then of a bare timer and client.
pub async fn figures(
    program: &Path,
    seconds: usize,
    repeats: usize,
    cores: &mut Cores,
) -> anyhow::Result<Vec<Figure>> {
    let mut sink = Sink::start().await?;
    let tasks = seconds * DUE_PER_S;
    let floor = vec![floor(&mut sink, tasks).await?];
    let mut ours = Vec::new();
    for _ in 0..repeats {
        ours.push(lateness(program, &mut sink, tasks, cores).await?);
    }
    sink.end().await?;
    let at = |name: &str, share: f64, runs: &[Samples], bar| Figure {
        name: format!("{name}, {DUE_PER_S} due/s"),
        unit: "ms",
        ours: Samples::of(runs.iter().map(|run| run.at(share))),
        other: None,
        bar,
    };
    Ok(vec![
        at("due to arrival p99", 0.99, &ours, Some(Bar::AtMost(5.0))),
        at("due to arrival p50", 0.5, &ours, None),
        at("due to arrival max", 1.0, &ours, None),
        at("bare timer and client p99", 0.99, &floor, None),
        at("bare timer and client p50", 0.5, &floor, None),
        at("bare timer and client max", 1.0, &floor, None),
    ])
}

/// The wall clock, which all processes of one machine share, in epoch ms.
pub fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

async fn lateness(
    program: &Path,
    sink: &mut Sink,
    tasks: usize,
    cores: &mut Cores,
) -> anyhow::Result<Samples> {
    let mut service = Running::start(program, &[]).await?;
    sink.take().await?;
    let target = sink.target();
    let first = first_due();
    let due = |task: usize| When::At(first + task as i64);
    service.fill(tasks, |task| request::task(&target, &format!("order-{task:012}"), due(task))).await?;
    let spare = first as f64 - now_ms();
    anyhow::ensure!(
        spare > 0.0,
        "the tasks took longer than {AHEAD:?} to create: the first are late already"
    );
    tokio::time::sleep(Duration::from_secs_f64(spare / 1e3)).await;
    let meter = Meter::start(&[service.child.watched(), sink.watched()])?;
    tokio::time::sleep(Duration::from_millis(tasks as u64)).await;
    cores.add("1,000 due/s", meter.stop()?);
    sink.until(tasks as u64, ARRIVE_WITHIN).await?;
    service.until_succeeded(tasks).await?;
    service.end().await?;
    complete(sink.take().await?, tasks)
}

/// The least that is possible with the same timer and the same client.
async fn floor(sink: &mut Sink, tasks: usize) -> anyhow::Result<Samples> {
    let bare = Bare::new(&sink.target())?;
    sink.take().await?;
    let first = first_due();
    let mut calls = JoinSet::new();
    for task in 0..tasks {
        let due = first + task as i64;
        let wait = due as f64 - now_ms();
        // A timer ticks in milliseconds: to sleep when it is time already would cost one, and the next would be late too.
        if wait > 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(wait / 1e3)).await;
        }
        let bare = bare.clone();
        calls.spawn(async move { bare.send(task, Some(due)).await });
    }
    calls.join_all().await.into_iter().collect::<anyhow::Result<()>>()?;
    complete(sink.take().await?, tasks)
}

fn first_due() -> i64 {
    (now_ms() + AHEAD.as_secs_f64() * 1e3) as i64
}

fn complete(tally: Tally, tasks: usize) -> anyhow::Result<Samples> {
    let stamped = tally.late_ms.len();
    anyhow::ensure!(stamped == tasks, "{stamped} arrivals of {tasks} tasks");
    let early = tally.late_ms.iter().filter(|late| **late < 0.0).count();
    anyhow::ensure!(early == 0, "{early} of {tasks} came before they were due");
    Ok(Samples::of(tally.late_ms))
}
