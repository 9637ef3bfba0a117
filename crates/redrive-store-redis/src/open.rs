//! Opens a store: options, address, connections.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::{Clock, Invalid, StoreError};
use url::Url;

use crate::RedisStore;
use crate::connection::{Connections, IoThread};
use crate::durability;
use crate::inner::Inner;
use crate::notifications::{NotificationTasks, Notifications};
use crate::schema::{self, Layout, SHARDS_MAX, SpreadBy};
use crate::shards::JobLocations;

/// The default prefix of all keys.
const PREFIX: &str = "redrive";
/// The maximum length of a prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 64;
/// The default number of connections for calls.
const CONNECTIONS: usize = 4;
const CONNECTIONS_MAX: usize = 64;

/// The options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Replaces the server's clock, for tests. `None` by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// How long a call may take before it fails; 15 s by default.
    pub call_timeout: Duration,
    /// How many attempts of each job the log keeps; the oldest are dropped first. 1,000 by default.
    pub attempts_kept: usize,
    /// Whether to create the store if there is none under the prefix. If false, opening fails then. True by default.
    pub create: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: None, call_timeout: Duration::from_secs(15), attempts_kept: 1_000, create: true }
    }
}

impl Options {
    /// Uses `clock` instead of the server's clock.
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Limits the time that a call may take.
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }
}

impl RedisStore {
    /// Connects to the server or the cluster at `address`.
    ///
    /// Refuses a server whose settings would lose acknowledged jobs, and an address whose layout differs from the stored one.
    pub async fn open(address: &str, options: Options) -> Result<Self, StoreError> {
        let address: Address = address.parse()?;
        let thread = IoThread::start()?;
        let StoreConnections { calls, heartbeats, layout, notifications, tasks } =
            thread.run(connect(address, options.clone())).await??;
        let inner = Inner {
            calls,
            heartbeats,
            layout,
            locations: JobLocations::default(),
            next_shard: fastrand::usize(..).into(),
            options,
            notifications,
            _notification_tasks: tasks,
            thread,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The version of the key layout in the store.
    pub fn layout_version(&self) -> u32 {
        schema::VERSION
    }
}

struct StoreConnections {
    calls: Connections,
    heartbeats: Connections,
    layout: Layout,
    notifications: Notifications,
    tasks: NotificationTasks,
}

async fn connect(address: Address, options: Options) -> Result<StoreConnections, StoreError> {
    let calls = Connections::open(&address, options.call_timeout).await?;
    durability::check(&calls, address.durability).await?;
    // A connection of their own, so that heartbeats get through however busy the others are.
    let single = Address { connections: 1, ..address.clone() };
    let heartbeats = Connections::open(&single, options.call_timeout).await?;
    let layout = Layout::agree(&calls, &address, options.create).await?;
    let notifications = Notifications::default();
    let tasks =
        NotificationTasks::start(&address, &calls, &layout, &notifications, options.call_timeout).await?;
    Ok(StoreConnections { calls, heartbeats, layout, notifications, tasks })
}

/// The parts of an address.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// The servers to connect to first: one server, or some servers of a cluster.
    pub(crate) servers: Vec<String>,
    pub(crate) cluster: bool,
    pub(crate) prefix: String,
    /// `None` means the number that the store was created with, or the default.
    pub(crate) shards: Option<usize>,
    pub(crate) spread_by: Option<SpreadBy>,
    pub(crate) durability: DurabilityCheck,
    /// The number of connections for calls.
    pub(crate) connections: usize,
}

/// Whether opening fails on a server whose settings lose acknowledged jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DurabilityCheck {
    Required,
    Skipped,
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let mut url =
            Url::parse(text).map_err(|error| refused(format!("the address is not a URL: {error}")))?;
        let (cluster, scheme) = match url.scheme() {
            "redis" => (false, "redis"),
            "rediss" => (false, "rediss"),
            "redis-cluster" => (true, "redis"),
            "rediss-cluster" => (true, "rediss"),
            other => {
                return Err(refused(format!(
                    "unknown scheme {other}://: an address of Redis starts with redis://, rediss://, \
                     redis-cluster:// or rediss-cluster://"
                )));
            }
        };
        let mut address = Self {
            servers: Vec::new(),
            cluster,
            prefix: PREFIX.to_owned(),
            shards: None,
            spread_by: None,
            durability: DurabilityCheck::Required,
            connections: CONNECTIONS,
        };
        let mut nodes = Vec::new();
        for (name, value) in url.query_pairs() {
            if name == "node" {
                nodes.push(value.into_owned());
            } else {
                address.set(&name, &value)?;
            }
        }
        url.set_query(None);
        let rest = url.as_str().split_once("://").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        let login = rest.rsplit_once('@').map(|(login, _)| format!("{login}@")).unwrap_or_default();
        address.servers.push(format!("{scheme}://{rest}"));
        address.servers.extend(nodes.iter().map(|node| format!("{scheme}://{login}{node}")));
        Ok(address)
    }
}

impl Address {
    fn set(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        match name {
            "prefix" => {
                let legal = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
                if value.is_empty() || value.len() > PREFIX_BYTES_MAX || !value.chars().all(legal) {
                    return Err(refused(format!(
                        "invalid prefix {value:?}: use 1 to {PREFIX_BYTES_MAX} letters, digits, or one of -_.:"
                    )));
                }
                value.clone_into(&mut self.prefix);
            }
            // `partitions` is the older name.
            "shards" | "partitions" => self.shards = Some(number(name, value, SHARDS_MAX)?),
            "spread_by" => self.spread_by = Some(value.parse()?),
            "connections" => self.connections = number(name, value, CONNECTIONS_MAX)?,
            "durability" => {
                self.durability = match value {
                    "checked" => DurabilityCheck::Required,
                    "unchecked" => DurabilityCheck::Skipped,
                    _ => {
                        return Err(refused(format!(
                            "invalid durability {value:?}: use checked or unchecked"
                        )));
                    }
                }
            }
            _ => {
                return Err(refused(format!(
                    "unknown option {name:?} in the address: use connections, durability, node, prefix, shards or spread_by"
                )));
            }
        }
        Ok(())
    }
}

fn number(name: &str, value: &str, max: usize) -> Result<usize, StoreError> {
    match value.parse() {
        Ok(n) if (1..=max).contains(&n) => Ok(n),
        _ => Err(refused(format!("invalid {name} {value:?}: use a number from 1 to {max}"))),
    }
}

pub(crate) fn refused(problem: String) -> StoreError {
    Invalid::new("store", problem).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_servers_and_options() {
        let address: Address =
            "redis://me:pass@db:7000/2?shards=4&spread_by=key&prefix=jobs".parse().unwrap();
        assert_eq!(address.servers, ["redis://me:pass@db:7000/2"]);
        assert_eq!(
            (address.shards, address.spread_by, address.prefix.as_str()),
            (Some(4), Some(SpreadBy::Key), "jobs")
        );
        let address: Address = "rediss-cluster://me:pass@a:1?node=b:2&node=c:3".parse().unwrap();
        assert!(address.cluster);
        assert_eq!(address.servers, ["rediss://me:pass@a:1", "rediss://me:pass@b:2", "rediss://me:pass@c:3"]);
    }

    #[test]
    fn the_older_name_of_the_number_of_shards_is_accepted() {
        let address: Address = "redis://db?partitions=4".parse().unwrap();
        assert_eq!(address.shards, Some(4));
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_option_to_change() {
        for (text, word) in [
            ("http://db", "redis://"),
            ("redis://db?shards=0", "1 to 1024"),
            ("redis://db?partition=3", "shards"),
            ("redis://db?prefix={x}", "prefix"),
            ("redis://db?durability=no", "unchecked"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
