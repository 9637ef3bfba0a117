//! Ours and each peer in turn, in the same rounds, on fresh servers.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::figures::{Bar, Figure, Samples};
use crate::peers::Peer;

/// Ours, and what each peer did in the same rounds.
pub(crate) struct Rows {
    pub(crate) ours: Samples,
    pub(crate) peers: Vec<(String, Samples)>,
}

impl Rows {
    /// A line for each peer.
    pub(crate) fn against(
        &self,
        name: &str,
        unit: &'static str,
        bar: impl Fn(&str) -> Option<Bar>,
    ) -> Vec<Figure> {
        let one = |(peer, rates): &(String, Samples)| {
            let bar = bar(peer.split(' ').next().unwrap_or_default());
            figure(name, unit, &self.ours, Some((peer.clone(), rates.clone())), bar)
        };
        self.peers.iter().map(one).collect()
    }
}

/// Measures as often as asked for; each peer's program gets a server of its own by its address.
#[expect(clippy::too_many_arguments, reason = "what differs between two stores, once")]
pub(crate) fn beside<S>(
    repeats: usize,
    peers: &[PathBuf],
    part: &str,
    size: &[(&str, usize)],
    server: impl Fn() -> S,
    address: impl Fn(&S) -> String,
    ours: impl Fn() -> anyhow::Result<f64>,
    theirs: impl Fn(&Peer) -> Option<f64>,
) -> anyhow::Result<Rows> {
    let mut mine = Vec::new();
    let mut others: Vec<(String, Vec<f64>)> = vec![(String::new(), Vec::new()); peers.len()];
    for _ in 0..repeats {
        mine.push(ours()?);
        for (program, (name, rates)) in peers.iter().zip(&mut others) {
            let server = server();
            let peer = ask(program, &address(&server), part, size)?;
            rates.push(theirs(&peer).unwrap_or(f64::NAN));
            *name = format!("{} {}", peer.peer, peer.version);
        }
    }
    let peers = others.into_iter().map(|(name, rates)| (name, Samples::of(rates))).collect();
    Ok(Rows { ours: Samples::of(mine), peers })
}

/// A line of the table.
pub(crate) fn figure(
    name: &str,
    unit: &'static str,
    ours: &Samples,
    other: Option<(String, Samples)>,
    bar: Option<Bar>,
) -> Figure {
    Figure { name: name.to_owned(), unit, ours: ours.clone(), other, bar }
}

/// Runs a peer's program for one part.
fn ask(program: &Path, address: &str, part: &str, size: &[(&str, usize)]) -> anyhow::Result<Peer> {
    let mut command = Command::new(program);
    command.args(["--url", address, "--only", part]);
    for (name, number) in size {
        command.arg(name).arg(number.to_string());
    }
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.with_context(|| format!("{} does not start", program.display()))?;
    anyhow::ensure!(output.status.success(), "{} failed", program.display());
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} printed no figures", program.display()))
}
