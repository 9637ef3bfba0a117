//! The network address at the other end of a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The address at the other end of a connection. The listener puts it into the extensions of every request.
///
/// It is the address of the socket: forwarding headers can be forged and are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

impl Peer {
    /// The group of addresses whose connections and failed logins are counted together.
    pub(crate) fn group(self) -> PeerGroup {
        PeerGroup::of(self.0.ip())
    }
}

/// One IPv4 address, or one IPv6 network of 64 bits: a single host usually owns all addresses of such a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PeerGroup(IpAddr);

impl PeerGroup {
    /// The group of requests that did not come over a connection.
    pub(crate) const UNKNOWN: Self = Self(IpAddr::V6(Ipv6Addr::UNSPECIFIED));

    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(IpAddr::V4(address)),
            IpAddr::V6(address) => {
                let network = u128::from(address) & (u128::MAX << 64);
                Self(IpAddr::V6(Ipv6Addr::from(network)))
            }
        }
    }
}

impl std::fmt::Display for PeerGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(address: &str) -> String {
        PeerGroup::of(address.parse().unwrap()).to_string()
    }

    #[test]
    fn addresses_of_one_host_are_one_group() {
        assert_eq!(group("192.0.2.1"), "192.0.2.1");
        assert_eq!(group("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(group("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(group("2001:db8:1:2:ffff::"), group("2001:db8:1:2::1"));
        assert_ne!(group("2001:db8:1:3::1"), group("2001:db8:1:2::1"));
    }
}
