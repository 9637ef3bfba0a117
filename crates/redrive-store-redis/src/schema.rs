//! The layout of a store's keys. The store records it, so that every node that opens the store uses the same layout.

use std::str::FromStr;

use redis::Value;
use redrive_core::{JobId, NewJob, PolicyName, StoreError, Tenant};

use crate::connection::Connections;
use crate::error::store_error;
use crate::open::{Address, refused};
use crate::script::reply;

/// The version of the key layout. A program with another version must not write under these keys.
pub(crate) const VERSION: u32 = 1;
/// The default number of shards of a new store.
pub const SHARDS: usize = 16;
/// The largest number of shards that an address may ask for.
pub const SHARDS_MAX: usize = 1024;

/// The fields that determine the shard of a job. Within a shard every guarantee is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpreadBy {
    /// The tenant. Idempotency keys and unique keys work as in every store; order and limits of a partition key hold among the
    /// jobs of the tenant.
    Tenant,
    /// The tenant and the policy. The same holds among the jobs of one policy.
    Policy,
    /// The tenant and the partition key, unique key or idempotency key, else the id of the job. Spreads jobs most evenly.
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
            .ok_or_else(|| refused(format!("invalid spread_by {name:?}: use tenant, policy or key")))
    }
}

/// The layout of a store's keys.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) prefix: String,
    pub(crate) shards: usize,
    pub(crate) spread_by: SpreadBy,
}

impl Layout {
    /// Reads the layout of the store. If the store is new, records the layout of the address: the first node that opens a store
    /// decides.
    pub(crate) async fn agree(
        connections: &Connections,
        address: &Address,
        create: bool,
    ) -> Result<Self, StoreError> {
        let prefix = address.prefix.clone();
        let key = format!("{}layout", records_prefix(&prefix));
        if !create && send(connections, redis::cmd("EXISTS").arg(&key)).await? == Value::Int(0) {
            return Err(StoreError::Refused(format!("there is no store under the prefix {prefix:?}")));
        }
        let spread_by = address.spread_by.unwrap_or(SpreadBy::Tenant);
        let wanted = [
            ("layout", VERSION.to_string()),
            // `partitions` is the name of this field in stores that exist.
            ("partitions", address.shards.unwrap_or(SHARDS).to_string()),
            ("spread_by", spread_by.name().to_owned()),
        ];
        let mut stored = Vec::new();
        for (field, value) in wanted {
            send(connections, redis::cmd("HSETNX").arg(&key).arg(field).arg(value)).await?;
            stored.push(reply::text(send(connections, redis::cmd("HGET").arg(&key).arg(field)).await?)?);
        }
        check_version(&prefix, &stored[0])?;
        let shards = stored[1].parse().map_err(|_| reply::unexpected("the number of shards"))?;
        let layout = Self { prefix, shards, spread_by: stored[2].parse()? };
        layout.check_matches(address)?;
        Ok(layout)
    }

    fn check_matches(&self, address: &Address) -> Result<(), StoreError> {
        let differs = address.shards.is_some_and(|shards| shards != self.shards)
            || address.spread_by.is_some_and(|by| by != self.spread_by);
        if !differs {
            return Ok(());
        }
        Err(StoreError::Refused(format!(
            "the store has {} shards, spread by {}: leave shards and spread_by out of the address, or move the jobs to another \
             prefix with `redrive move`",
            self.shards,
            self.spread_by.name()
        )))
    }

    /// The key prefix of a shard: one hash tag, so that all its keys are on one server.
    pub(crate) fn shard_prefix(&self, shard: usize) -> String {
        format!("{{{}:{shard}}}:", self.prefix)
    }

    /// The key prefix of the records.
    pub(crate) fn records_prefix(&self) -> String {
        records_prefix(&self.prefix)
    }

    /// The shard of a new job that has no parent.
    pub(crate) fn shard_of(&self, job: &NewJob) -> usize {
        let partition = job.partition.as_ref().map(|of| of.key.as_str());
        let unique = job.unique.as_ref().map(|unique| unique.key.as_str());
        let key = job.idempotency.as_ref().map(|asked| asked.key.as_str());
        self.shard(&job.tenant, &job.policy.name, partition.or(unique).or(key), job.id)
    }

    /// The shard for these fields of a job. `key` is the partition key, else the unique key, else the idempotency key.
    pub(crate) fn shard(&self, tenant: &Tenant, policy: &PolicyName, key: Option<&str>, id: JobId) -> usize {
        let id = id.0.simple().to_string();
        let rest = match self.spread_by {
            SpreadBy::Tenant => "",
            SpreadBy::Policy => policy.as_str(),
            SpreadBy::Key => key.unwrap_or(&id),
        };
        (stable_hash([tenant.as_str(), "\u{1f}", rest]) % self.shards as u64) as usize
    }
}

async fn send(connections: &Connections, command: &redis::Cmd) -> Result<Value, StoreError> {
    connections.send(command).await.map_err(store_error)
}

fn check_version(prefix: &str, version: &str) -> Result<(), StoreError> {
    if version == VERSION.to_string() {
        return Ok(());
    }
    Err(StoreError::Refused(format!(
        "the keys under {prefix:?} have layout {version}, but this program knows layout {VERSION}: use the program \
         that wrote them, or another prefix"
    )))
}

/// The key prefix of the records under a prefix.
pub(crate) fn records_prefix(prefix: &str) -> String {
    format!("{{{prefix}:records}}:")
}

/// FNV-1a over the parts. It decides where jobs are stored, so it must give the same result on every machine and in every
/// version; the hashers of std promise neither.
fn stable_hash(parts: [&str; 3]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The low bits alone spread short texts badly.
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use redrive_core::{Kind, PolicyRef};
    use uuid::Uuid;

    use super::*;

    /// The shards in the first version. With other ones, stored jobs would not be found.
    const FIRST_VERSION: [usize; 4] = [14, 9, 0, 9];

    #[test]
    fn the_shard_of_a_job_never_changes() {
        let policy = PolicyRef::first(PolicyName::new("default").unwrap());
        let job =
            |n: u128| NewJob::new(JobId(Uuid::from_u128(n)), Kind::new("k").unwrap(), policy.clone(), vec![]);
        let of = |tenant: &str| NewJob { tenant: Tenant::new(tenant).unwrap(), ..job(1) };
        let layout = |spread_by| Layout { prefix: "redrive".into(), shards: 16, spread_by };
        let shards = ["a", "b", "c", "acme"].map(|tenant| layout(SpreadBy::Tenant).shard_of(&of(tenant)));
        assert_eq!(shards, FIRST_VERSION);
        let mut counts = [0; 16];
        for n in 0..1_600 {
            counts[layout(SpreadBy::Key).shard_of(&job(n))] += 1;
        }
        assert!(counts.iter().all(|n| (50..200).contains(n)), "{counts:?}");
        assert_eq!(layout(SpreadBy::Tenant).shard_prefix(3), "{redrive:3}:");
    }
}
