//! Measures redrive and each peer in turn, in the same rounds, on new servers.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::figures::{Bar, Figure, Samples};
use crate::peers::Peer;

/// The figures of redrive and of each peer from the same rounds.
pub(crate) struct Comparison {
    pub(crate) ours: Samples,
    pub(crate) peers: Vec<(String, Samples)>,
}

impl Comparison {
    /// A line of the table for each peer.
    pub(crate) fn against(
        &self,
        name: &str,
        unit: &'static str,
        bar: impl Fn(&str) -> Option<Bar>,
    ) -> Vec<Figure> {
        let figure = |(peer, rates): &(String, Samples)| {
            let bar = bar(peer.split(' ').next().unwrap_or_default());
            figure(name, unit, &self.ours, Some((peer.clone(), rates.clone())), bar)
        };
        self.peers.iter().map(figure).collect()
    }
}

/// Measures `repeats` times. Each run of a peer gets a new server, whose address the program receives.
#[expect(clippy::too_many_arguments, reason = "everything that differs between two stores")]
pub(crate) fn measure_with_peers<S>(
    repeats: usize,
    peers: &[PathBuf],
    part: &str,
    size: &[(&str, usize)],
    server: impl Fn() -> S,
    address: impl Fn(&S) -> String,
    ours: impl Fn() -> anyhow::Result<f64>,
    theirs: impl Fn(&Peer) -> Option<f64>,
) -> anyhow::Result<Comparison> {
    let mut our_values = Vec::new();
    let mut peer_values: Vec<(String, Vec<f64>)> = vec![(String::new(), Vec::new()); peers.len()];
    for _ in 0..repeats {
        our_values.push(ours()?);
        for (program, (name, values)) in peers.iter().zip(&mut peer_values) {
            let server = server();
            let peer = run_peer(program, &address(&server), part, size)?;
            values.push(theirs(&peer).unwrap_or(f64::NAN));
            *name = format!("{} {}", peer.peer, peer.version);
        }
    }
    let peers = peer_values.into_iter().map(|(name, values)| (name, Samples::of(values))).collect();
    Ok(Comparison { ours: Samples::of(our_values), peers })
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
fn run_peer(program: &Path, address: &str, part: &str, size: &[(&str, usize)]) -> anyhow::Result<Peer> {
    let mut command = Command::new(program);
    command.args(["--url", address, "--only", part]);
    for (name, number) in size {
        command.arg(name).arg(number.to_string());
    }
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    anyhow::ensure!(output.status.success(), "{} failed", program.display());
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} printed no figures", program.display()))
}
