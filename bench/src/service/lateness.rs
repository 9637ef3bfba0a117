//! Measures how late tasks reach their target when a thousand are due each second, by the target's clock.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinSet;

use super::bare_client::BareClient;
use super::cpu::{Cores, Meter};
use super::request::{self, When};
use super::running_service::RunningService;
use super::sink::{ArrivalStatistics, Sink};
use crate::figures::{Bar, Figure, Samples};

/// Tasks that are due each second, one per millisecond.
const DUE_PER_S: usize = 1_000;
/// The time between the creation of the tasks and the first due time.
const CREATION_TIME: Duration = Duration::from_secs(4);
/// All tasks must arrive within this time after the last due time.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// The percentiles of the service, and those of a bare timer and client.
pub async fn figures(
    program: &Path,
    seconds: usize,
    repeats: usize,
    cores: &mut Cores,
) -> anyhow::Result<Vec<Figure>> {
    let mut sink = Sink::start().await?;
    let tasks = seconds * DUE_PER_S;
    let bare = vec![bare_lateness(&mut sink, tasks).await?];
    let mut ours = Vec::new();
    for _ in 0..repeats {
        ours.push(lateness(program, &mut sink, tasks, cores).await?);
    }
    sink.end().await?;
    let at = |name: &str, share: f64, runs: &[Samples], bar| Figure {
        name: format!("{name}, {DUE_PER_S} due/s"),
        unit: "ms",
        ours: Samples::of(runs.iter().map(|run| run.quantile(share))),
        other: None,
        bar,
    };
    Ok(vec![
        at("due to arrival p99", 0.99, &ours, Some(Bar::AtMost(5.0))),
        at("due to arrival p50", 0.5, &ours, None),
        at("due to arrival max", 1.0, &ours, None),
        at("bare timer and client p99", 0.99, &bare, None),
        at("bare timer and client p50", 0.5, &bare, None),
        at("bare timer and client max", 1.0, &bare, None),
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
    let mut service = RunningService::start(program, &[]).await?;
    sink.take().await?;
    let target = sink.target();
    let first = first_due();
    let due = |task: usize| When::At(first + task as i64);
    service.fill(tasks, |task| request::task(&target, &format!("order-{task:012}"), due(task))).await?;
    let spare = first as f64 - now_ms();
    anyhow::ensure!(
        spare > 0.0,
        "creating the tasks took longer than {CREATION_TIME:?}, so the first ones are already late"
    );
    tokio::time::sleep(Duration::from_secs_f64(spare / 1e3)).await;
    let meter = Meter::start(&[service.child.name_and_pid(), sink.name_and_pid()])?;
    tokio::time::sleep(Duration::from_millis(tasks as u64)).await;
    cores.add("1,000 due/s", meter.stop()?);
    sink.wait_for_arrivals(tasks as u64, ARRIVAL_TIMEOUT).await?;
    service.until_succeeded(tasks).await?;
    service.end().await?;
    lateness_of_all(sink.take().await?, tasks)
}

/// Measures the bare timer and client, which is the best that is possible.
async fn bare_lateness(sink: &mut Sink, tasks: usize) -> anyhow::Result<Samples> {
    let bare = BareClient::new(&sink.target())?;
    sink.take().await?;
    let first = first_due();
    let mut calls = JoinSet::new();
    for task in 0..tasks {
        let due = first + task as i64;
        let wait = due as f64 - now_ms();
        // Timers have a resolution of one millisecond. A sleep after the due time would delay this call and the next one.
        if wait > 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(wait / 1e3)).await;
        }
        let bare = bare.clone();
        calls.spawn(async move { bare.send(task, Some(due)).await });
    }
    calls.join_all().await.into_iter().collect::<anyhow::Result<()>>()?;
    lateness_of_all(sink.take().await?, tasks)
}

fn first_due() -> i64 {
    (now_ms() + CREATION_TIME.as_secs_f64() * 1e3) as i64
}

/// The lateness of each task. Fails if a task is missing, or arrived before it was due.
fn lateness_of_all(statistics: ArrivalStatistics, tasks: usize) -> anyhow::Result<Samples> {
    let arrived = statistics.late_ms.len();
    anyhow::ensure!(arrived == tasks, "{arrived} of {tasks} tasks arrived");
    let early = statistics.late_ms.iter().filter(|late| **late < 0.0).count();
    anyhow::ensure!(early == 0, "{early} of {tasks} tasks arrived before they were due");
    Ok(Samples::of(statistics.late_ms))
}
