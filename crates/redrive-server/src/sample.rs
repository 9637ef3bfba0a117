//! Looks at the node itself every few seconds: what it did, that it lives, and what nodes that are gone have left.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::{StoreError, Timestamp};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::api::Api;

/// Time from one sample to the next.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Samples from one sign of life to the next: a write wakes workers, so it is not made more often.
const BEAT_EVERY: u64 = 3;
/// Samples from one writing down of the series to the next.
const KEEP_EVERY: u64 = 6;
/// Samples from one search for what is too old to the next.
const PRUNE_EVERY: u64 = 360;

/// Samples until `closing` is cancelled, then says goodbye.
pub(crate) async fn watch(api: Arc<Api>, closing: CancellationToken) {
    let mut ticks = interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            () = next_tick(&api, &mut ticks) => {}
        }
        if let Err(error) = tick(&api, count).await {
            tracing::warn!(%error, "a sample could not be taken");
        }
    }
    if let Err(error) = goodbye(&api).await {
        tracing::warn!(%error, "the node could not say goodbye");
    }
}

/// Waits for the next sample. A problem of the node that begins or ends meanwhile is told at once.
async fn next_tick(api: &Api, ticks: &mut Interval) {
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => return,
            () = api.node_problem.changed() => {}
        }
        let told = async { api.beat(api.store.stats().await?.now).await };
        if let Err(error) = told.await {
            tracing::warn!(%error, "the other nodes could not be told of a problem of this one");
        }
    }
}

async fn tick(api: &Api, count: u64) -> Result<(), StoreError> {
    let now = api.sample().await?;
    if count.is_multiple_of(BEAT_EVERY) {
        api.beat(now).await?;
    }
    if count > 0 && count.is_multiple_of(KEEP_EVERY) {
        api.keep_series(now).await?;
    }
    if count.is_multiple_of(PRUNE_EVERY) {
        api.prune_series(now).await?;
        api.prune_nodes(now).await?;
    }
    Ok(())
}

/// What was seen since it was last written down is kept, and nobody waits for the node.
async fn goodbye(api: &Api) -> Result<(), StoreError> {
    let now = api.sample().await?;
    api.keep_series(now).await?;
    api.leave().await
}

impl Api {
    /// Adds what has happened since the last sample to the series; says when that was, by the store's clock.
    pub async fn sample(&self) -> Result<Timestamp, StoreError> {
        let stats = self.store.stats().await?;
        let gates = self.parts.gates.status(Instant::now());
        self.recent.sample(self.metrics.counters.take(), &stats, &gates);
        Ok(stats.now)
    }

    /// Writes down what this node knows of itself: its series, and that it lives.
    pub async fn write_down(&self) -> Result<(), StoreError> {
        let now = self.sample().await?;
        self.beat(now).await?;
        self.keep_series(now).await
    }
}
