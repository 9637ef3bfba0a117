//! Measures two nodes, and compares them with one.

use std::time::Instant;

use redrive_core::Start;
use redrive_store_postgres::PostgresStore;

use super::Run;
use super::node::Node;
use crate::comparison::figure;
use crate::figures::{Bar, Figure, Samples};
use crate::setup;

pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..run.size.repeats {
        one.push(rate(run, 1)?);
        two.push(rate(run, 2)?);
    }
    // A node uses about one core, and the server uses the others.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bar = if cores > 2 { 1.3 } else { 1.0 };
    let other = Some((format!("one node, on {cores} cores"), Samples::of(one)));
    Ok(vec![figure("drain by two nodes", "/s", &Samples::of(two), other, Some(Bar::AtLeast(bar)))])
}

fn rate(run: &Run<'_>, nodes: usize) -> anyhow::Result<f64> {
    let (database, jobs) = (run.server.database(), run.size.jobs);
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        setup::fill(&store, &policy, jobs, Start::Now).await?;
        Ok(drain_by_nodes(&store, &database.address(), nodes, jobs, 0).await?.0)
    })
}

/// Drains `jobs` due jobs by new processes, in a store where `before` jobs have succeeded already. Returns jobs per second, and the
/// largest peak memory of a process in MiB.
pub(super) async fn drain_by_nodes(
    store: &PostgresStore,
    address: &str,
    nodes: usize,
    jobs: usize,
    before: usize,
) -> anyhow::Result<(f64, f64)> {
    let started = Instant::now();
    let nodes = (0..nodes).map(|_| Node::start(address)).collect::<anyhow::Result<Vec<_>>>()?;
    setup::until_succeeded(store, (before + jobs) as u64).await?;
    let rate = jobs as f64 / started.elapsed().as_secs_f64();
    let mut memory_mib = 0.0_f64;
    for node in nodes {
        memory_mib = memory_mib.max(node.peak_memory_mib()?);
        node.end()?;
    }
    Ok((rate, memory_mib))
}
