//! What another session's open transaction costs: while it lasts, nothing that dies can be cleaned up.

use std::time::{Duration, Instant};

use redrive_core::Start;

use super::probe;
use super::scene::Scene;
use crate::figures::Samples;
use crate::{drain, scene};

/// Jobs of one round.
const ROUND: usize = 50_000;

/// Fills and drains again and again for `span`; the rate of each drain, in jobs per second.
pub(super) fn rates(server: &Scene, span: Duration, held: bool) -> anyhow::Result<Samples> {
    let database = server.database();
    scene::block_on(async {
        let (store, policy) = database.open().await?;
        let other = probe::connect(&database.address()).await?;
        if held {
            // It has a snapshot and an id of its own, as one that has written something and was forgotten.
            other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await?;
        }
        let (mut rates, started) = (Vec::new(), Instant::now());
        while started.elapsed() < span || rates.is_empty() {
            scene::fill(&store, &policy, ROUND, Start::Now).await?;
            rates.push(drain::drain(&store, ROUND, rates.len() * ROUND).await?);
        }
        if held {
            other.batch_execute("COMMIT").await?;
        }
        Ok(Samples::of(rates))
    })
}
