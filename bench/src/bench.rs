//! The measurements of the SQLite store, and their sizes.

use std::path::PathBuf;

use crate::figures::Figure;
use crate::peers::{self, Peer};
use crate::{drain, enqueue, lag, pickup, retry, waiting};

/// The size of the measurements.
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
    /// The size by which the bars are judged.
    pub const FULL: Self = Self { jobs: 200_000, waiting: 5_000_000, picks: 400, seconds: 10, repeats: 5 };
    /// A short run.
    pub const QUICK: Self = Self { jobs: 50_000, waiting: 100_000, picks: 200, seconds: 3, repeats: 3 };
}

/// Measures every bar in turn. Calls `progress` with the name of each measurement.
pub fn all(size: Size, mut progress: impl FnMut(&str)) -> anyhow::Result<Vec<Figure>> {
    let mut figures = engine(size, &mut progress)?;
    progress("jobs waiting in the future");
    figures.extend(waiting::figures(size.waiting, size.jobs, size.repeats)?);
    Ok(figures)
}

/// Measures the bars that need no large backlog.
pub fn engine(size: Size, mut progress: impl FnMut(&str)) -> anyhow::Result<Vec<Figure>> {
    let Size { jobs, picks, seconds, repeats, .. } = size;
    let mut figures = Vec::new();
    progress("drain");
    figures.push(drain::figure(jobs, repeats)?);
    progress("enqueue in batches");
    figures.push(enqueue::batches(jobs, repeats)?);
    progress("enqueue one at a time");
    figures.push(enqueue::singles(jobs / 2, repeats)?);
    progress("idle pick-up");
    figures.push(pickup::figure(picks, repeats)?);
    progress("start lag");
    figures.push(lag::figure(seconds, repeats)?);
    progress("retry()");
    figures.push(retry::figure(2_000_000, repeats)?);
    Ok(figures)
}

/// Runs the programs of the peers in turn, and measures redrive in the same form.
pub fn peers(
    programs: &[PathBuf],
    size: Size,
    mut progress: impl FnMut(&str),
) -> anyhow::Result<(Peer, Vec<Peer>)> {
    progress("redrive and its peers");
    let delays = pickup::delays_ms(size.picks)?;
    let ours = Peer {
        peer: "redrive".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        durability: "WAL, synchronous FULL".to_owned(),
        settings: format!("concurrency {}", drain::CONCURRENCY),
        enqueue_batch_per_s: Some(enqueue::batch_rate(size.jobs)?),
        enqueue_one_by_one_64_tasks_per_s: Some(enqueue::single_rate(size.jobs / 2)?),
        drain_per_s: Some(drain::rate(size.jobs)?),
        pickup_p50_ms: Some(delays.quantile(0.5)),
        pickup_p99_ms: Some(delays.quantile(0.99)),
        note: None,
    };
    let mut measured = Vec::new();
    for program in programs {
        progress(&program.display().to_string());
        measured.push(peers::run(program, size.jobs, size.picks)?);
    }
    Ok((ours, measured))
}
