//! How much of what was acknowledged an outage of the server can lose: read from its settings, not assumed.

use redis::Value;
use redrive_core::{Finding, Gravity, StoreError};

use crate::address::Durability;
use crate::answer;
use crate::error::Sorted;
use crate::link::Link;

/// What a server says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// Empty means that it does not say: a hosted server may hide its settings.
    pub(crate) appendonly: String,
    pub(crate) appendfsync: String,
    pub(crate) eviction: String,
}

const SETTINGS: [&str; 3] = ["appendonly", "appendfsync", "maxmemory-policy"];

impl Server {
    /// Every server that jobs may be on.
    pub(crate) async fn all(link: &Link) -> Result<Vec<Self>, StoreError> {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg(&SETTINGS);
        match link.ask_each(command).await {
            Ok(answers) => answers.into_iter().map(|(name, value)| Self::read(name, value)).collect(),
            // Who may not see the settings is told so.
            Err(error) if error.code().is_some() => {
                Ok(vec![Self { name: "the server".to_owned(), ..Self::default() }])
            }
            Err(error) => Err(error).sorted(),
        }
    }

    fn read(name: String, settings: Value) -> Result<Self, StoreError> {
        let mut server = Self { name, ..Self::default() };
        for pair in answer::texts(answer::flat(settings))?.chunks_exact(2) {
            match pair[0].as_str() {
                "appendonly" => server.appendonly.clone_from(&pair[1]),
                "appendfsync" => server.appendfsync.clone_from(&pair[1]),
                "maxmemory-policy" => server.eviction.clone_from(&pair[1]),
                _ => {}
            }
        }
        Ok(server)
    }

    /// Whether it would lose everything, and how to change that.
    pub(crate) fn danger(&self) -> Option<String> {
        let name = &self.name;
        if self.appendonly == "no" {
            return Some(format!(
                "{name} has `appendonly no`: an outage of it would lose every job; set `appendonly yes`, or add \
                 durability=unchecked to the address if that may happen"
            ));
        }
        if !self.eviction.is_empty() && self.eviction != "noeviction" {
            return Some(format!(
                "{name} has `maxmemory-policy {}`: it would throw jobs away when its memory is full; set \
                 `maxmemory-policy noeviction`, or add durability=unchecked to the address if that may happen",
                self.eviction
            ));
        }
        None
    }

    /// What an outage can lose.
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

/// The server writes its log out every second, and puts that off for one more when the disk is slow.
const EVERYSEC_S: u32 = 2;
/// Linux writes out by itself what is so old.
const KERNEL_S: u32 = 30;

/// What an outage of a server can lose of what it has acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    Seconds(u32),
    Everything,
    Unknown,
}

impl Loss {
    /// In words, with what to do about it.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Nothing => {
                "an outage of the server loses nothing that was acknowledged (appendfsync always)".to_owned()
            }
            Self::Seconds(seconds) => format!(
                "an outage of the server can lose the last {seconds} s of what was acknowledged; appendfsync always loses nothing"
            ),
            Self::Everything => "an outage of the server loses everything (appendonly no)".to_owned(),
            Self::Unknown => {
                "the server does not show its settings: what an outage can lose is not known; it needs \
                appendonly yes and maxmemory-policy noeviction"
                    .to_owned()
            }
        }
    }
}

/// Refuses servers that would lose everything, unless that may happen; says what an outage can lose.
pub(crate) async fn check(link: &Link, durability: Durability) -> Result<(), StoreError> {
    let servers = Server::all(link).await?;
    for server in &servers {
        match (server.danger(), durability) {
            (Some(danger), Durability::Checked) => return Err(StoreError::Refused(danger)),
            (Some(danger), Durability::Unchecked) => tracing::warn!("{danger}"),
            (None, Durability::Checked | Durability::Unchecked) => {}
        }
        match server.loss() {
            Loss::Nothing => tracing::info!(server = server.name, "{}", Loss::Nothing.words()),
            loss @ (Loss::Seconds(_) | Loss::Everything | Loss::Unknown) => {
                tracing::warn!(server = server.name, "{}", loss.words());
            }
        }
    }
    Ok(())
}

/// The same for who asks.
pub(crate) fn findings(servers: &[Server]) -> Vec<Finding> {
    let each = servers.iter().map(|server| {
        let shown = |setting: &str| if setting.is_empty() { "?" } else { setting }.to_owned();
        let evidence = format!(
            "{}: appendonly {}, appendfsync {}, maxmemory-policy {}",
            server.name,
            shown(&server.appendonly),
            shown(&server.appendfsync),
            shown(&server.eviction)
        );
        if let Some(danger) = server.danger() {
            let (what, remedy) = danger.split_once("; ").unwrap_or((&danger, "change the setting"));
            return Finding::new(Gravity::Grave, "durability", what, evidence, remedy);
        }
        let words = server.loss().words();
        match server.loss() {
            Loss::Nothing => Finding::fine("durability", words, evidence),
            Loss::Seconds(_) | Loss::Everything | Loss::Unknown => {
                let (what, remedy) = words.split_once("; ").unwrap_or((&words, "set appendonly yes"));
                Finding::new(Gravity::Warning, "durability", what, evidence, remedy)
            }
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(appendonly: &str, appendfsync: &str, eviction: &str) -> Server {
        let own = str::to_owned;
        Server {
            name: own("it"),
            appendonly: own(appendonly),
            appendfsync: own(appendfsync),
            eviction: own(eviction),
        }
    }

    #[test]
    fn a_setting_that_loses_jobs_is_named_with_the_way_out() {
        for (server, danger, loss) in [
            (server("no", "everysec", "noeviction"), Some("appendonly no"), Loss::Everything),
            (server("yes", "always", "allkeys-lru"), Some("maxmemory-policy allkeys-lru"), Loss::Nothing),
            (server("yes", "always", "noeviction"), None, Loss::Nothing),
            (server("yes", "everysec", "noeviction"), None, Loss::Seconds(2)),
            (server("yes", "no", "noeviction"), None, Loss::Seconds(30)),
            (server("", "", ""), None, Loss::Unknown),
        ] {
            match (server.danger(), danger) {
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
