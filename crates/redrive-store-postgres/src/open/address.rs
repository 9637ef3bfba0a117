//! An address: where the server is, how to speak to it, and what redrive itself wants to know.

use std::path::PathBuf;
use std::str::FromStr;

use redrive_core::{Invalid, StoreError};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use url::Url;

/// Connections beside those for heartbeats and wake-ups, unless the address says otherwise.
pub const CONNECTIONS: usize = 8;
/// The most connections that an address may ask for.
pub const CONNECTIONS_MAX: usize = 500;

/// How the server knows redrive's connections, unless the address says otherwise.
pub(crate) const APPLICATION: &str = "redrive";

/// What an address says.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// Where calls go.
    pub(crate) config: Config,
    /// Where wake-ups are heard; none means that polling has to do.
    pub(crate) listen: Option<Config>,
    /// Whom to trust.
    pub(crate) trust: Trust,
    /// How many calls may be under way at once.
    pub(crate) connections: usize,
}

/// What a certificate must show, in the words of libpq's `sslmode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Nothing: `disable`, `prefer`, `require`.
    Anyone,
    /// That it is the server's, by the system's roots or this file's: `verify-full`.
    Verified(Option<PathBuf>),
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let mut url = Url::parse(text).map_err(|error| refused(format!("the address is no URL: {error}")))?;
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
            listen: settings.listen.of(&config),
            config,
            trust: settings.trust()?,
            connections: settings.connections,
        })
    }
}

/// What redrive reads from an address itself.
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
    /// Takes a parameter; false when it is not for redrive.
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
            (None, false) => Ok(Trust::Anyone),
            (Some(_), false) => {
                Err(refused("sslrootcert needs sslmode=verify-full, else nothing is verified".to_owned()))
            }
        }
    }
}

fn connections(value: &str) -> Result<usize, StoreError> {
    let count = value.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
    count.ok_or_else(|| refused(format!("connections must be from 1 to {CONNECTIONS_MAX}, is {value:?}")))
}

fn ssl_mode(value: &str) -> Result<(SslMode, bool), StoreError> {
    match value {
        "disable" => Ok((SslMode::Disable, false)),
        "prefer" => Ok((SslMode::Prefer, false)),
        "require" => Ok((SslMode::Require, false)),
        "verify-full" => Ok((SslMode::Require, true)),
        other => {
            Err(refused(format!("sslmode must be disable, prefer, require or verify-full, is {other:?}")))
        }
    }
}

/// Where wake-ups are heard.
enum Listen {
    /// Where calls go.
    Same,
    /// At another host and port: the server itself, when calls go through a pooler.
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
            direct.ok_or_else(|| refused(format!("listen must be off or HOST:PORT, is {value:?}")))?;
        Ok(Self::At(host, port))
    }

    fn of(&self, config: &Config) -> Option<Config> {
        match self {
            Self::Same => Some(config.clone()),
            Self::Off => None,
            Self::At(host, port) => Some(at(config, host, *port)),
        }
    }
}

/// The same user and database at another place.
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
    fn what_redrive_wants_to_know_is_read_and_the_rest_goes_on() {
        let plain = parse("postgres://me@db.example/jobs");
        assert_eq!((plain.connections, plain.trust), (CONNECTIONS, Trust::Anyone));
        assert_eq!(plain.listen.expect("it listens").get_dbname(), Some("jobs"));
        let full = parse(
            "postgres://me:pw@pooler:6432/jobs?connections=20&listen=db:5433&sslmode=verify-full&sslrootcert=/ca.pem&application_name=x",
        );
        assert_eq!(full.connections, 20);
        assert_eq!(full.trust, Trust::Verified(Some("/ca.pem".into())));
        assert_eq!(full.config.get_application_name(), Some("x"));
        let listen = full.listen.expect("it listens");
        assert_eq!((listen.get_ports(), listen.get_password()), (&[5433][..], Some(&b"pw"[..])));
        assert!(parse("postgresql://h/d?listen=off").listen.is_none());
    }

    #[test]
    fn a_bad_address_says_how_to_write_one() {
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
