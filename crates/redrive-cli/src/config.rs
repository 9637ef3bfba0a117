//! How `serve` is told what to do: a flag, else its environment variable, else the configuration file, else a default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use ipnet::IpNet;
use redrive_server::{Config, KeySource, Roles, Setup};
use redrive_worker::Settings;
use serde::Deserialize;

/// Flags of `serve`. Each is also an environment variable and a key of the configuration file.
#[derive(clap::Args, Deserialize, Default, Debug, Clone, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Flags {
    /// Where to listen [default: 127.0.0.1:7373]
    #[arg(long, env = "REDRIVE_LISTEN", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The store: sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE or redis://USER:PASSWORD@HOST [default: sqlite:redrive.db]
    #[arg(long, env = "REDRIVE_STORE", value_name = "ADDRESS")]
    store: Option<String>,
    /// Where large bodies go: file:FOLDER or s3://BUCKET/PREFIX [default: file:bodies]
    #[arg(long, env = "REDRIVE_BODIES", value_name = "ADDRESS")]
    bodies: Option<String>,
    /// How long an attempt is stuck when its worker dies, in milliseconds [default: 30000]
    #[arg(long, env = "REDRIVE_LEASE_MS", value_name = "MS")]
    lease_ms: Option<u64>,
    /// Attempts at once [default: 256]
    #[arg(long, env = "REDRIVE_CONCURRENCY", value_name = "N")]
    concurrency: Option<usize>,
    /// Calls under way to one origin at most [default: 64]
    #[arg(long, env = "REDRIVE_ORIGIN_CONCURRENCY", value_name = "N")]
    origin_concurrency: Option<u32>,
    /// What this process does [default: api,worker]
    #[arg(long, env = "REDRIVE_ROLES", value_delimiter = ',', value_name = "ROLE")]
    roles: Option<Vec<Role>>,
    /// A range of private addresses that targets may have; may be repeated
    #[arg(long, env = "REDRIVE_ALLOW_TARGET", value_delimiter = ',', value_name = "CIDR")]
    allow_target: Option<Vec<IpNet>>,
    /// A range of addresses that targets must not have; may be repeated, and goes before --allow-target
    #[arg(long, env = "REDRIVE_DENY_TARGET", value_delimiter = ',', value_name = "CIDR")]
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
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("the configuration {} cannot be read", path.display()))?;
        let file = toml::from_str(&text).map_err(|error| {
            // The error's own text quotes the line, which may hold a password.
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let what = error.message();
            anyhow::anyhow!("the configuration {} is not right in line {line}: {what}", path.display())
        })?;
        Ok(self.or(file))
    }

    fn or(self, file: Self) -> Self {
        Self {
            listen: self.listen.or(file.listen),
            store: self.store.or(file.store),
            bodies: self.bodies.or(file.bodies),
            lease_ms: self.lease_ms.or(file.lease_ms),
            concurrency: self.concurrency.or(file.concurrency),
            origin_concurrency: self.origin_concurrency.or(file.origin_concurrency),
            roles: self.roles.or(file.roles),
            allow_target: self.allow_target.or(file.allow_target),
            deny_target: self.deny_target.or(file.deny_target),
            log_format: self.log_format.or(file.log_format),
            secret_key_file: self.secret_key_file.or(file.secret_key_file),
            secret_key: self.secret_key.or(file.secret_key),
        }
    }

    /// How log lines look.
    pub(crate) fn log_format(&self) -> LogFormat {
        self.log_format.unwrap_or_default()
    }

    /// The service these flags describe.
    pub(crate) fn setup(self) -> anyhow::Result<Setup> {
        let defaults = Settings::default();
        let worker = Settings {
            lease: self.lease_ms.map_or(defaults.lease, Duration::from_millis),
            concurrency: self.concurrency.unwrap_or(CONCURRENCY),
            ..defaults
        };
        worker.check().context("the worker's settings are not right")?;
        let roles = self.roles.unwrap_or_else(|| vec![Role::Api, Role::Worker]);
        let config = Config {
            listen: self.listen.unwrap_or(Config::default().listen),
            roles: Roles { api: roles.contains(&Role::Api), worker: roles.contains(&Role::Worker) },
            worker,
        };
        let file = self.secret_key_file.unwrap_or_else(|| PathBuf::from("redrive.key"));
        Ok(Setup {
            config,
            store: self.store.unwrap_or_else(|| DEFAULT_STORE.to_owned()),
            bodies: self.bodies.unwrap_or_else(|| "file:bodies".to_owned()),
            secret_key: self.secret_key.map_or(KeySource::File(file), KeySource::Text),
            allow: self.allow_target.unwrap_or_default(),
            deny: self.deny_target.unwrap_or_default(),
            origin_concurrency: self.origin_concurrency.unwrap_or(ORIGIN_CONCURRENCY).max(1),
        })
    }
}

/// The store when none is named.
pub(crate) const DEFAULT_STORE: &str = "sqlite:redrive.db";
const ORIGIN_CONCURRENCY: u32 = 64;
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
    fn every_key_of_the_file_is_understood_and_others_are_not() {
        let all = "listen = '0.0.0.0:1'\nstore = 'sqlite:x'\nbodies = 'file:y'\nlease-ms = 1\nconcurrency = 1\n\
            origin-concurrency = 1\nroles = ['worker']\nallow-target = ['10.0.0.0/8']\ndeny-target = ['1.1.1.1/32']\n\
            log-format = 'json'\nsecret-key-file = 'k'\nsecret-key = 'x'\n";
        assert_eq!(written(all).unwrap().log_format(), LogFormat::Json);
        let error = format!("{:#}", written("lease = 1").unwrap_err());
        assert!(error.contains("lease") && error.contains("lease-ms"), "{error}");
    }

    #[test]
    fn an_illegal_setting_says_which() {
        let error = format!("{:#}", written("lease-ms = 1").unwrap().setup().unwrap_err());
        assert!(error.contains("lease"), "{error}");
    }
}
