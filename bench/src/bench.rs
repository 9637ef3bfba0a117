//! Which measurements there are, and how large.

use std::path::PathBuf;

use crate::figures::Figure;
use crate::peers::{self, Peer};
use crate::{drain, enqueue, lag, pickup, retry, waiting};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Jobs in each drain and enqueue.
    pub jobs: usize,
    /// Jobs that wait in the future.
    pub waiting: usize,
    /// Idle pick-ups in each repeat.
    pub picks: usize,
    /// Seconds of due jobs in each repeat.
    pub seconds: u64,
    /// Repeats of each measurement.
    pub repeats: usize,
}

impl Size {
    /// What the bars are judged by.
    pub const FULL: Self = Self { jobs: 200_000, waiting: 5_000_000, picks: 400, seconds: 10, repeats: 5 };
    /// What a newcomer waits for.
    pub const QUICK: Self = Self { jobs: 50_000, waiting: 100_000, picks: 200, seconds: 3, repeats: 3 };
}

/// Every bar, measured in turn; `said` hears what is under way.
pub fn all(size: Size, mut said: impl FnMut(&str)) -> anyhow::Result<Vec<Figure>> {
    let mut figures = engine(size, &mut said)?;
    said("jobs waiting in the future");
    figures.extend(waiting::figures(size.waiting, size.jobs, size.repeats)?);
    Ok(figures)
}

/// The bars that need no large backlog.
pub fn engine(size: Size, mut said: impl FnMut(&str)) -> anyhow::Result<Vec<Figure>> {
    let Size { jobs, picks, seconds, repeats, .. } = size;
    let mut figures = Vec::new();
    said("drain");
    figures.push(drain::figure(jobs, repeats)?);
    said("enqueue in batches");
    figures.push(enqueue::batches(jobs, repeats)?);
    said("enqueue one at a time");
    figures.push(enqueue::singles(jobs / 2, repeats)?);
    said("idle pick-up");
    figures.push(pickup::figure(picks, repeats)?);
    said("start lag");
    figures.push(lag::figure(seconds, repeats)?);
    said("retry()");
    figures.push(retry::figure(2_000_000, repeats)?);
    Ok(figures)
}

/// The peers' programs in turn, with our own figures in the same form.
pub fn peers(
    programs: &[PathBuf],
    size: Size,
    mut said: impl FnMut(&str),
) -> anyhow::Result<(Peer, Vec<Peer>)> {
    said("redrive beside its peers");
    let delays = pickup::delays_ms(size.picks)?;
    let ours = Peer {
        peer: "redrive".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        durability: "WAL, synchronous FULL".to_owned(),
        settings: format!("concurrency {}", drain::CONCURRENCY),
        enqueue_batch_per_s: Some(enqueue::batch_rate(size.jobs)?),
        enqueue_one_by_one_64_tasks_per_s: Some(enqueue::single_rate(size.jobs / 2)?),
        drain_per_s: Some(drain::rate(size.jobs)?),
        pickup_p50_ms: Some(delays.at(0.5)),
        pickup_p99_ms: Some(delays.at(0.99)),
        note: None,
    };
    let mut measured = Vec::new();
    for program in programs {
        said(&program.display().to_string());
        measured.push(peers::run(program, size.jobs, size.picks)?);
    }
    Ok((ours, measured))
}
