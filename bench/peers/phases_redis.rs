//! What peers on Redis share beyond the phases: what the server says of itself.

#[path = "phases_server.rs"]
mod phases_server;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;

pub use phases_server::{Args, Load, Peer, measure};

/// A connection beside the peer's own, which asks the server.
pub struct Reader(MultiplexedConnection);

impl Reader {
    /// Connects; the server must be empty.
    pub async fn open(url: &str) -> Result<Self> {
        let mut server = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let keys: usize = redis::cmd("DBSIZE").query_async(&mut server).await?;
        ensure!(keys == 0, "the server must be empty: leftovers would be drained as well");
        Ok(Self(server))
    }

    /// How many members a set has.
    pub async fn count(&self, set: &str) -> Result<usize> {
        Ok(redis::cmd("SCARD").arg(set).query_async(&mut self.0.clone()).await?)
    }
}

impl phases_server::Database for Reader {
    async fn durability(&self) -> Result<String> {
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg(&["appendonly", "appendfsync"]);
        let settings: BTreeMap<String, String> = ask.query_async(&mut self.0.clone()).await?;
        let shown = |name: &str| settings.get(name).map_or("?", String::as_str).to_owned();
        Ok(format!("appendonly {}, appendfsync {}", shown("appendonly"), shown("appendfsync")))
    }

    async fn settle_down(&self) -> Result<()> {
        Ok(())
    }
}
