//! An address: where the server or the cluster is, and what redrive itself wants to know.

use std::str::FromStr;

use redrive_core::{Invalid, StoreError};
use url::Url;

/// Over how many partitions jobs are spread unless the address of the first to open a store says otherwise.
pub const PARTITIONS: usize = 16;
/// The most partitions that an address may ask for.
pub const PARTITIONS_MAX: usize = 1024;
/// What every key begins with unless the address says otherwise.
const PREFIX: &str = "redrive";

/// What an address says.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// The servers to begin with: one, or some of a cluster.
    pub(crate) servers: Vec<String>,
    pub(crate) cluster: bool,
    pub(crate) prefix: String,
    /// Absent means as it was made, or the default.
    pub(crate) partitions: Option<usize>,
    pub(crate) spread_by: Option<SpreadBy>,
    /// Whether settings that lose acknowledged jobs are refused.
    pub(crate) durability: Durability,
    /// Connections for calls.
    pub(crate) connections: usize,
}

/// What jobs have in common that are in one partition. Within a partition everything is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpreadBy {
    /// Their tenant: idempotency keys and unique keys hold as in every store, the order and the bounds of a key among the
    /// tenant's jobs.
    Tenant,
    /// Their tenant and policy: those hold for the jobs of one policy.
    Policy,
    /// Their tenant and ordering key, unique key or idempotency key, else their id: the widest spread.
    Key,
}

impl SpreadBy {
    /// Its name in addresses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Policy => "policy",
            Self::Key => "key",
        }
    }
}

impl FromStr for SpreadBy {
    type Err = StoreError;
    fn from_str(name: &str) -> Result<Self, StoreError> {
        [Self::Tenant, Self::Policy, Self::Key]
            .into_iter()
            .find(|by| by.name() == name)
            .ok_or_else(|| refused(format!("spread_by must be tenant, policy or key, is {name:?}")))
    }
}

/// Whether the server's settings are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Checked,
    Unchecked,
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let mut url = Url::parse(text).map_err(|error| refused(format!("the address is no URL: {error}")))?;
        let (cluster, scheme) = match url.scheme() {
            "redis" => (false, "redis"),
            "rediss" => (false, "rediss"),
            "redis-cluster" => (true, "redis"),
            "rediss-cluster" => (true, "rediss"),
            other => {
                return Err(refused(format!(
                    "an address of Redis begins with redis:// or redis-cluster://, not {other}://"
                )));
            }
        };
        let mut address = Self {
            servers: Vec::new(),
            cluster,
            prefix: PREFIX.to_owned(),
            partitions: None,
            spread_by: None,
            durability: Durability::Checked,
            connections: 4,
        };
        let mut nodes = Vec::new();
        for (name, value) in url.query_pairs() {
            if name == "node" {
                nodes.push(value.into_owned());
            } else {
                address.take(&name, &value)?;
            }
        }
        url.set_query(None);
        let rest = url.as_str().split_once("://").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        let (login, _) = rest.rsplit_once('@').map_or(("", rest.as_str()), |(login, at)| (login, at));
        address.servers.push(format!("{scheme}://{rest}"));
        let login = if login.is_empty() { String::new() } else { format!("{login}@") };
        address.servers.extend(nodes.iter().map(|node| format!("{scheme}://{login}{node}")));
        Ok(address)
    }
}

impl Address {
    fn take(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        match name {
            "prefix" => {
                let legal = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
                if value.is_empty() || value.len() > 64 || !value.chars().all(legal) {
                    return Err(refused("prefix must be 1 to 64 letters, digits, or one of -_.:".to_owned()));
                }
                value.clone_into(&mut self.prefix);
            }
            "partitions" => self.partitions = Some(number(name, value, PARTITIONS_MAX)?),
            "connections" => self.connections = number(name, value, 64)?,
            "spread_by" => self.spread_by = Some(value.parse()?),
            "durability" => {
                self.durability = match value {
                    "checked" => Durability::Checked,
                    "unchecked" => Durability::Unchecked,
                    _ => {
                        return Err(refused(format!(
                            "durability must be checked or unchecked, is {value:?}"
                        )));
                    }
                }
            }
            _ => {
                return Err(refused(format!(
                    "the address has an unknown setting {name:?}; known are connections, durability, node, partitions, prefix, spread_by"
                )));
            }
        }
        Ok(())
    }
}

fn number(name: &str, value: &str, most: usize) -> Result<usize, StoreError> {
    match value.parse() {
        Ok(n) if (1..=most).contains(&n) => Ok(n),
        _ => Err(refused(format!("{name} must be a number from 1 to {most}, is {value:?}"))),
    }
}

fn refused(problem: String) -> StoreError {
    Invalid::new("store", problem).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_and_how() {
        let address: Address =
            "redis://me:pass@db:7000/2?partitions=4&spread_by=key&prefix=jobs".parse().unwrap();
        assert_eq!(address.servers, ["redis://me:pass@db:7000/2"]);
        assert_eq!(
            (address.partitions, address.spread_by, address.prefix.as_str()),
            (Some(4), Some(SpreadBy::Key), "jobs")
        );
        let address: Address = "rediss-cluster://me:pass@a:1?node=b:2&node=c:3".parse().unwrap();
        assert!(address.cluster);
        assert_eq!(address.servers, ["rediss://me:pass@a:1", "rediss://me:pass@b:2", "rediss://me:pass@c:3"]);
        for (text, word) in [
            ("http://db", "redis://"),
            ("redis://db?partitions=0", "1 to 1024"),
            ("redis://db?partition=3", "partitions"),
            ("redis://db?prefix={x}", "prefix"),
            ("redis://db?durability=no", "unchecked"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
