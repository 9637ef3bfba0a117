//! Which addresses may be dialled, so that a task cannot reach into the network redrive runs in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Decides by address, after DNS: what was denied, then what was allowed, then the table of special ranges.
#[derive(Debug, Clone)]
pub struct Guard {
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
}

impl Guard {
    /// Only addresses of the public internet.
    pub fn public_only() -> Self {
        Self { allow: Vec::new(), deny: Vec::new() }
    }

    /// Addresses of the public internet and this machine's loopback; for a service that only this machine can call.
    pub fn open_to_loopback() -> Self {
        Self::public_only().allow(LOOPBACK_V4).allow(LOOPBACK_V6)
    }

    /// Allows a range that the table refuses.
    pub fn allow(mut self, range: impl Into<IpNet>) -> Self {
        self.allow.push(range.into());
        self
    }

    /// Denies a range, whatever else allows it.
    pub fn deny(mut self, range: impl Into<IpNet>) -> Self {
        self.deny.push(range.into());
        self
    }

    /// Whether `address` may be dialled.
    pub fn check(&self, address: IpAddr) -> Result<(), Refused> {
        if let Some(range) = self.denied(address) {
            return Err(Refused::Denied { address, range });
        }
        if self.allow.iter().any(|range| range.contains(&address)) {
            return Ok(());
        }
        match special(address) {
            Some((range, what)) => Err(Refused::Special { address, range, what }),
            None => Ok(()),
        }
    }

    /// An IPv4 address within an IPv6 one is denied with it: it is where the packets would end up.
    fn denied(&self, address: IpAddr) -> Option<IpNet> {
        let inner = embedded(address).map(IpAddr::V4);
        let covers =
            |range: &&IpNet| range.contains(&address) || inner.is_some_and(|inner| range.contains(&inner));
        self.deny.iter().find(covers).copied()
    }
}

/// Why an address is not dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It lies in a range that is not the public internet.
    #[error("{address} is {what} ({range}) and is not dialled; `--allow-target {range}` would allow it")]
    Special {
        /// The address.
        address: IpAddr,
        /// The range it lies in.
        range: IpNet,
        /// What the range is for.
        what: &'static str,
    },
    /// It lies in a range that was denied.
    #[error("{address} is not dialled because `--deny-target {range}` denies it")]
    Denied {
        /// The address.
        address: IpAddr,
        /// The range that was denied.
        range: IpNet,
    },
}

impl Refused {
    /// The address that was refused.
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Special { address, .. } | Self::Denied { address, .. } => *address,
        }
    }
}

const LOOPBACK_V4: Ipv4Net = v4([127, 0, 0, 0], 8);
const LOOPBACK_V6: Ipv6Net = v6([0, 0, 0, 0, 0, 0, 0, 1], 128);

/// From the IANA special-purpose registries, plus addresses where clouds keep credentials. The first match names it.
const SPECIAL_V4: [(Ipv4Net, &str); 20] = [
    (v4([169, 254, 169, 254], 32), "a cloud's metadata service"),
    (v4([100, 100, 100, 200], 32), "a cloud's metadata service"),
    (v4([192, 0, 0, 192], 32), "a cloud's metadata service"),
    (v4([168, 63, 129, 16], 32), "a cloud's metadata service"),
    (v4([0, 0, 0, 0], 8), "this network"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "shared by a carrier"),
    (LOOPBACK_V4, "loopback"),
    (v4([169, 254, 0, 0], 16), "link-local"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "reserved for protocols"),
    (v4([192, 0, 2, 0], 24), "for documentation"),
    (v4([192, 88, 99, 0], 24), "a 6to4 relay"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([198, 18, 0, 0], 15), "for benchmarks"),
    (v4([198, 51, 100, 0], 24), "for documentation"),
    (v4([203, 0, 113, 0], 24), "for documentation"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([255, 255, 255, 255], 32), "broadcast"),
    (v4([240, 0, 0, 0], 4), "reserved"),
];

/// The ranges that carry an IPv4 address are refused whole: where they lead depends on the network, not on the address.
const SPECIAL_V6: [(Ipv6Net, &str); 22] = [
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), "a cloud's metadata service"),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), "a cloud's metadata service"),
    (v6([0; 8], 128), "unspecified"),
    (LOOPBACK_V6, "loopback"),
    (v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), "an IPv4-mapped address"),
    (v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96), "an IPv4-translated address"),
    (v6([0; 8], 96), "an IPv4-compatible address"),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), "NAT64"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "NAT64"),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discarded"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo"),
    (v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28), "an ORCHID"),
    (v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28), "an ORCHID"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "reserved for protocols"),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "for documentation"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "for documentation"),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), "for segment routing"),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "private"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];

/// The only part of IPv6 that is given out to the public; the rest is refused, known or not.
const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

fn special(address: IpAddr) -> Option<(IpNet, &'static str)> {
    match address {
        IpAddr::V4(address) => {
            let found = SPECIAL_V4.iter().find(|(range, _)| range.contains(&address));
            found.map(|(range, what)| (IpNet::V4(*range), *what))
        }
        IpAddr::V6(address) => {
            let found = SPECIAL_V6.iter().find(|(range, _)| range.contains(&address));
            let found = found.map(|(range, what)| (IpNet::V6(*range), *what));
            found.or_else(|| {
                let outside = !GLOBAL_UNICAST.contains(&address);
                outside.then(|| (IpNet::from(IpAddr::V6(address)), "not given out to the public"))
            })
        }
    }
}

/// The IPv4 address that an IPv6 address leads to, for the forms that carry one.
fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let [a, b, c, d, e, f, g, h] = address.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0 | 0xffff) | (0, 0, 0, 0, 0xffff, 0) | (0x64, 0xff9b, ..) => Some(joined(g, h)),
        (0x2002, ..) => Some(joined(b, c)),
        _ => None,
    }
}

const fn v4(octets: [u8; 4], length: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(segments: [u16; 8], length: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), length)
}
