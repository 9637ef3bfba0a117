//! Says when a store is sealed: a worker that finds nothing to do there should not leave people wondering.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::records::{Record, Records};
use redrive_core::transfer::{SEALED, Seal};

use crate::engine::{Causes, Engine};

/// How often it looks. Nothing depends on it but a line in the log.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Looks at the start and now and then, until the shutdown begins.
pub(crate) async fn run(engine: Arc<Engine>) {
    let mut told = Vec::new();
    loop {
        match engine.intake.scan(SEALED, None, 2).await {
            Ok(seals) => tell(&mut told, seals),
            Err(error) => tracing::debug!(error = %Causes(&error), "the seal could not be looked at"),
        }
        tokio::select! {
            biased;
            () = engine.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Says what has changed.
fn tell(told: &mut Vec<Record>, seals: Vec<Record>) {
    for seal in seals.iter().filter(|seal| !told.contains(seal)) {
        let finding = Seal::finding(&seal.id, &seal.value);
        let remedy = finding.remedy.unwrap_or_default();
        tracing::warn!(what = finding.what, remedy, "the store is sealed");
    }
    if seals.is_empty() && !told.is_empty() {
        tracing::info!("the store is open for work again");
    }
    *told = seals;
}
