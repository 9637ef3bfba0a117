//! The DNS configuration of the system, and whether its files have changed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::read_system_conf;

use super::{ABSENCE_CACHED_MAX, ADDRESS_CACHED_MAX};
use crate::transport::local::has_source_address;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
/// The longest wait for one name server. A connection has less time for its query.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The most concurrent queries on one TCP connection to a name server.
const QUERIES_PER_CONNECTION_MAX: usize = 1_024;
/// A public IPv6 address, to check whether this machine has a source address for IPv6.
const SOME_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888));

/// The configuration of a resolver.
pub(super) struct Configuration {
    config: ResolverConfig,
    options: ResolverOpts,
}

impl Configuration {
    /// The configuration in /etc/resolv.conf. Without it the name server is 127.0.0.1, as in the C library.
    pub(super) fn from_system() -> Self {
        let (config, options) = read_system_conf().unwrap_or_else(|error| {
            tracing::warn!(%error, "{RESOLV_CONF} has no name server; using 127.0.0.1:53");
            let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
            (ResolverConfig::from_name_servers(vec![local]), ResolverOpts::default())
        });
        let (domain, search, servers) = config.into_parts();
        // The domain of the host is searched only without a search list, as in the C library.
        let domain = domain.filter(|_| search.is_empty());
        Self { config: ResolverConfig::from_parts(domain, search, servers), options }
    }

    /// These name servers, without search domains.
    pub(super) fn with_name_servers(servers: &[SocketAddr]) -> Self {
        let servers = servers.iter().map(|server| {
            let mut config = NameServerConfig::udp_and_tcp(server.ip());
            for connection in &mut config.connections {
                connection.port = server.port();
            }
            config
        });
        Self {
            config: ResolverConfig::from_name_servers(servers.collect()),
            options: ResolverOpts::default(),
        }
    }

    /// The addresses of the name servers.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let servers = self.config.name_servers().iter();
        let address = |server: &NameServerConfig| {
            server.connections.first().map(|connection| SocketAddr::new(server.ip, connection.port))
        };
        servers.filter_map(address).collect()
    }

    pub(super) fn build(self, cached_answers_max: u64) -> Result<TokioResolver, NetError> {
        // IPv6 before IPv4, as in the C library, but only if this machine has IPv6.
        let ip_strategy = if has_source_address((SOME_IPV6, 53).into()) {
            LookupIpStrategy::Ipv6AndIpv4
        } else {
            LookupIpStrategy::Ipv4AndIpv6
        };
        let mut options = self.options;
        options.timeout = options.timeout.min(ANSWER_WITHIN);
        options.ip_strategy = ip_strategy;
        // The resolver would still send a query for the address family that the file does not list.
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = cached_answers_max;
        options.positive_max_ttl = Some(ADDRESS_CACHED_MAX);
        options.negative_max_ttl = Some(ABSENCE_CACHED_MAX);
        options.max_active_requests = QUERIES_PER_CONNECTION_MAX;
        let provider = TokioRuntimeProvider::default();
        TokioResolver::builder_with_config(self.config, provider).with_options(options).build()
    }
}

/// Modification times and sizes of the files; `None` for a file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileStamps([Option<(SystemTime, u64)>; 2]);

impl FileStamps {
    pub(super) fn read() -> Self {
        Self([RESOLV_CONF, HOSTS].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        }))
    }
}
