//! Finds the addresses of a host without holding a thread: DNS over UDP and TCP, /etc/hosts, and a bounded cache.

mod config;
mod name_servers;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use tokio::time::Instant;

use crate::local::LocalFailure;

use self::config::{Configuration, FileStamps};
use self::name_servers::NameServers;

/// Answers that are kept in memory.
pub const CACHED_ANSWERS_MAX: u64 = 4_096;
/// The longest time that an address is kept, whatever its TTL says.
pub const ADDRESS_CACHED_MAX: Duration = Duration::from_secs(5 * 60);
/// The longest time that the absence of an address is kept, so that a name that was just created works soon.
pub const ABSENCE_CACHED_MAX: Duration = Duration::from_secs(30);
/// How often /etc/resolv.conf and /etc/hosts are checked for changes.
const FILES_CHECKED_EVERY: Duration = Duration::from_secs(5);

/// Finds the addresses of a host, anew for every connection.
#[async_trait]
pub trait Resolve: Send + Sync + fmt::Debug {
    /// The addresses of `host`, in the order to try them.
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError>;
}

/// Why a host has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// A name server says that there are none, or that it cannot find out.
    #[error(transparent)]
    Failed(#[from] io::Error),
    /// This node cannot look anything up.
    #[error(transparent)]
    Local(#[from] LocalFailure),
}

/// Looks names up as the system is configured to: /etc/hosts, then the name servers, search domains and options of
/// /etc/resolv.conf. Changes of these files take effect within 5 s.
///
/// A look-up is a future like any other: dropping it frees what it holds. Answers are cached for their TTL, at most
/// [`CACHED_ANSWERS_MAX`] of them.
pub struct SystemResolver {
    source: Source,
    cached_answers_max: u64,
    current: Mutex<Option<LoadedConfiguration>>,
}

/// Where the name servers come from.
#[derive(Debug, Clone)]
enum Source {
    System,
    Given(Vec<SocketAddr>),
}

struct LoadedConfiguration {
    dns: Arc<Dns>,
    stamps: FileStamps,
    checked_at: Instant,
}

/// One configuration, with its cache and what is known about its name servers.
struct Dns {
    hosts: Hosts,
    resolver: TokioResolver,
    name_servers: Arc<NameServers>,
}

impl SystemResolver {
    /// Looks names up by /etc/resolv.conf and /etc/hosts.
    pub fn new() -> Self {
        Self::of(Source::System)
    }

    /// Asks these name servers instead of those of /etc/resolv.conf.
    pub fn asking(name_servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self::of(Source::Given(name_servers.into_iter().collect()))
    }

    /// Caches at most this many answers.
    pub fn with_cached_answers_max(self, cached_answers_max: u64) -> Self {
        Self { cached_answers_max, ..self }
    }

    fn of(source: Source) -> Self {
        Self { source, cached_answers_max: CACHED_ANSWERS_MAX, current: Mutex::new(None) }
    }

    /// The resolver for the configuration as it is now.
    fn current(&self) -> Result<Arc<Dns>, ResolveError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(loaded) = &mut *current {
            if now - loaded.checked_at < FILES_CHECKED_EVERY {
                return Ok(loaded.dns.clone());
            }
            loaded.checked_at = now;
            if loaded.stamps == FileStamps::read() {
                return Ok(loaded.dns.clone());
            }
            tracing::info!("the system's DNS configuration has changed and is read again");
        }
        let stamps = FileStamps::read();
        let dns = Arc::new(self.load()?);
        *current = Some(LoadedConfiguration { dns: dns.clone(), stamps, checked_at: now });
        Ok(dns)
    }

    fn load(&self) -> Result<Dns, ResolveError> {
        let configuration = match &self.source {
            Source::System => Configuration::of_system(),
            Source::Given(servers) => Configuration::asking(servers),
        };
        let name_servers = Arc::new(NameServers::new(configuration.addresses()));
        let resolver = configuration.build(self.cached_answers_max).map_err(io::Error::other)?;
        // Without the file no name is in it.
        Ok(Dns { hosts: Hosts::from_system().unwrap_or_default(), resolver, name_servers })
    }
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let dns = self.current()?;
        let listed = dns.in_hosts_file(host);
        if !listed.is_empty() {
            return Ok(listed);
        }
        tokio::select! {
            // The look-up goes first: what is in the cache needs no name server.
            biased;
            answer = dns.resolver.lookup_ip(host) => match answer {
                Ok(addresses) => Ok(addresses.iter().collect()),
                Err(error) => Err(dns.explain(error).await),
            },
            failure = dns.name_servers.fell_silent() => Err(failure.into()),
        }
    }
}

impl Dns {
    /// The addresses that /etc/hosts has for a name. Those of one family are enough, as for the C library.
    fn in_hosts_file(&self, host: &str) -> Vec<IpAddr> {
        let Ok(name) = Name::from_utf8(host) else { return Vec::new() };
        let listed = [RecordType::A, RecordType::AAAA]
            .into_iter()
            .filter_map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)));
        listed.flat_map(|found| LookupIp::from(found).iter().collect::<Vec<_>>()).collect()
    }

    /// Whether a look-up failed because of the name or because of this node.
    async fn explain(&self, error: NetError) -> ResolveError {
        if let NetError::Io(cause) = &error
            && let Some(failure) = LocalFailure::of(cause)
        {
            return failure.into();
        }
        let unanswered =
            matches!(error, NetError::Io(_) | NetError::Timeout | NetError::NoConnections | NetError::Busy);
        if unanswered && let Err(failure) = self.name_servers.check().await {
            return failure.into();
        }
        tracing::debug!(%error, "a look-up failed");
        io::Error::new(io::ErrorKind::NotFound, in_words(&error)).into()
    }
}

/// What a tenant may read. The error itself names what was asked last, with the search domains of this network.
fn in_words(error: &NetError) -> String {
    match error {
        error if error.is_nx_domain() => "the name does not exist".to_owned(),
        error if error.is_no_records_found() => "the name has no address".to_owned(),
        NetError::Dns(DnsError::ResponseCode(code)) => format!("the name server answered {code}"),
        NetError::Timeout => "no name server answered in time".to_owned(),
        _ => "the look-up failed".to_owned(),
    }
}

impl fmt::Debug for SystemResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemResolver").field("source", &self.source).finish_non_exhaustive()
    }
}
