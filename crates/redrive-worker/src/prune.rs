//! Removes ended jobs after their retention.

use std::sync::Arc;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::Store;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::engine::{Engine, ErrorChain};

/// Prunes at intervals until the shutdown begins.
pub(crate) async fn run(engine: Arc<Engine>) {
    let every = engine.settings.prune_every;
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = engine.stop.cancelled() => return,
            _ = ticks.tick() => prune_all(&engine).await,
        }
    }
}

async fn prune_all(engine: &Engine) {
    while !engine.stop.is_cancelled() {
        let count = match engine.intake_store.prune(engine.settings.retention, BATCH_ITEMS_MAX).await {
            Ok(count) => count,
            Err(error) => return tracing::error!(error = %ErrorChain(&error), "prune failed"),
        };
        tracing::debug!(count, "prune");
        engine.counts.pruned.add(count);
        if count < BATCH_ITEMS_MAX {
            return;
        }
        // Lets claims and settlements run between two batches.
        tokio::task::yield_now().await;
    }
}
