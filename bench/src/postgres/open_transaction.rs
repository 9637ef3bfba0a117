//! Measures the cost of another session's open transaction. While it is open, vacuum cannot remove dead rows.

use std::time::{Duration, Instant};

use redrive_core::Start;

use super::probe;
use super::server::PrivateServer;
use crate::figures::Samples;
use crate::{drain, setup};

/// Jobs of one round.
const ROUND: usize = 50_000;

/// Fills and drains repeatedly for `span`. Returns the rate of each drain in jobs per second.
pub(super) fn rates(
    server: &PrivateServer,
    span: Duration,
    with_open_transaction: bool,
) -> anyhow::Result<Samples> {
    let database = server.database();
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        let other = probe::connect(&database.address()).await?;
        if with_open_transaction {
            // The transaction has a snapshot and an id, like one that has written something and was never committed.
            other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await?;
        }
        let (mut rates, started) = (Vec::new(), Instant::now());
        while started.elapsed() < span || rates.is_empty() {
            setup::fill(&store, &policy, ROUND, Start::Now).await?;
            rates.push(drain::drain(&store, ROUND, rates.len() * ROUND).await?);
        }
        if with_open_transaction {
            other.batch_execute("COMMIT").await?;
        }
        Ok(Samples::of(rates))
    })
}
