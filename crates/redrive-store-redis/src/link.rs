//! Connections to the server, or to the servers of a cluster, which mend themselves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Client, Cmd, RedisError, RedisResult, Value};
use redrive_core::StoreError;

use crate::address::Address;
use crate::answer;
use crate::error::Sorted;
use crate::script::Source;

/// The first and the longest pause before another try to connect.
const AGAIN_FIRST: Duration = Duration::from_millis(50);
const AGAIN_LONGEST: Duration = Duration::from_secs(2);
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(3);

/// Connections for calls, used in turn.
#[derive(Clone)]
pub(crate) enum Link {
    /// To one server.
    One(Vec<ConnectionManager>),
    /// To the servers of a cluster.
    Many(Vec<ClusterConnection>),
}

impl Link {
    pub(crate) async fn open(address: &Address, patience: Duration) -> Result<Self, StoreError> {
        if address.cluster {
            let client = cluster(address, patience).sorted()?;
            let mut links = Vec::new();
            for _ in 0..address.connections {
                links.push(client.get_async_connection().await.sorted()?);
            }
            return Ok(Self::Many(links));
        }
        let client = Client::open(address.servers[0].as_str()).sorted()?;
        let config = ConnectionManagerConfig::new()
            .set_min_delay(AGAIN_FIRST)
            .set_max_delay(AGAIN_LONGEST)
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(patience));
        let mut links = Vec::new();
        for _ in 0..address.connections {
            links.push(ConnectionManager::new_with_config(client.clone(), config.clone()).await.sorted()?);
        }
        Ok(Self::One(links))
    }

    /// Sends a command.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::One(links) => command.query_async(&mut links[next % links.len()].clone()).await,
            Self::Many(links) => command.query_async(&mut links[next % links.len()].clone()).await,
        }
    }

    /// Sends a command to every server that takes writes; each answer comes with its server's name.
    pub(crate) async fn ask_each(&self, command: Cmd) -> RedisResult<Vec<(String, Value)>> {
        match self {
            Self::One(_) => Ok(vec![("the server".to_owned(), self.send(&command).await?)]),
            Self::Many(links) => {
                let everyone = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                links[0].clone().route_command(command, everyone).await.map(by_server)
            }
        }
    }

    /// Runs a script on what is under `tag`, and brings the script along where the server does not have it.
    pub(crate) async fn run(&self, script: &Source, tag: &str, arguments: &[Vec<u8>]) -> RedisResult<Value> {
        match self.send(&eval("EVALSHA", &script.hash, tag, arguments)).await {
            Err(error) if is_unknown_script(&error) => {
                self.send(&eval("EVAL", script.text, tag, arguments)).await
            }
            answer => answer,
        }
    }
}

/// A client for a cluster, which follows its slots as they move.
pub(crate) fn cluster(address: &Address, patience: Duration) -> RedisResult<ClusterClient> {
    ClusterClientBuilder::new(address.servers.clone())
        .connection_timeout(CONNECT)
        .response_timeout(patience)
        .retries(6)
        .min_retry_wait(50)
        .max_retry_wait(1_000)
        .build()
}

/// The answers of several servers by their names.
fn by_server(value: Value) -> Vec<(String, Value)> {
    match value {
        Value::Map(pairs) => pairs
            .into_iter()
            .map(|(name, value)| (answer::text(name).unwrap_or_else(|_| "a server".to_owned()), value))
            .collect(),
        other => vec![("the cluster".to_owned(), other)],
    }
}

fn eval(verb: &str, script: &str, tag: &str, arguments: &[Vec<u8>]) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(script).arg(1).arg(tag);
    for argument in arguments {
        command.arg(argument.as_slice());
    }
    command
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}
