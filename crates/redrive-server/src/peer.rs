//! The groups of network addresses for which connections and failed logins are counted.

use std::net::{IpAddr, Ipv6Addr};

use redrive_wire::Peer;

/// One IPv4 address, or one IPv6 network of 64 bits: a single host usually owns all addresses of such a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PeerGroup(IpAddr);

impl PeerGroup {
    /// The group of requests without a connection, for example in tests.
    pub(crate) const UNKNOWN: Self = Self(IpAddr::V6(Ipv6Addr::UNSPECIFIED));

    /// The group that an address belongs to.
    pub(crate) fn of(peer: Peer) -> Self {
        match peer.0.ip().to_canonical() {
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
        let address: IpAddr = address.parse().unwrap();
        PeerGroup::of(Peer((address, 1).into())).to_string()
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
