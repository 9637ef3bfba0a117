//! How `serve` is told what to do: a flag, else its environment variable, else the configuration file, else a default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use ipnet::IpNet;
use redrive_server::{AcceptNew, Config, KeySource, ListenLimits, Roles, Setup};
use redrive_worker::Settings;
use redrive_worker::settings::{CONCURRENCY_MAX, LEASE_MIN};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::exit::Exit;
use crate::explicit::ExplicitOptions;
use crate::file_limit;
use crate::values::{parse_ip_range, parse_listen, read_text, whole};

/// Flags of `serve`. Each is also an environment variable and a key of the configuration file.
#[derive(clap::Args, Deserialize, Default, Debug, Clone, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Flags {
    /// Where to listen [default: 127.0.0.1:7373]
    #[arg(long, env = "REDRIVE_LISTEN", value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    listen: Option<SocketAddr>,
    /// The store: sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE or redis://USER:PASSWORD@HOST [default: sqlite:redrive.db]
    #[arg(long, env = "REDRIVE_STORE", value_name = "ADDRESS")]
    store: Option<String>,
    /// Where large bodies go: file:FOLDER or s3://BUCKET/PREFIX [default: file:bodies]
    #[arg(long, env = "REDRIVE_BODIES", value_name = "ADDRESS")]
    bodies: Option<String>,
    /// How long an attempt is stuck when its worker dies, in milliseconds [default: 30000]
    #[arg(long, env = "REDRIVE_LEASE_MS", value_name = "MS", value_parser = whole::<u64>(LEASE_MS_MIN.., 30_000))]
    lease_ms: Option<u64>,
    /// Attempts at once [default: 256]
    #[arg(long, env = "REDRIVE_CONCURRENCY", value_name = "N", value_parser = whole::<usize>(1..=CONCURRENCY_MAX as u64, 256))]
    concurrency: Option<usize>,
    /// Calls under way to one origin at most [default: 64]
    #[arg(long, env = "REDRIVE_ORIGIN_CONCURRENCY", value_name = "N", value_parser = whole::<u32>(1.., 64))]
    origin_concurrency: Option<u32>,
    /// Connections at once; beyond them only health and metrics are answered [default: half of the open files, at most 10000]
    #[arg(long, env = "REDRIVE_CONNECTIONS", value_name = "N", value_parser = whole::<usize>(1.., 10_000))]
    connections: Option<usize>,
    /// Connections at once from one IPv4 address or IPv6 /64 network [default: a quarter of --connections]
    #[arg(long, env = "REDRIVE_CONNECTIONS_PER_PEER", value_name = "N", value_parser = whole::<usize>(1.., 500))]
    connections_per_peer: Option<usize>,
    /// Memory for the bodies of all requests together, in MiB [default: 256]
    #[arg(long, env = "REDRIVE_REQUEST_BUFFER_MIB", value_name = "MIB", value_parser = whole::<usize>(1.., 256))]
    request_buffer_mib: Option<usize>,
    /// What this process does [default: api,worker]
    #[arg(long, env = "REDRIVE_ROLES", value_delimiter = ',', value_name = "ROLE")]
    roles: Option<Vec<Role>>,
    /// A range of private addresses that targets may have, whatever notation leads to them; may be repeated
    #[arg(long, env = "REDRIVE_ALLOW_TARGET", value_delimiter = ',', value_name = "CIDR", value_parser = parse_ip_range)]
    #[serde(deserialize_with = "ranges")]
    allow_target: Option<Vec<IpNet>>,
    /// A range of addresses that targets must not have; may be repeated, and wins over --allow-target
    #[arg(long, env = "REDRIVE_DENY_TARGET", value_delimiter = ',', value_name = "CIDR", value_parser = parse_ip_range)]
    #[serde(deserialize_with = "ranges")]
    deny_target: Option<Vec<IpNet>>,
    /// How log lines look [default: text]
    #[arg(long, env = "REDRIVE_LOG_FORMAT")]
    log_format: Option<LogFormat>,
    /// The file with the key that signing secrets and credentials in headers are encrypted with; made if there is none [default: redrive.key]
    #[arg(long, env = "REDRIVE_SECRET_KEY_FILE", value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
    /// That key itself, the base64 of 32 bytes, instead of a file
    #[arg(long, env = "REDRIVE_SECRET_KEY", value_name = "BASE64", hide_env_values = true)]
    secret_key: Option<String>,
    /// On a shared store: replace the recorded secret key by this node's, which was changed on purpose. Use it once, on one node
    #[arg(long)]
    #[serde(skip)]
    accept_new_key: bool,
    /// On a shared store: replace the recorded place of bodies by this node's, to which they were moved. Use it once, on one node
    #[arg(long)]
    #[serde(skip)]
    accept_new_bodies: bool,
}

/// The key and the bodies of this machine, which `doctor` compares with what is recorded in a shared store.
#[derive(clap::Args)]
pub(crate) struct NodeFiles {
    /// Where large bodies go on this machine [default: file:bodies]
    #[arg(long, env = "REDRIVE_BODIES", value_name = "ADDRESS")]
    bodies: Option<String>,
    /// The file with this machine's secret key [default: redrive.key]
    #[arg(long, env = "REDRIVE_SECRET_KEY_FILE", value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
    /// That key itself, the base64 of 32 bytes, instead of a file
    #[arg(long, env = "REDRIVE_SECRET_KEY", value_name = "BASE64", hide_env_values = true)]
    secret_key: Option<String>,
}

impl NodeFiles {
    /// Where its bodies are.
    pub(crate) fn bodies(&self) -> &str {
        self.bodies.as_deref().unwrap_or(DEFAULT_BODIES)
    }

    /// Where its key is.
    pub(crate) fn key(&self) -> KeySource {
        key_source(self.secret_key.clone(), self.secret_key_file.clone())
    }
}

fn key_source(text: Option<String>, file: Option<PathBuf>) -> KeySource {
    let file = file.unwrap_or_else(|| PathBuf::from("redrive.key"));
    text.map_or(KeySource::File(file), KeySource::Text)
}

/// Which store, for commands that need nothing else.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// The store: sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE or redis://USER:PASSWORD@HOST
    #[arg(
        long,
        env = "REDRIVE_STORE",
        hide_env_values = true,
        default_value = DEFAULT_STORE,
        value_name = "ADDRESS"
    )]
    pub(crate) store: String,
}

impl Place {
    /// The store's address, if it is one.
    pub(crate) fn checked(&self) -> anyhow::Result<&str> {
        check_store("--store", &self.store)?;
        Ok(&self.store)
    }
}

/// Refuses an address that names no store before anything is opened; `option` gave it.
pub(crate) fn check_store(option: &str, address: &str) -> anyhow::Result<()> {
    redrive::check_address(address).map_err(|error| Exit::Usage.because(format!("{option}: {error}")))
}

/// A part of the service.
#[derive(ValueEnum, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Answers requests.
    Api,
    /// Delivers.
    Worker,
}

/// How log lines look.
#[derive(ValueEnum, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs, one object a line.
    Json,
}

impl Flags {
    /// Takes from the file what neither flags nor environment say.
    pub(crate) fn with_file(self, path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(self) };
        let text = read_text(path).context("--config")?;
        let file = toml::from_str(&text).map_err(|error| {
            // The error's own text quotes the line, which may hold a password.
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let what = error.message();
            Exit::Usage.because(format!("invalid configuration {} in line {line}: {what}", path.display()))
        })?;
        Ok(self.or(file))
    }

    /// Settles which of the two key settings counts.
    pub(crate) fn decide(mut self, explicit: &ExplicitOptions) -> anyhow::Result<Self> {
        let file = ("secret_key_file", &mut self.secret_key_file);
        explicit.decide(("secret_key", &mut self.secret_key), file)?;
        Ok(self)
    }

    fn or(self, mut file: Self) -> Self {
        // They are one setting in two forms: a form in the file must not override the other one here.
        if self.secret_key.is_some() || self.secret_key_file.is_some() {
            (file.secret_key, file.secret_key_file) = (None, None);
        }
        Self {
            listen: self.listen.or(file.listen),
            store: self.store.or(file.store),
            bodies: self.bodies.or(file.bodies),
            lease_ms: self.lease_ms.or(file.lease_ms),
            concurrency: self.concurrency.or(file.concurrency),
            origin_concurrency: self.origin_concurrency.or(file.origin_concurrency),
            connections: self.connections.or(file.connections),
            connections_per_peer: self.connections_per_peer.or(file.connections_per_peer),
            request_buffer_mib: self.request_buffer_mib.or(file.request_buffer_mib),
            roles: self.roles.or(file.roles),
            allow_target: self.allow_target.or(file.allow_target),
            deny_target: self.deny_target.or(file.deny_target),
            log_format: self.log_format.or(file.log_format),
            secret_key_file: self.secret_key_file.or(file.secret_key_file),
            secret_key: self.secret_key.or(file.secret_key),
            // They are for one start, so a file cannot set them.
            accept_new_key: self.accept_new_key,
            accept_new_bodies: self.accept_new_bodies,
        }
    }

    /// How log lines look.
    pub(crate) fn log_format(&self) -> LogFormat {
        self.log_format.unwrap_or_default()
    }

    /// The limits of the listener, within the files that this process may have open.
    fn limits(&self) -> anyhow::Result<ListenLimits> {
        let mut limits = ListenLimits::for_open_files(file_limit::current().unwrap_or(u64::MAX));
        if let Some(connections) = self.connections {
            limits = limits.with_connections(connections);
        }
        if let Some(per_peer) = self.connections_per_peer {
            limits.connections_per_peer_max = per_peer;
        }
        if let Some(mib) = self.request_buffer_mib {
            limits.buffered_bytes_max = mib.saturating_mul(1024 * 1024);
        }
        // A flag is checked by its parser; the file is not.
        let smallest =
            limits.connections_max.min(limits.connections_per_peer_max).min(limits.buffered_bytes_max);
        anyhow::ensure!(
            smallest > 0,
            "connections, connections-per-peer and request-buffer-mib must be at least 1"
        );
        Ok(limits)
    }

    /// The service these flags describe.
    pub(crate) fn setup(self) -> anyhow::Result<Setup> {
        let defaults = Settings::default();
        let worker = Settings {
            lease: self.lease_ms.map_or(defaults.lease, Duration::from_millis),
            concurrency: self.concurrency.unwrap_or(CONCURRENCY),
            ..defaults
        };
        worker.check().context("invalid settings of the worker")?;
        let limits = self.limits()?;
        let roles = self.roles.unwrap_or_else(|| vec![Role::Api, Role::Worker]);
        let config = Config {
            listen: self.listen.unwrap_or(Config::default().listen),
            roles: Roles { api: roles.contains(&Role::Api), worker: roles.contains(&Role::Worker) },
            limits,
            worker,
        };
        let store = self.store.unwrap_or_else(|| DEFAULT_STORE.to_owned());
        check_store("--store", &store)?;
        Ok(Setup {
            config,
            store,
            bodies: self.bodies.unwrap_or_else(|| DEFAULT_BODIES.to_owned()),
            secret_key: key_source(self.secret_key, self.secret_key_file),
            accept_new: AcceptNew { key: self.accept_new_key, bodies: self.accept_new_bodies },
            allow: self.allow_target.unwrap_or_default(),
            deny: self.deny_target.unwrap_or_default(),
            origin_concurrency: self.origin_concurrency.unwrap_or(ORIGIN_CONCURRENCY).max(1),
        })
    }
}

fn ranges<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<IpNet>>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    let ranges: Result<Vec<IpNet>, String> = texts.iter().map(|text| parse_ip_range(text)).collect();
    ranges.map(Some).map_err(D::Error::custom)
}

/// The store when none is named.
pub(crate) const DEFAULT_STORE: &str = "sqlite:redrive.db";
const DEFAULT_BODIES: &str = "file:bodies";
const ORIGIN_CONCURRENCY: u32 = 64;
const LEASE_MS_MIN: u64 = LEASE_MIN.as_millis() as u64;
/// More than one origin may have: a slow one leaves room for the others.
const CONCURRENCY: usize = 256;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    fn written(text: &str) -> anyhow::Result<Flags> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Flags::default().with_file(Some(file.path()))
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "concurrency = 7\nlease-ms = 9000\nroles = [\"api\"]\n").unwrap();
        let flags = Flags { concurrency: Some(3), ..Flags::default() };
        let setup = flags.with_file(Some(file.path())).unwrap().setup().unwrap();
        assert_eq!(setup.config.worker.concurrency, 3);
        assert_eq!(setup.config.worker.lease, Duration::from_secs(9));
        assert_eq!(setup.config.roles, Roles { api: true, worker: false });
        assert_eq!(setup.store, "sqlite:redrive.db");
        assert_eq!(setup.config.listen.to_string(), "127.0.0.1:7373");
    }

    #[test]
    fn a_peer_has_a_quarter_of_the_connections_unless_told_otherwise() {
        for (file, connections, per_peer) in [
            ("connections = 400", 400, 100),
            ("connections = 400\nconnections-per-peer = 300", 400, 300),
            ("connections = 1", 1, 1),
        ] {
            let limits = written(file).unwrap().setup().unwrap().config.limits;
            assert_eq!((limits.connections_max, limits.connections_per_peer_max), (connections, per_peer));
        }
        let limits = written("request-buffer-mib = 3").unwrap().setup().unwrap().config.limits;
        assert_eq!(limits.buffered_bytes_max, 3 << 20);
    }

    #[test]
    fn every_key_of_the_file_is_understood_and_others_are_not() {
        let all = "listen = '0.0.0.0:1'\nstore = 'sqlite:x'\nbodies = 'file:y'\nlease-ms = 1\nconcurrency = 1\n\
            origin-concurrency = 1\nroles = ['worker']\nallow-target = ['10.0.0.0/8']\ndeny-target = ['1.1.1.1/32']\n\
            connections = 1\nconnections-per-peer = 1\nrequest-buffer-mib = 1\n\
            log-format = 'json'\nsecret-key-file = 'k'\nsecret-key = 'x'\n";
        assert_eq!(written(all).unwrap().log_format(), LogFormat::Json);
        let error = format!("{:#}", written("lease = 1").unwrap_err());
        assert!(error.contains("lease") && error.contains("lease-ms"), "{error}");
    }

    #[test]
    fn a_range_may_be_one_address() {
        let ranges = |file: &str| written(file).unwrap().setup().unwrap().deny;
        assert_eq!(
            ranges("deny-target = ['10.1.2.3', '::1']"),
            ranges("deny-target = ['10.1.2.3/32', '::1/128']")
        );
        let error = format!("{:#}", written("deny-target = ['example.com']").unwrap_err());
        assert!(error.contains("10.0.0.0/8"), "{error}");
    }

    #[test]
    fn an_illegal_setting_says_which() {
        for (line, named) in [("lease-ms = 1", "lease"), ("connections = 0", "connections")] {
            let error = format!("{:#}", written(line).unwrap().setup().unwrap_err());
            assert!(error.contains(named), "{error}");
        }
    }
}
