//! Other job queues, each measured by a program of its own that prints its figures.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// The figures of a peer, with its durability and its settings.
#[derive(Debug, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub peer: String,
    /// Its version.
    pub version: String,
    /// The settings that decide which acknowledged writes survive a power failure.
    pub durability: String,
    /// The settings that were chosen for the measurement.
    pub settings: String,
    /// Jobs per second in batches.
    pub enqueue_batch_per_s: Option<f64>,
    /// Jobs per second one at a time from 64 tasks.
    pub enqueue_one_by_one_64_tasks_per_s: Option<f64>,
    /// Jobs per second drained, confirmed by the database.
    pub drain_per_s: Option<f64>,
    /// Median of the idle pick-up.
    pub pickup_p50_ms: Option<f64>,
    /// 99th percentile of the idle pick-up.
    pub pickup_p99_ms: Option<f64>,
    /// The problems of the run, such as an incomplete phase. `None` without problems.
    #[serde(default)]
    pub note: Option<String>,
}

/// Runs the program of a peer in a new folder.
pub fn run(program: &Path, jobs: usize, picks: usize) -> anyhow::Result<Peer> {
    let folder = crate::setup::folder()?;
    let output = Command::new(program)
        .arg("--dir")
        .arg(folder.path())
        .args(["--jobs", &jobs.to_string(), "--picks", &picks.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    anyhow::ensure!(output.status.success(), "{} failed", program.display());
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} printed no figures", program.display()))
}

/// The figures of redrive and its peers as a table.
pub fn table(ours: &Peer, peers: &[Peer]) -> String {
    let show = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.0}"));
    let show_ms = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2}"));
    let mut table = format!(
        "{:<16} {:>14} {:>16} {:>12} {:>16} {:>16}  durability\n",
        "", "enqueue batch/s", "enqueue 64×1/s", "drain/s", "pick-up p50 ms", "pick-up p99 ms"
    );
    for peer in std::iter::once(ours).chain(peers) {
        table.push_str(&format!(
            "{:<16} {:>14} {:>16} {:>12} {:>16} {:>16}  {}\n",
            format!("{} {}", peer.peer, peer.version),
            show(peer.enqueue_batch_per_s),
            show(peer.enqueue_one_by_one_64_tasks_per_s),
            show(peer.drain_per_s),
            show_ms(peer.pickup_p50_ms),
            show_ms(peer.pickup_p99_ms),
            peer.durability,
        ));
    }
    table
}
