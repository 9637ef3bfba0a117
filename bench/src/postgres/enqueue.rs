//! Measures enqueues of payloads of several sizes, in batches and one at a time, and compares them with peers.

use std::time::Instant;

use super::{Payload, Run, fill_from_four_tasks};
use crate::comparison::figure;
use crate::enqueue::enqueue_singly;
use crate::figures::{Bar, Figure};
use crate::setup;

/// The most jobs that redrive enqueues one at a time.
const SINGLES_MAX: usize = 20_000;
/// The most jobs that a peer enqueues one at a time. Each one waits for the disk, so more would take minutes.
const PEER_SINGLES_MAX: usize = 5_000;

/// Batches from four tasks, because the peers may use four connections.
pub(super) fn batches(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for payload in run.size.payloads() {
        let name = format!("enqueue {payload} in batches of 1000, four at once");
        let rows =
            run.with_peers("enqueue", payload, || batch_rate(run, payload), |peer| peer.enqueue_batch_per_s)?;
        figures.push(figure(&name, "/s", &rows.ours, None, None));
        figures.extend(rows.against(&name, "/s", |_| Some(Bar::AtLeast(1.0))));
    }
    Ok(figures)
}

/// Single jobs from 64 tasks. The bar is for the best peer, so every peer has it.
pub(super) fn singles(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for payload in run.size.payloads() {
        let name = format!("enqueue {payload} one at a time from 64 tasks");
        let rows = run.with_peers(
            "singles",
            Payload { jobs: payload.jobs.min(PEER_SINGLES_MAX), ..payload },
            || single_rate(run, payload),
            |peer| peer.enqueue_one_by_one_64_tasks_per_s,
        )?;
        figures.push(figure(&name, "/s", &rows.ours, None, None));
        figures.extend(rows.against(&name, "/s", |_| Some(Bar::AtLeast(1.5))));
    }
    Ok(figures)
}

fn batch_rate(run: &Run<'_>, payload: Payload) -> anyhow::Result<f64> {
    let database = run.server.database();
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        let bytes = payload.content();
        let started = Instant::now();
        fill_from_four_tasks(&store, payload.jobs, move || setup::job_with(&policy, &bytes)).await?;
        Ok(payload.jobs as f64 / started.elapsed().as_secs_f64())
    })
}

fn single_rate(run: &Run<'_>, payload: Payload) -> anyhow::Result<f64> {
    let database = run.server.database();
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        let bytes = payload.content();
        let jobs = payload.jobs.min(SINGLES_MAX);
        enqueue_singly(&store, jobs, move || setup::job_with(&policy, &bytes)).await
    })
}
