//! The background loop of a node: it samples counts for charts, writes heartbeats and removes old records.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::{StoreError, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::api::Api;

/// Interval between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Samples per heartbeat. A heartbeat is a write, and every write wakes workers, so heartbeats are rare.
const SAMPLES_PER_HEARTBEAT: u64 = 3;
/// Samples per write of the series.
const SAMPLES_PER_SAVE: u64 = 6;
/// Samples per removal of old records.
const SAMPLES_PER_PRUNE: u64 = 360;

/// Runs the loop until `closing` is cancelled. Then saves the series and removes this node's heartbeat.
pub(crate) async fn run(api: Arc<Api>, closing: CancellationToken) {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            () = next_tick(&api, &mut ticks) => {}
        }
        if let Err(error) = tick(&api, count).await {
            tracing::warn!(%error, "cannot read or write the state of this node; trying again in 10 s");
        }
    }
    if let Err(error) = save_and_remove_heartbeat(&api).await {
        tracing::warn!(%error, "cannot save the series or remove the heartbeat of this node");
    }
}

/// Waits for the next sample. If a problem of this node starts or ends meanwhile, writes a heartbeat at once.
async fn next_tick(api: &Api, ticks: &mut Interval) {
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => return,
            () = api.node_problem.changed() => {}
        }
        let written = async { api.write_heartbeat(api.store.stats().await?.now).await };
        if let Err(error) = written.await {
            tracing::warn!(%error, "cannot report a problem of this node to the other nodes");
        }
    }
}

async fn tick(api: &Api, count: u64) -> Result<(), StoreError> {
    let now = api.sample().await?;
    if count.is_multiple_of(SAMPLES_PER_HEARTBEAT) {
        api.write_heartbeat(now).await?;
    }
    if count > 0 && count.is_multiple_of(SAMPLES_PER_SAVE) {
        api.save_series(now).await?;
    }
    if count.is_multiple_of(SAMPLES_PER_PRUNE) {
        api.prune_series(now).await?;
        api.prune_nodes(now).await?;
    }
    Ok(())
}

/// Saves the last samples and removes the heartbeat, so that the list of nodes no longer shows this one.
async fn save_and_remove_heartbeat(api: &Api) -> Result<(), StoreError> {
    let now = api.sample().await?;
    api.save_series(now).await?;
    api.remove_heartbeat().await
}

impl Api {
    /// Adds the counts since the last sample to the series, and returns the store's time.
    pub async fn sample(&self) -> Result<Timestamp, StoreError> {
        let stats = self.store.stats().await?;
        let gates = self.parts.gates.status(Instant::now());
        self.series_recorder.sample(self.metrics.counters.take(), &stats, &gates);
        Ok(stats.now)
    }

    /// Takes a sample and stores the series and a heartbeat of this node.
    pub async fn save_node_state(&self) -> Result<(), StoreError> {
        let now = self.sample().await?;
        self.write_heartbeat(now).await?;
        self.save_series(now).await
    }
}

/// A problem that keeps a node from making attempts, as its heartbeat reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeProblem {
    pub(crate) text: String,
    /// When it started, in epoch ms.
    pub(crate) since: i64,
}

/// The problem that this node has now, if any.
#[derive(Default)]
pub(crate) struct LocalProblem {
    problem: Mutex<Option<NodeProblem>>,
    changed: Notify,
}

impl LocalProblem {
    pub(crate) fn get(&self) -> Option<NodeProblem> {
        self.lock().clone()
    }

    /// Sets the problem, or clears it. A problem whose text changes keeps its start time.
    pub(crate) fn set(&self, text: Option<&str>, now: Timestamp) {
        let mut problem = self.lock();
        let since = problem.as_ref().map_or(now.as_ms(), |problem| problem.since);
        *problem = text.map(|text| NodeProblem { text: text.to_owned(), since });
        self.changed.notify_one();
    }

    /// Waits for the next change.
    async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Option<NodeProblem>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
