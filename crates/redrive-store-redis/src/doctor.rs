//! Checks a server for problems. Each finding has its evidence and a remedy.

use redrive_core::transfer::{SEALED, Seal};
use redrive_core::{Finding, Severity, StoreError};

use crate::RedisStore;
use crate::connection::{Connections, IoThread};
use crate::durability::{self, ServerSettings};
use crate::error::store_error;
use crate::open::{Address, Options};
use crate::script::reply;
use crate::settings;

/// The oldest server that the scripts are tested on.
const VERSION_MIN: u32 = 7;
/// The share of its memory above which a server will soon refuse jobs.
const MEMORY_WARNING: f64 = 0.8;

impl RedisStore {
    /// Checks the server or cluster at `address`. The findings are in no particular order. It writes nothing.
    pub async fn doctor(address: &str) -> Result<Vec<Finding>, StoreError> {
        let address: Address = address.parse()?;
        let thread = IoThread::start()?;
        thread.run(examine(address)).await?
    }
}

async fn examine(address: Address) -> Result<Vec<Finding>, StoreError> {
    let single = Address { connections: 1, ..address };
    let connections = Connections::open(&single, Options::default().call_timeout).await?;
    let mut findings = durability::findings(&ServerSettings::read_all(&connections).await?);
    let mut info = redis::cmd("INFO");
    info.arg("everything");
    for (name, reply) in connections.send_to_each(info).await.map_err(store_error)? {
        let text = reply::text(reply)?;
        let info = ServerInfo { name: &name, text: &text };
        findings.extend([version(&info), memory(&info), replicas(&info)].into_iter().flatten());
    }
    findings.extend(seals(&connections, &single.prefix).await?);
    Ok(findings)
}

/// Whether the store was moved, or is being moved.
async fn seals(connections: &Connections, prefix: &str) -> Result<Vec<Finding>, StoreError> {
    let settings = connections.send(&settings::read_command(prefix)).await.map_err(store_error)?;
    let found = settings::parse(settings)?;
    let seals = found.iter().filter(|(kind, ..)| kind == SEALED);
    Ok(seals.map(|(_, id, value)| Seal::finding(id, value)).collect())
}

/// The reply of a server to INFO: a line `name:value` for each value.
struct ServerInfo<'a> {
    name: &'a str,
    text: &'a str,
}

impl ServerInfo<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.parse().ok()
    }
}

fn version(info: &ServerInfo<'_>) -> Option<Finding> {
    let version = info.get("redis_version")?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < VERSION_MIN).then(|| {
        let what = format!(
            "the server is older than version {VERSION_MIN}, the oldest that the scripts are tested on"
        );
        Finding::new(
            Severity::Warning,
            "version",
            what,
            format!("{}: redis_version {version}", info.name),
            "upgrade the server",
        )
    })
}

fn memory(info: &ServerInfo<'_>) -> Option<Finding> {
    let (used, most) = (info.number("used_memory")?, info.number("maxmemory").filter(|most| *most > 0.0)?);
    (used / most >= MEMORY_WARNING).then(|| {
        let evidence = format!("{}: used_memory {used:.0} of maxmemory {most:.0}", info.name);
        let what = "the server will soon refuse new jobs, because its memory is almost full";
        let remedy = "raise maxmemory, shorten the retention, or store large bodies outside the payload";
        Finding::new(Severity::Warning, "memory", what, evidence, remedy)
    })
}

/// A replica that takes over may not have received the last writes.
fn replicas(info: &ServerInfo<'_>) -> Option<Finding> {
    let replicas = info.number("connected_slaves").filter(|n| *n > 0.0)?;
    let evidence = format!("{}: {replicas:.0} connected", info.name);
    let what = "a failover loses the writes that the replica had not received";
    let remedy = "set min-replicas-to-write 1 and min-replicas-max-lag 1 to limit the loss; stale workers are shut out either way";
    Some(Finding::new(Severity::Note, "failover", what, evidence, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_the_server_are_found() {
        let found = |text: &str| {
            let info = ServerInfo { name: "it", text };
            [version(&info), memory(&info), replicas(&info)].map(|finding| finding.is_some())
        };
        let fine = "redis_version:7.0.15\r\nused_memory:10\r\nmaxmemory:0\r\nconnected_slaves:0\r\n";
        assert_eq!(found(fine), [false; 3]);
        let near = "redis_version:6.2.1\r\nused_memory:81\r\nmaxmemory:100\r\nconnected_slaves:1\r\n";
        assert_eq!(found(near), [true; 3]);
    }
}
