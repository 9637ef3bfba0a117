//! How many acknowledged jobs an outage of the server can lose, according to its settings.

use redis::Value;
use redrive_core::{Finding, Severity, StoreError};

use crate::connection::Connections;
use crate::error::store_error;
use crate::open::DurabilityCheck;
use crate::script::reply;

/// The settings of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerSettings {
    pub(crate) name: String,
    /// Empty if the server hides its settings, as hosted ones may.
    pub(crate) appendonly: String,
    pub(crate) appendfsync: String,
    pub(crate) eviction: String,
}

const SETTINGS: [&str; 3] = ["appendonly", "appendfsync", "maxmemory-policy"];

impl ServerSettings {
    /// The settings of every server that may store jobs.
    pub(crate) async fn read_all(connections: &Connections) -> Result<Vec<Self>, StoreError> {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg(&SETTINGS);
        match connections.send_to_each(command).await {
            Ok(answers) => answers.into_iter().map(|(name, value)| Self::read(name, value)).collect(),
            // This user may not read the settings.
            Err(error) if error.code().is_some() => {
                Ok(vec![Self { name: "the server".to_owned(), ..Self::default() }])
            }
            Err(error) => Err(store_error(error)),
        }
    }

    fn read(name: String, settings: Value) -> Result<Self, StoreError> {
        let mut server = Self { name, ..Self::default() };
        for pair in reply::texts(reply::flatten_map(settings))?.chunks_exact(2) {
            match pair[0].as_str() {
                "appendonly" => server.appendonly.clone_from(&pair[1]),
                "appendfsync" => server.appendfsync.clone_from(&pair[1]),
                "maxmemory-policy" => server.eviction.clone_from(&pair[1]),
                _ => {}
            }
        }
        Ok(server)
    }

    /// Why the server may lose every job, and what to change.
    pub(crate) fn data_loss_risk(&self) -> Option<String> {
        let name = &self.name;
        if self.appendonly == "no" {
            return Some(format!(
                "{name} has `appendonly no`: an outage would lose every job; set `appendonly yes`, or add \
                 durability=unchecked to the address to accept the loss"
            ));
        }
        if !self.eviction.is_empty() && self.eviction != "noeviction" {
            return Some(format!(
                "{name} has `maxmemory-policy {}`: it would delete jobs when its memory is full; set \
                 `maxmemory-policy noeviction`, or add durability=unchecked to the address to accept the loss",
                self.eviction
            ));
        }
        None
    }

    /// What an outage can lose at most.
    pub(crate) fn loss(&self) -> Loss {
        match (self.appendonly.as_str(), self.appendfsync.as_str()) {
            ("no", _) => Loss::Everything,
            ("yes", "always") => Loss::Nothing,
            ("yes", "everysec") => Loss::Seconds(EVERYSEC_S),
            ("yes", "no") => Loss::Seconds(KERNEL_S),
            _ => Loss::Unknown,
        }
    }
}

/// The server syncs its append-only file every second, or one second later if the disk is slow.
const EVERYSEC_S: u32 = 2;
/// Linux writes dirty pages to disk after this time.
const KERNEL_S: u32 = 30;

/// The acknowledged writes that an outage of a server can lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    Seconds(u32),
    Everything,
    Unknown,
}

impl Loss {
    /// A sentence about the loss. If there is a remedy, it follows after a semicolon.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Nothing => {
                "an outage of the server loses no acknowledged job (appendfsync always)".to_owned()
            }
            Self::Seconds(seconds) => format!(
                "an outage of the server can lose the jobs of the last {seconds} s; with appendfsync always it loses none"
            ),
            Self::Everything => "an outage of the server loses every job (appendonly no)".to_owned(),
            Self::Unknown => {
                "the server hides its settings, so it is unknown what an outage can lose; it needs \
                appendonly yes and maxmemory-policy noeviction"
                    .to_owned()
            }
        }
    }
}

/// Refuses servers that may lose every job, unless the check is skipped. Logs what an outage can lose.
pub(crate) async fn check(connections: &Connections, check: DurabilityCheck) -> Result<(), StoreError> {
    let servers = ServerSettings::read_all(connections).await?;
    for server in &servers {
        match (server.data_loss_risk(), check) {
            (Some(risk), DurabilityCheck::Required) => return Err(StoreError::Refused(risk)),
            (Some(risk), DurabilityCheck::Skipped) => tracing::warn!("{risk}"),
            (None, DurabilityCheck::Required | DurabilityCheck::Skipped) => {}
        }
        match server.loss() {
            Loss::Nothing => tracing::info!(server = server.name, "{}", Loss::Nothing.describe()),
            loss @ (Loss::Seconds(_) | Loss::Everything | Loss::Unknown) => {
                tracing::warn!(server = server.name, "{}", loss.describe());
            }
        }
    }
    Ok(())
}

/// The doctor's findings about the durability of these servers.
pub(crate) fn findings(servers: &[ServerSettings]) -> Vec<Finding> {
    let each = servers.iter().map(|server| {
        let shown = |setting: &str| if setting.is_empty() { "?" } else { setting }.to_owned();
        let evidence = format!(
            "{}: appendonly {}, appendfsync {}, maxmemory-policy {}",
            server.name,
            shown(&server.appendonly),
            shown(&server.appendfsync),
            shown(&server.eviction)
        );
        if let Some(risk) = server.data_loss_risk() {
            let (what, remedy) = risk.split_once("; ").unwrap_or((&risk, "change the setting"));
            return Finding::new(Severity::Critical, "durability", what, evidence, remedy);
        }
        let description = server.loss().describe();
        match server.loss() {
            Loss::Nothing => Finding::ok("durability", description, evidence),
            Loss::Seconds(_) | Loss::Everything | Loss::Unknown => {
                let (what, remedy) =
                    description.split_once("; ").unwrap_or((&description, "set appendonly yes"));
                Finding::new(Severity::Warning, "durability", what, evidence, remedy)
            }
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(appendonly: &str, appendfsync: &str, eviction: &str) -> ServerSettings {
        let own = str::to_owned;
        ServerSettings {
            name: own("it"),
            appendonly: own(appendonly),
            appendfsync: own(appendfsync),
            eviction: own(eviction),
        }
    }

    #[test]
    fn a_setting_that_loses_jobs_is_reported_with_its_remedy() {
        for (server, risk, loss) in [
            (server("no", "everysec", "noeviction"), Some("appendonly no"), Loss::Everything),
            (server("yes", "always", "allkeys-lru"), Some("maxmemory-policy allkeys-lru"), Loss::Nothing),
            (server("yes", "always", "noeviction"), None, Loss::Nothing),
            (server("yes", "everysec", "noeviction"), None, Loss::Seconds(2)),
            (server("yes", "no", "noeviction"), None, Loss::Seconds(30)),
            (server("", "", ""), None, Loss::Unknown),
        ] {
            match (server.data_loss_risk(), risk) {
                (Some(text), Some(word)) => {
                    assert!(text.contains(word) && text.contains("durability=unchecked"), "{text}")
                }
                (None, None) => {}
                (text, word) => panic!("{text:?} {word:?}"),
            }
            assert_eq!(server.loss(), loss);
        }
    }
}
