//! What millions of jobs that wait in the future cost those that are due, and how much memory they take.

use std::time::Duration;

use anyhow::Context as _;
use redrive_core::Start;
use serde::{Deserialize, Serialize};

use crate::figures::{Bar, Figure, Samples};
use crate::{drain, scene};

/// What one process with a backlog in the future measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Drain rate, in jobs per second, of each repeat.
    pub rates: Vec<f64>,
    /// Resident memory after the last drain, in MiB.
    pub rss_mib: f64,
}

/// The drain with a large backlog against the drain with a small one, and the memory of the large one.
pub fn figures(many: usize, jobs: usize, repeats: usize) -> anyhow::Result<[Figure; 2]> {
    let small = in_process_of_its_own(10_000, jobs, repeats)?;
    let large = in_process_of_its_own(many, jobs, repeats)?;
    let rate = Figure {
        name: format!("drain with {many} waiting in the future"),
        unit: "/s",
        ours: Samples::of(large.rates),
        other: Some(("with 10,000 waiting".to_owned(), Samples::of(small.rates))),
        bar: Some(Bar::AtLeast(0.8)),
    };
    let memory = Figure {
        name: format!("resident memory with {many} waiting"),
        unit: "MiB",
        ours: Samples::of([large.rss_mib]),
        other: None,
        bar: Some(Bar::AtMost(256.0)),
    };
    Ok([rate, memory])
}

/// Fills a store with jobs an hour ahead, then drains due ones beside them.
pub fn measure(waiting: usize, jobs: usize, repeats: usize) -> anyhow::Result<Report> {
    let folder = scene::folder()?;
    scene::block_on(async {
        let (store, policy) = scene::open(folder.path()).await?;
        scene::fill(&store, &policy, waiting, Start::After(Duration::from_secs(3_600))).await?;
        let mut rates = Vec::new();
        for round in 0..repeats {
            scene::fill(&store, &policy, jobs, Start::Now).await?;
            rates.push(drain::drain(&store, jobs, round * jobs).await?);
        }
        Ok(Report { rates, rss_mib: rss_mib()? })
    })
}

/// A process of its own, so that the memory measured is that of this store alone.
fn in_process_of_its_own(waiting: usize, jobs: usize, repeats: usize) -> anyhow::Result<Report> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .args(["waiting", "--waiting", &waiting.to_string(), "--jobs", &jobs.to_string()])
        .args(["--repeats", &repeats.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    anyhow::ensure!(output.status.success(), "the measurement with {waiting} waiting jobs failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn rss_mib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("memory is measured on Linux only")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS line")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
