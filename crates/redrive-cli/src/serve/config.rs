//! The options of `serve`. An option on the command line wins over its environment variable, then comes the configuration
//! file, then the default.

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

use super::file_limit;
use crate::exit::ExitStatus;
use crate::options::ExplicitOptions;
use crate::options::{integer, parse_duration, parse_ip_range, parse_listen, read_text};

/// The options of `serve`. Each one is also an environment variable and a key of the configuration file.
#[derive(clap::Args, Deserialize, Default, Debug, Clone, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct ServeOptions {
    /// The address to listen on [default: 127.0.0.1:7373]
    #[arg(long, env = "REDRIVE_LISTEN", value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    listen: Option<SocketAddr>,
    /// The store: sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE or redis://USER:PASSWORD@HOST [default: sqlite:redrive.db]
    #[arg(long, env = "REDRIVE_STORE", value_name = "ADDRESS")]
    store: Option<String>,
    /// Where large bodies are stored: file:FOLDER or s3://BUCKET/PREFIX [default: file:bodies]
    #[arg(long, env = "REDRIVE_BODIES", value_name = "ADDRESS")]
    bodies: Option<String>,
    /// The length of a lease: a job of a crashed worker runs again after at most this time [default: 30s]
    #[arg(long, env = "REDRIVE_LEASE", value_name = "DURATION", value_parser = parse_lease)]
    #[serde(deserialize_with = "lease")]
    lease: Option<Duration>,
    /// The largest number of concurrent attempts [default: 256]
    #[arg(long, env = "REDRIVE_CONCURRENCY", value_name = "N", value_parser = integer::<usize>(1..=CONCURRENCY_MAX as u64, 256))]
    concurrency: Option<usize>,
    /// The largest number of concurrent calls to one origin [default: 64]
    #[arg(long, env = "REDRIVE_ORIGIN_CONCURRENCY", value_name = "N", value_parser = integer::<u32>(1.., 64))]
    origin_concurrency: Option<u32>,
    /// The largest number of connections; further ones reach only health and metrics [default: half of the open files, at most 10000]
    #[arg(long, env = "REDRIVE_CONNECTIONS", value_name = "N", value_parser = integer::<usize>(1.., 10_000))]
    connections: Option<usize>,
    /// The largest number of connections from one IPv4 address or IPv6 /64 network [default: a quarter of --connections]
    #[arg(long, env = "REDRIVE_CONNECTIONS_PER_PEER", value_name = "N", value_parser = integer::<usize>(1.., 500))]
    connections_per_peer: Option<usize>,
    /// The memory for the bodies of all current requests, in MiB [default: 256]
    #[arg(long, env = "REDRIVE_REQUEST_BUFFER_MIB", value_name = "MIB", value_parser = integer::<usize>(1.., 256))]
    request_buffer_mib: Option<usize>,
    /// The roles of this process [default: api,worker]
    #[arg(long, env = "REDRIVE_ROLES", value_delimiter = ',', value_name = "ROLE")]
    roles: Option<Vec<Role>>,
    /// A range of private IP addresses that tasks may call; may be repeated
    #[arg(long, env = "REDRIVE_ALLOW_TARGET", value_delimiter = ',', value_name = "CIDR", value_parser = parse_ip_range)]
    #[serde(deserialize_with = "ranges")]
    allow_target: Option<Vec<IpNet>>,
    /// A range of IP addresses that tasks must not call; may be repeated, and wins over --allow-target
    #[arg(long, env = "REDRIVE_DENY_TARGET", value_delimiter = ',', value_name = "CIDR", value_parser = parse_ip_range)]
    #[serde(deserialize_with = "ranges")]
    deny_target: Option<Vec<IpNet>>,
    /// The format of log lines [default: text]
    #[arg(long, env = "REDRIVE_LOG_FORMAT")]
    log_format: Option<LogFormat>,
    /// The file with the key that encrypts signing secrets and credentials in headers; created if it does not exist [default: redrive.key]
    #[arg(long, env = "REDRIVE_SECRET_KEY_FILE", value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
    /// That key itself, the base64 of 32 bytes, instead of a file
    #[arg(long, env = "REDRIVE_SECRET_KEY", value_name = "BASE64", hide_env_values = true)]
    secret_key: Option<String>,
    /// On a shared store: record the secret key of this node in place of the recorded one. Use it once, on one node, after you changed the key
    #[arg(long)]
    #[serde(skip)]
    accept_new_key: bool,
    /// On a shared store: record the body storage of this node in place of the recorded one. Use it once, on one node, after you moved the bodies
    #[arg(long)]
    #[serde(skip)]
    accept_new_bodies: bool,
}

/// The key and the body storage of this machine. `doctor` compares them with those that a shared store has recorded.
#[derive(clap::Args)]
pub(crate) struct NodeFiles {
    /// Where this machine stores large bodies [default: file:bodies]
    #[arg(long, env = "REDRIVE_BODIES", value_name = "ADDRESS")]
    bodies: Option<String>,
    /// The file with the secret key of this machine [default: redrive.key]
    #[arg(long, env = "REDRIVE_SECRET_KEY_FILE", value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
    /// That key itself, the base64 of 32 bytes, instead of a file
    #[arg(long, env = "REDRIVE_SECRET_KEY", value_name = "BASE64", hide_env_values = true)]
    secret_key: Option<String>,
}

impl NodeFiles {
    pub(crate) fn bodies(&self) -> &str {
        self.bodies.as_deref().unwrap_or(DEFAULT_BODIES)
    }

    pub(crate) fn key(&self) -> KeySource {
        key_source(self.secret_key.clone(), self.secret_key_file.clone())
    }
}

fn key_source(text: Option<String>, file: Option<PathBuf>) -> KeySource {
    let file = file.unwrap_or_else(|| PathBuf::from("redrive.key"));
    text.map_or(KeySource::File(file), KeySource::Text)
}

/// The option `--store`.
#[derive(clap::Args)]
pub(crate) struct StoreOption {
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

impl StoreOption {
    /// Returns the address of the store if it is valid.
    pub(crate) fn checked(&self) -> anyhow::Result<&str> {
        check_store("--store", &self.store)?;
        Ok(&self.store)
    }
}

/// Checks the address of a store before it is opened. `option` is named in the error.
pub(crate) fn check_store(option: &str, address: &str) -> anyhow::Result<()> {
    redrive::check_address(address).map_err(|error| ExitStatus::Usage.error(format!("{option}: {error}")))
}

/// What a process does.
#[derive(ValueEnum, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Serves the API.
    Api,
    /// Executes jobs.
    Worker,
}

/// The format of log lines.
#[derive(ValueEnum, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl ServeOptions {
    /// Adds the settings of the file that neither the command line nor the environment has.
    pub(crate) fn with_file(self, path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(self) };
        let text = read_text(path).context("--config")?;
        let file = toml::from_str(&text).map_err(|error| {
            // The text of the error quotes the line, which may contain a password.
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let message = error.message();
            ExitStatus::Usage
                .error(format!("invalid configuration in line {line} of {}: {message}", path.display()))
        })?;
        Ok(self.or(file))
    }

    /// Chooses between the two settings of the secret key.
    pub(crate) fn resolve(mut self, explicit: &ExplicitOptions) -> anyhow::Result<Self> {
        let file = ("secret_key_file", &mut self.secret_key_file);
        explicit.resolve(("secret_key", &mut self.secret_key), file)?;
        Ok(self)
    }

    fn or(self, mut file: Self) -> Self {
        // These are two forms of one setting: the form in the file must not override the other form here.
        if self.secret_key.is_some() || self.secret_key_file.is_some() {
            (file.secret_key, file.secret_key_file) = (None, None);
        }
        Self {
            listen: self.listen.or(file.listen),
            store: self.store.or(file.store),
            bodies: self.bodies.or(file.bodies),
            lease: self.lease.or(file.lease),
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
            // These are for one start only, so a file cannot set them.
            accept_new_key: self.accept_new_key,
            accept_new_bodies: self.accept_new_bodies,
        }
    }

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
        // The parser checks an option on the command line, but not one in the file.
        let smallest =
            limits.connections_max.min(limits.connections_per_peer_max).min(limits.buffered_bytes_max);
        anyhow::ensure!(
            smallest > 0,
            "connections, connections-per-peer and request-buffer-mib must be at least 1"
        );
        Ok(limits)
    }

    /// The settings of the service.
    pub(crate) fn setup(self) -> anyhow::Result<Setup> {
        let defaults = Settings::default();
        let worker = Settings {
            lease: self.lease.unwrap_or(defaults.lease),
            concurrency: self.concurrency.unwrap_or(CONCURRENCY),
            ..defaults
        };
        worker.check().context("invalid worker settings")?;
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

/// Parses the length of a lease.
fn parse_lease(text: &str) -> Result<Duration, String> {
    let lease = parse_duration(text)?;
    if lease < LEASE_MIN {
        return Err(format!("a lease must be at least {LEASE_MIN:?}, for example 30s"));
    }
    Ok(lease)
}

fn lease<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    parse_lease(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn ranges<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<IpNet>>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    let ranges: Result<Vec<IpNet>, String> = texts.iter().map(|text| parse_ip_range(text)).collect();
    ranges.map(Some).map_err(D::Error::custom)
}

/// The store without `--store`.
pub(crate) const DEFAULT_STORE: &str = "sqlite:redrive.db";
const DEFAULT_BODIES: &str = "file:bodies";
const ORIGIN_CONCURRENCY: u32 = 64;
/// More than one origin may use, so that a slow origin leaves capacity for the others.
const CONCURRENCY: usize = 256;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    fn read_config(text: &str) -> anyhow::Result<ServeOptions> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        ServeOptions::default().with_file(Some(file.path()))
    }

    #[test]
    fn an_option_wins_over_the_file_and_the_file_over_the_default() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "concurrency = 7\nlease = \"9s\"\nroles = [\"api\"]\n").unwrap();
        let options = ServeOptions { concurrency: Some(3), ..ServeOptions::default() };
        let setup = options.with_file(Some(file.path())).unwrap().setup().unwrap();
        assert_eq!(setup.config.worker.concurrency, 3);
        assert_eq!(setup.config.worker.lease, Duration::from_secs(9));
        assert_eq!(setup.config.roles, Roles { api: true, worker: false });
        assert_eq!(setup.store, "sqlite:redrive.db");
        assert_eq!(setup.config.listen.to_string(), "127.0.0.1:7373");
    }

    #[test]
    fn a_peer_gets_a_quarter_of_the_connections_by_default() {
        for (file, connections, per_peer) in [
            ("connections = 400", 400, 100),
            ("connections = 400\nconnections-per-peer = 300", 400, 300),
            ("connections = 1", 1, 1),
        ] {
            let limits = read_config(file).unwrap().setup().unwrap().config.limits;
            assert_eq!((limits.connections_max, limits.connections_per_peer_max), (connections, per_peer));
        }
        let limits = read_config("request-buffer-mib = 3").unwrap().setup().unwrap().config.limits;
        assert_eq!(limits.buffered_bytes_max, 3 << 20);
    }

    #[test]
    fn every_key_of_the_file_is_known_and_others_are_errors() {
        let all = "listen = '0.0.0.0:1'\nstore = 'sqlite:x'\nbodies = 'file:y'\nlease = '1s'\nconcurrency = 1\n\
            origin-concurrency = 1\nroles = ['worker']\nallow-target = ['10.0.0.0/8']\ndeny-target = ['1.1.1.1/32']\n\
            connections = 1\nconnections-per-peer = 1\nrequest-buffer-mib = 1\n\
            log-format = 'json'\nsecret-key-file = 'k'\nsecret-key = 'x'\n";
        assert_eq!(read_config(all).unwrap().log_format(), LogFormat::Json);
        let error = format!("{:#}", read_config("leases = '1s'").unwrap_err());
        assert!(error.contains("leases") && error.contains("`lease`"), "{error}");
    }

    #[test]
    fn a_range_may_be_one_address() {
        let ranges = |file: &str| read_config(file).unwrap().setup().unwrap().deny;
        assert_eq!(
            ranges("deny-target = ['10.1.2.3', '::1']"),
            ranges("deny-target = ['10.1.2.3/32', '::1/128']")
        );
        let error = format!("{:#}", read_config("deny-target = ['example.com']").unwrap_err());
        assert!(error.contains("10.0.0.0/8"), "{error}");
    }

    #[test]
    fn an_invalid_setting_is_named() {
        for (line, named) in [("lease = '1ms'", "lease"), ("connections = 0", "connections")] {
            let error = format!("{:#}", read_config(line).and_then(ServeOptions::setup).unwrap_err());
            assert!(error.contains(named), "{error}");
        }
    }
}
