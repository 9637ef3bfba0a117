//! Other job queues on SQLite, each a program of its own that prints what it measured.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// What a peer measured, at the durability it really runs at.
#[derive(Debug, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub peer: String,
    /// Its version.
    pub version: String,
    /// What survives a power cut.
    pub durability: String,
    /// How it was set up.
    pub settings: String,
    /// Jobs per second in batches.
    pub enqueue_batch_per_s: Option<f64>,
    /// Jobs per second one at a time from 64 tasks.
    pub enqueue_one_by_one_64_tasks_per_s: Option<f64>,
    /// Jobs per second drained, confirmed by the database.
    pub drain_per_s: Option<f64>,
    /// Median idle pick-up.
    pub pickup_p50_ms: Option<f64>,
    /// 99th percentile of the idle pick-up.
    pub pickup_p99_ms: Option<f64>,
    /// What else there is to say.
    #[serde(default)]
    pub note: Option<String>,
}

/// Runs the peer's program in a folder of its own.
pub fn run(program: &Path, jobs: usize, picks: usize) -> anyhow::Result<Peer> {
    let folder = crate::scene::folder()?;
    let output = Command::new(program)
        .arg("--dir")
        .arg(folder.path())
        .args(["--jobs", &jobs.to_string(), "--picks", &picks.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("{} does not start", program.display()))?;
    anyhow::ensure!(output.status.success(), "{} failed", program.display());
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} printed no figures", program.display()))
}

/// The peers beside our own figures.
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
