//! The code that the Redis peers share: the connection that checks the server and reads its settings.

#[path = "phases_server.rs"]
mod phases_server;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;

pub use phases_server::{Args, Load, Peer, measure};

/// A connection that reads the state of the server.
pub struct Reader(MultiplexedConnection);

impl Reader {
    /// Connects. Fails if the server is not empty.
    pub async fn open(url: &str) -> Result<Self> {
        let mut server = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let keys: usize = redis::cmd("DBSIZE").query_async(&mut server).await?;
        ensure!(keys == 0, "the server must be empty, because existing jobs would be drained too");
        Ok(Self(server))
    }

    /// The number of members of a set.
    pub async fn count(&self, set: &str) -> Result<usize> {
        Ok(redis::cmd("SCARD").arg(set).query_async(&mut self.0.clone()).await?)
    }
}

impl phases_server::Database for Reader {
    async fn durability(&self) -> Result<String> {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg(&["appendonly", "appendfsync"]);
        let settings: BTreeMap<String, String> = command.query_async(&mut self.0.clone()).await?;
        let value = |name: &str| settings.get(name).map_or("?", String::as_str).to_owned();
        Ok(format!("appendonly {}, appendfsync {}", value("appendonly"), value("appendfsync")))
    }

    async fn refresh_statistics(&self) -> Result<()> {
        Ok(())
    }
}
