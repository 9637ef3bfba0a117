//! Connections to one server or to a cluster. They reconnect by themselves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Client, Cmd, RedisError, RedisResult, Value};
use redrive_core::StoreError;
use tokio::runtime::Runtime;

use crate::error::store_error;
use crate::open::Address;
use crate::script::{Script, reply};

/// The first and the longest pause before the next attempt to connect.
const RECONNECT_FIRST: Duration = Duration::from_millis(50);
const RECONNECT_LONGEST: Duration = Duration::from_secs(2);
/// How long an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections for calls, used in turn.
#[derive(Clone)]
pub(crate) enum Connections {
    Server(Vec<ConnectionManager>),
    Cluster(Vec<ClusterConnection>),
}

impl Connections {
    pub(crate) async fn open(address: &Address, call_timeout: Duration) -> Result<Self, StoreError> {
        let opened = if address.cluster {
            Self::open_cluster(address, call_timeout).await
        } else {
            Self::open_server(address, call_timeout).await
        };
        opened.map_err(store_error)
    }

    async fn open_server(address: &Address, call_timeout: Duration) -> RedisResult<Self> {
        let client = Client::open(address.servers[0].as_str())?;
        let config = ConnectionManagerConfig::new()
            .set_min_delay(RECONNECT_FIRST)
            .set_max_delay(RECONNECT_LONGEST)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(call_timeout));
        let mut connections = Vec::new();
        for _ in 0..address.connections {
            connections.push(ConnectionManager::new_with_config(client.clone(), config.clone()).await?);
        }
        Ok(Self::Server(connections))
    }

    async fn open_cluster(address: &Address, call_timeout: Duration) -> RedisResult<Self> {
        let client = cluster_client(address, call_timeout)?;
        let mut connections = Vec::new();
        for _ in 0..address.connections {
            connections.push(client.get_async_connection().await?);
        }
        Ok(Self::Cluster(connections))
    }

    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::Server(all) => command.query_async(&mut all[next % all.len()].clone()).await,
            Self::Cluster(all) => command.query_async(&mut all[next % all.len()].clone()).await,
        }
    }

    /// Sends a command to every server that accepts writes. Each reply comes with the name of its server.
    pub(crate) async fn send_to_each(&self, command: Cmd) -> RedisResult<Vec<(String, Value)>> {
        match self {
            Self::Server(_) => Ok(vec![("the server".to_owned(), self.send(&command).await?)]),
            Self::Cluster(all) => {
                let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                all[0].clone().route_command(command, primaries).await.map(by_server)
            }
        }
    }

    /// Runs a script on the keys under `prefix`. Sends the text of the script only if the server has not cached it.
    pub(crate) async fn run(
        &self,
        script: &Script,
        prefix: &str,
        arguments: &[Vec<u8>],
    ) -> RedisResult<Value> {
        match self.send(&eval("EVALSHA", script.hash(), prefix, arguments)).await {
            Err(error) if is_unknown_script(&error) => {
                self.send(&eval("EVAL", script.text(), prefix, arguments)).await
            }
            reply => reply,
        }
    }
}

/// A client for a cluster, which follows slots that move to other servers.
fn cluster_client(address: &Address, call_timeout: Duration) -> RedisResult<ClusterClient> {
    ClusterClientBuilder::new(address.servers.clone())
        .connection_timeout(CONNECT_TIMEOUT)
        .response_timeout(call_timeout)
        .retries(6)
        .min_retry_wait(50)
        .max_retry_wait(1_000)
        .build()
}

fn by_server(value: Value) -> Vec<(String, Value)> {
    match value {
        Value::Map(pairs) => pairs
            .into_iter()
            .map(|(name, value)| (reply::text(name).unwrap_or_else(|_| "a server".to_owned()), value))
            .collect(),
        other => vec![("the cluster".to_owned(), other)],
    }
}

fn eval(verb: &str, script: &str, prefix: &str, arguments: &[Vec<u8>]) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(script).arg(1).arg(prefix);
    for argument in arguments {
        command.arg(argument.as_slice());
    }
    command
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// The thread that drives the connections of a store.
///
/// Dropping it does not wait for the thread: a runtime must not wait for another one, and stores are dropped inside runtimes.
pub(crate) struct IoThread(Option<Runtime>);

impl IoThread {
    pub(crate) fn start() -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redrive-redis")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a future on the thread, and returns its result.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(runtime) = &self.0 else {
            return Err(StoreError::Refused("the store is closed".to_owned()));
        };
        runtime.spawn(work).await.map_err(|error| StoreError::Failed(Box::new(error)))
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
