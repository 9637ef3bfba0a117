//! Measures how much millions of jobs that are due later slow down the jobs that are due now, and how much memory they need.

use std::time::Duration;

use anyhow::Context as _;
use redrive_core::Start;
use serde::{Deserialize, Serialize};

use crate::figures::{Bar, Figure, Samples};
use crate::{drain, setup};

/// The figures of one process with a backlog of future jobs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Drain rate, in jobs per second, of each repeat.
    pub rates: Vec<f64>,
    /// Resident memory after the last drain, in MiB.
    pub rss_mib: f64,
}

/// Compares the drain with a large backlog with the drain with a small one, and measures the memory with the large one.
pub fn figures(many: usize, jobs: usize, repeats: usize) -> anyhow::Result<[Figure; 2]> {
    let small = measure_in_new_process(10_000, jobs, repeats)?;
    let large = measure_in_new_process(many, jobs, repeats)?;
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

/// Fills a store with jobs that are due in an hour, then drains jobs that are due now.
pub fn measure(waiting: usize, jobs: usize, repeats: usize) -> anyhow::Result<Report> {
    let folder = setup::folder()?;
    setup::block_on(async {
        let (store, policy) = setup::open(folder.path()).await?;
        setup::fill(&store, &policy, waiting, Start::After(Duration::from_secs(3_600))).await?;
        let mut rates = Vec::new();
        for round in 0..repeats {
            setup::fill(&store, &policy, jobs, Start::Now).await?;
            rates.push(drain::drain(&store, jobs, round * jobs).await?);
        }
        Ok(Report { rates, rss_mib: memory_mib(std::process::id(), "VmRSS")? })
    })
}

/// Measures in a new process, so that the memory is that of this store only.
fn measure_in_new_process(waiting: usize, jobs: usize, repeats: usize) -> anyhow::Result<Report> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .args(["waiting", "--waiting", &waiting.to_string(), "--jobs", &jobs.to_string()])
        .args(["--repeats", &repeats.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    anyhow::ensure!(output.status.success(), "the measurement with {waiting} waiting jobs failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A line of `/proc/<pid>/status`, for example `VmRSS`, in MiB.
pub(crate) fn memory_mib(pid: u32, line: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} has ended, or this is not Linux"))?;
    let value = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let kib: f64 =
        value.with_context(|| format!("no {line} line"))?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
