//! The system's DNS configuration, and when its files have changed.

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
use crate::local::has_source_address;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
/// The longest time to wait for one name server. A connection has less than that for its look-up.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Queries under way on one TCP connection to a name server.
const QUERIES_PER_CONNECTION_MAX: usize = 1_024;
/// A public IPv6 address, to find out whether this machine has a source address for such.
const SOME_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888));

/// What a resolver goes by.
pub(super) struct Configuration {
    config: ResolverConfig,
    options: ResolverOpts,
}

impl Configuration {
    /// What /etc/resolv.conf says. Without it the name server is the one on this machine, as for the C library.
    pub(super) fn of_system() -> Self {
        let (config, options) = read_system_conf().unwrap_or_else(|error| {
            tracing::warn!(%error, "{RESOLV_CONF} names no name server: names are looked up at 127.0.0.1:53");
            let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
            (ResolverConfig::from_name_servers(vec![local]), ResolverOpts::default())
        });
        let (domain, search, servers) = config.into_parts();
        // The host's own domain is searched only where no search list is given, as the C library does.
        let domain = domain.filter(|_| search.is_empty());
        Self { config: ResolverConfig::from_parts(domain, search, servers), options }
    }

    /// These name servers, without search domains.
    pub(super) fn asking(servers: &[SocketAddr]) -> Self {
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

    /// Where the name servers listen.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let servers = self.config.name_servers().iter();
        let address = |server: &NameServerConfig| {
            server.connections.first().map(|connection| SocketAddr::new(server.ip, connection.port))
        };
        servers.filter_map(address).collect()
    }

    pub(super) fn build(self, cached_answers_max: u64) -> Result<TokioResolver, NetError> {
        // Before IPv4, as the C library does it, but only where a connection has a chance.
        let ip_strategy = if has_source_address((SOME_IPV6, 53).into()) {
            LookupIpStrategy::Ipv6AndIpv4
        } else {
            LookupIpStrategy::Ipv4AndIpv6
        };
        let mut options = self.options;
        options.timeout = options.timeout.min(ANSWER_WITHIN);
        options.ip_strategy = ip_strategy;
        // The resolver would still ask for the family of addresses that the file does not list.
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = cached_answers_max;
        options.positive_max_ttl = Some(ADDRESS_CACHED_MAX);
        options.negative_max_ttl = Some(ABSENCE_CACHED_MAX);
        options.max_active_requests = QUERIES_PER_CONNECTION_MAX;
        let provider = TokioRuntimeProvider::default();
        TokioResolver::builder_with_config(self.config, provider).with_options(options).build()
    }
}

/// When the files were last changed; none for a file that cannot be read.
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
