//! Looks at a server for what would hurt: each finding with its evidence and what to do.

use redrive_core::transfer::{SEALED, Seal};
use redrive_core::{Finding, Gravity, StoreError};

use crate::RedisStore;
use crate::address::Address;
use crate::answer;
use crate::durability::{self, Server};
use crate::error::Sorted;
use crate::link::Link;
use crate::open::{Options, Thread};
use crate::settings;

/// The oldest server that the scripts are tested on.
const VERSION_MIN: u32 = 7;
/// From this part of its memory on a server is close to refusing jobs.
const MEMORY_WARNING: f64 = 0.8;

impl RedisStore {
    /// What hurts or will at the server or cluster of `address`, in no order of gravity. It writes nothing.
    pub async fn doctor(address: &str) -> Result<Vec<Finding>, StoreError> {
        let address: Address = address.parse()?;
        let thread = Thread::start()?;
        thread.run(look(address)).await?
    }
}

async fn look(address: Address) -> Result<Vec<Finding>, StoreError> {
    let one = Address { connections: 1, ..address };
    let link = Link::open(&one, Options::default().patience).await?;
    let mut findings = durability::findings(&Server::all(&link).await?);
    let mut info = redis::cmd("INFO");
    info.arg("everything");
    for (name, answer) in link.ask_each(info).await.sorted()? {
        let text = answer::text(answer)?;
        let info = Info { name: &name, text: &text };
        findings.extend([version(&info), memory(&info), replicas(&info)].into_iter().flatten());
    }
    findings.extend(seals(&link, &one.prefix).await?);
    Ok(findings)
}

/// Whether the store was moved, or is being.
async fn seals(link: &Link, prefix: &str) -> Result<Vec<Finding>, StoreError> {
    let found = settings::each(link.send(&settings::all(prefix)).await.sorted()?)?;
    let seals = found.iter().filter(|(kind, ..)| kind == SEALED);
    Ok(seals.map(|(_, id, value)| Seal::finding(id, value)).collect())
}

/// What a server says about itself, a line for each word.
struct Info<'a> {
    name: &'a str,
    text: &'a str,
}

impl Info<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.parse().ok()
    }
}

fn version(info: &Info<'_>) -> Option<Finding> {
    let version = info.get("redis_version")?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < VERSION_MIN).then(|| {
        let what = format!("the server is older than {VERSION_MIN}, which the scripts are made for");
        Finding::new(
            Gravity::Warning,
            "version",
            what,
            format!("{}: redis_version {version}", info.name),
            "upgrade the server",
        )
    })
}

fn memory(info: &Info<'_>) -> Option<Finding> {
    let (used, most) = (info.number("used_memory")?, info.number("maxmemory").filter(|most| *most > 0.0)?);
    (used / most >= MEMORY_WARNING).then(|| {
        let evidence = format!("{}: used_memory {used:.0} of maxmemory {most:.0}", info.name);
        let what = "the server is about to refuse new jobs for want of memory";
        let remedy = "raise maxmemory, shorten the retention, or move ended jobs' bodies out of the payload";
        Finding::new(Gravity::Warning, "memory", what, evidence, remedy)
    })
}

/// A replica that takes over has not seen the last writes.
fn replicas(info: &Info<'_>) -> Option<Finding> {
    let replicas = info.number("connected_slaves").filter(|n| *n > 0.0)?;
    let evidence = format!("{}: {replicas:.0} connected", info.name);
    let what = "a failover loses what the replica had not received";
    let remedy = "set min-replicas-to-write 1 and min-replicas-max-lag 1 to bound it; stale workers are shut out either way";
    Some(Finding::new(Gravity::Note, "failover", what, evidence, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_its_end_is_found() {
        let found = |text: &str| {
            let info = Info { name: "it", text };
            [version(&info), memory(&info), replicas(&info)].map(|finding| finding.is_some())
        };
        let fine = "redis_version:7.0.15\r\nused_memory:10\r\nmaxmemory:0\r\nconnected_slaves:0\r\n";
        assert_eq!(found(fine), [false; 3]);
        let near = "redis_version:6.2.1\r\nused_memory:81\r\nmaxmemory:100\r\nconnected_slaves:1\r\n";
        assert_eq!(found(near), [true; 3]);
    }
}
