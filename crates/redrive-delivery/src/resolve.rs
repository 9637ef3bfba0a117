//! Resolves host names without blocking a thread: DNS over UDP and TCP, /etc/hosts, and a bounded cache.

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

use crate::transport::local::LocalFailure;

use self::config::{Configuration, FileStamps};
use self::name_servers::NameServers;

/// The most answers in the cache.
pub const CACHED_ANSWERS_MAX: u64 = 4_096;
/// The longest time that an address is cached, even if its TTL is longer.
pub const ADDRESS_CACHED_MAX: Duration = Duration::from_secs(5 * 60);
/// The longest time that the absence of an address is cached, so that a new name works soon.
pub const ABSENCE_CACHED_MAX: Duration = Duration::from_secs(30);
/// How often /etc/resolv.conf and /etc/hosts are checked for changes.
const FILES_CHECKED_EVERY: Duration = Duration::from_secs(5);

/// Resolves host names. It is called for every connection.
#[async_trait]
pub trait Resolve: Send + Sync + fmt::Debug {
    /// The addresses of `host`, in the order to try them.
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError>;
}

/// Why a host could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// A name server answered that the host has no address, or that it cannot resolve it.
    #[error(transparent)]
    Failed(#[from] io::Error),
    /// This node cannot resolve anything.
    #[error(transparent)]
    Local(#[from] LocalFailure),
}

/// Resolves names with the configuration of the system: /etc/hosts, then the name servers, search domains and options of
/// /etc/resolv.conf. Changes of these files take effect within 5 s.
///
/// A query is an ordinary future, which can be dropped at any time. Answers are cached for their TTL, at most [`CACHED_ANSWERS_MAX`] of
/// them.
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

/// A resolver for one configuration, with its cache and the state of its name servers.
struct Dns {
    hosts: Hosts,
    resolver: TokioResolver,
    name_servers: Arc<NameServers>,
}

impl SystemResolver {
    /// A resolver for the configuration of the system.
    pub fn new() -> Self {
        Self::from_source(Source::System)
    }

    /// A resolver that uses these name servers instead of those in /etc/resolv.conf.
    pub fn with_name_servers(name_servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self::from_source(Source::Given(name_servers.into_iter().collect()))
    }

    /// With this limit for the cache.
    pub fn with_cached_answers_max(self, cached_answers_max: u64) -> Self {
        Self { cached_answers_max, ..self }
    }

    fn from_source(source: Source) -> Self {
        Self { source, cached_answers_max: CACHED_ANSWERS_MAX, current: Mutex::new(None) }
    }

    /// The resolver for the current configuration.
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
            tracing::info!("the DNS configuration of the system has changed; reading it again");
        }
        let stamps = FileStamps::read();
        let dns = Arc::new(self.load()?);
        *current = Some(LoadedConfiguration { dns: dns.clone(), stamps, checked_at: now });
        Ok(dns)
    }

    fn load(&self) -> Result<Dns, ResolveError> {
        let configuration = match &self.source {
            Source::System => Configuration::from_system(),
            Source::Given(servers) => Configuration::with_name_servers(servers),
        };
        let name_servers = Arc::new(NameServers::new(configuration.addresses()));
        let resolver = configuration.build(self.cached_answers_max).map_err(io::Error::other)?;
        // A missing file counts as empty.
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
            // The query is polled first, because a cached answer needs no name server.
            biased;
            answer = dns.resolver.lookup_ip(host) => match answer {
                Ok(addresses) => Ok(addresses.iter().collect()),
                Err(error) => Err(dns.classify(error).await),
            },
            failure = dns.name_servers.wait_until_down() => Err(failure.into()),
        }
    }
}

impl Dns {
    /// The addresses of a name in /etc/hosts. Addresses of one family are enough, as in the C library.
    fn in_hosts_file(&self, host: &str) -> Vec<IpAddr> {
        let Ok(name) = Name::from_utf8(host) else { return Vec::new() };
        let listed = [RecordType::A, RecordType::AAAA]
            .into_iter()
            .filter_map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)));
        listed.flat_map(|found| LookupIp::from(found).iter().collect::<Vec<_>>()).collect()
    }

    /// Decides whether a query failed because of the name or because of this node.
    async fn classify(&self, error: NetError) -> ResolveError {
        if let NetError::Io(cause) = &error
            && let Some(failure) = LocalFailure::from_io(cause)
        {
            return failure.into();
        }
        let unanswered =
            matches!(error, NetError::Io(_) | NetError::Timeout | NetError::NoConnections | NetError::Busy);
        if unanswered && let Err(failure) = self.name_servers.check().await {
            return failure.into();
        }
        tracing::debug!(%error, "a DNS query failed");
        io::Error::new(io::ErrorKind::NotFound, public_message(&error)).into()
    }
}

/// The message for tenants. The error itself contains the last query, with the search domains of this network.
fn public_message(error: &NetError) -> String {
    match error {
        error if error.is_nx_domain() => "the name does not exist".to_owned(),
        error if error.is_no_records_found() => "the name has no address".to_owned(),
        NetError::Dns(DnsError::ResponseCode(code)) => format!("the name server answered {code}"),
        NetError::Timeout => "no name server answered in time".to_owned(),
        _ => "the DNS query failed".to_owned(),
    }
}

impl fmt::Debug for SystemResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemResolver").field("source", &self.source).finish_non_exhaustive()
    }
}
