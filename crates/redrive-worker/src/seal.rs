//! Logs when the store is sealed, because a sealed store returns no jobs and the worker would otherwise be idle without an
//! explanation.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::records::{Record, RecordStore};
use redrive_core::transfer::{SEALED, Seal};

use crate::engine::{Engine, ErrorChain};

/// The time between two checks. Only the log depends on it.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Checks for seals at the start and at intervals, until the shutdown begins.
pub(crate) async fn run(engine: Arc<Engine>) {
    let mut logged = Vec::new();
    loop {
        match engine.intake_store.scan(SEALED, None, 2).await {
            Ok(seals) => log_changes(&mut logged, seals),
            Err(error) => tracing::debug!(error = %ErrorChain(&error), "the seals could not be read"),
        }
        tokio::select! {
            biased;
            () = engine.stop.cancelled() => return,
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
    }
}

fn log_changes(logged: &mut Vec<Record>, seals: Vec<Record>) {
    for seal in seals.iter().filter(|seal| !logged.contains(seal)) {
        let finding = Seal::finding(&seal.id, &seal.value);
        let remedy = finding.remedy.unwrap_or_default();
        tracing::warn!(what = finding.what, remedy, "the store is sealed");
    }
    if seals.is_empty() && !logged.is_empty() {
        tracing::info!("the store is no longer sealed");
    }
    *logged = seals;
}
