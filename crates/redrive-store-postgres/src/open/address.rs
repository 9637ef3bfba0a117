//! Parses the address of a store: the server, the certificate check, and the parameters of redrive itself.

use std::path::PathBuf;
use std::str::FromStr;

use redrive_core::{Invalid, StoreError};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use url::Url;

/// The default number of connections, without those for heartbeats and wake-ups.
pub const CONNECTIONS: usize = 8;
/// The largest number of connections in an address.
pub const CONNECTIONS_MAX: usize = 500;

/// The default application name of redrive's connections.
pub(crate) const APPLICATION: &str = "redrive";

/// A parsed address.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// The server for calls.
    pub(crate) config: Config,
    /// The server to listen at for wake-ups. None means that the node polls.
    pub(crate) listen: Option<Config>,
    pub(crate) trust: Trust,
    /// The number of calls that may run at once.
    pub(crate) connections: usize,
}

/// How the server's certificate is checked, as by `sslmode` in libpq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Not at all: `disable`, `prefer`, `require`.
    AnyCertificate,
    /// By name and issuer, with the roots of the system or of this file: `verify-full`.
    Verified(Option<PathBuf>),
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let mut url =
            Url::parse(text).map_err(|error| refused(format!("the address is not a URL: {error}")))?;
        let mut settings = Settings::default();
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let mut rest = Vec::new();
        for (name, value) in pairs {
            if !settings.take(&name, &value)? {
                rest.push((name, value));
            }
        }
        url.set_query(None);
        if !rest.is_empty() {
            url.query_pairs_mut().extend_pairs(rest);
        }
        let mut config: Config = url
            .as_str()
            .parse()
            .map_err(|error: tokio_postgres::Error| refused(crate::error::explain(&error)))?;
        if config.get_application_name().is_none() {
            config.application_name(APPLICATION);
        }
        config.ssl_mode(settings.ssl_mode);
        Ok(Self {
            listen: settings.listen.config(&config),
            config,
            trust: settings.trust()?,
            connections: settings.connections,
        })
    }
}

/// The parameters of an address that redrive itself reads.
struct Settings {
    connections: usize,
    listen: Listen,
    ssl_mode: SslMode,
    verify: bool,
    roots: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS,
            listen: Listen::Same,
            ssl_mode: SslMode::Prefer,
            verify: false,
            roots: None,
        }
    }
}

impl Settings {
    /// Reads a parameter. Returns false if the parameter is not one of redrive's.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, StoreError> {
        match name {
            "connections" => self.connections = connections(value)?,
            "listen" => self.listen = Listen::parse(value)?,
            "sslmode" => (self.ssl_mode, self.verify) = ssl_mode(value)?,
            "sslrootcert" => self.roots = Some(PathBuf::from(value)),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn trust(&self) -> Result<Trust, StoreError> {
        match (&self.roots, self.verify) {
            (roots, true) => Ok(Trust::Verified(roots.clone())),
            (None, false) => Ok(Trust::AnyCertificate),
            (Some(_), false) => Err(refused(
                "sslrootcert needs sslmode=verify-full, otherwise no certificate is verified".to_owned(),
            )),
        }
    }
}

fn connections(value: &str) -> Result<usize, StoreError> {
    let count = value.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
    count.ok_or_else(|| {
        refused(format!("connections must be a number from 1 to {CONNECTIONS_MAX}, not {value:?}"))
    })
}

fn ssl_mode(value: &str) -> Result<(SslMode, bool), StoreError> {
    match value {
        "disable" => Ok((SslMode::Disable, false)),
        "prefer" => Ok((SslMode::Prefer, false)),
        "require" => Ok((SslMode::Require, false)),
        "verify-full" => Ok((SslMode::Require, true)),
        other => {
            Err(refused(format!("sslmode must be disable, prefer, require or verify-full, not {other:?}")))
        }
    }
}

/// Where to listen for wake-ups.
enum Listen {
    /// At the server for calls.
    Same,
    /// At another host and port: the server itself, if calls go through a pooler.
    At(String, u16),
    /// Nowhere.
    Off,
}

impl Listen {
    fn parse(value: &str) -> Result<Self, StoreError> {
        if value == "off" {
            return Ok(Self::Off);
        }
        let direct =
            value.rsplit_once(':').and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        let (host, port) =
            direct.ok_or_else(|| refused(format!("listen must be off or HOST:PORT, not {value:?}")))?;
        Ok(Self::At(host, port))
    }

    fn config(&self, config: &Config) -> Option<Config> {
        match self {
            Self::Same => Some(config.clone()),
            Self::Off => None,
            Self::At(host, port) => Some(at(config, host, *port)),
        }
    }
}

/// The same user and database at another host and port.
fn at(config: &Config, host: &str, port: u16) -> Config {
    let mut other = Config::new();
    other.host(host).port(port).ssl_mode(config.get_ssl_mode());
    if let Some(user) = config.get_user() {
        other.user(user);
    }
    if let Some(password) = config.get_password() {
        other.password(password);
    }
    if let Some(name) = config.get_dbname() {
        other.dbname(name);
    }
    if let Some(name) = config.get_application_name() {
        other.application_name(name);
    }
    other
}

fn refused(problem: String) -> StoreError {
    let example = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, with ?connections=, ?listen= or ?sslmode= if needed";
    Invalid::new("store", format!("{problem}; {example}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Address {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn parameters_of_redrive_are_read_and_the_others_are_passed_to_the_client() {
        let plain = parse("postgres://me@db.example/jobs");
        assert_eq!((plain.connections, plain.trust), (CONNECTIONS, Trust::AnyCertificate));
        assert_eq!(plain.listen.expect("the node listens").get_dbname(), Some("jobs"));
        let full = parse(
            "postgres://me:pw@pooler:6432/jobs?connections=20&listen=db:5433&sslmode=verify-full&sslrootcert=/ca.pem&application_name=x",
        );
        assert_eq!(full.connections, 20);
        assert_eq!(full.trust, Trust::Verified(Some("/ca.pem".into())));
        assert_eq!(full.config.get_application_name(), Some("x"));
        let listen = full.listen.expect("the node listens");
        assert_eq!((listen.get_ports(), listen.get_password()), (&[5433][..], Some(&b"pw"[..])));
        assert!(parse("postgresql://h/d?listen=off").listen.is_none());
    }

    #[test]
    fn an_invalid_address_is_rejected_with_an_example() {
        for text in [
            "postgres",
            "postgres://h/d?connections=0",
            "postgres://h/d?connections=501",
            "postgres://h/d?listen=db",
            "postgres://h/d?sslmode=maybe",
            "postgres://h/d?sslrootcert=/ca.pem",
            "postgres://h/d?nonsense=1",
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains("write postgres://USER"), "{text}: {error}");
        }
    }
}
