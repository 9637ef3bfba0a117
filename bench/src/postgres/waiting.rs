//! Measures how much millions of future jobs slow down due jobs, and how much memory the draining process needs.

use std::time::Duration;

use redrive_core::{NewJob, PolicyRef, Start};
use redrive_store_postgres::PostgresStore;

use super::nodes::drain_by_nodes;
use super::server::Database;
use super::{Run, fill_from_four_tasks};
use crate::comparison::figure;
use crate::figures::{Bar, Figure, Samples};
use crate::setup;

/// Future jobs of the comparison.
const FEW: usize = 10_000;

/// Drains a database with many future jobs and one with few in turn, each time with a new process.
pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let (few, many) = (run.server.database(), run.server.database());
    let (mut few_rates, mut many_rates, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    setup::block_on(async {
        let few = Backlog::create(&few, FEW).await?;
        let many = Backlog::create(&many, run.size.waiting).await?;
        for round in 0..run.size.repeats {
            few_rates.push(few.drain(run.size.jobs, round).await?.0);
            let (rate, memory_mib) = many.drain(run.size.jobs, round).await?;
            many_rates.push(rate);
            memory.push(memory_mib);
        }
        Ok(())
    })?;
    let waiting = run.size.waiting;
    let other = Some((format!("with {FEW} waiting"), Samples::of(few_rates)));
    let name = format!("drain with {waiting} waiting in the future");
    let memory_name = format!("peak memory of the draining process with {waiting} waiting");
    Ok(vec![
        figure(&name, "/s", &Samples::of(many_rates), other, Some(Bar::AtLeast(0.9))),
        figure(&memory_name, "MiB", &Samples::of(memory), None, Some(Bar::AtMost(256.0))),
    ])
}

/// A database with future jobs.
struct Backlog {
    address: String,
    store: PostgresStore,
    policy: PolicyRef,
}

impl Backlog {
    async fn create(database: &Database<'_>, jobs: usize) -> anyhow::Result<Self> {
        let (store, policy) = database.open().await?;
        let start = Start::After(Duration::from_secs(24 * 60 * 60));
        let (made_with, payload) = (policy.clone(), setup::payload(100));
        let make = move || Ok(NewJob { start, ..setup::job_with(&made_with, &payload)? });
        fill_from_four_tasks(&store, jobs, make).await?;
        Ok(Self { address: database.address(), store, policy })
    }

    /// Returns jobs per second, and the peak memory of the draining process in MiB.
    async fn drain(&self, jobs: usize, round: usize) -> anyhow::Result<(f64, f64)> {
        setup::fill(&self.store, &self.policy, jobs, Start::Now).await?;
        drain_by_nodes(&self.store, &self.address, 1, jobs, round * jobs).await
    }
}
