//! Which addresses may be dialled, so that a task cannot call into the network of redrive (SSRF).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, PoisonError, RwLock};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Decides by address, after DNS: first by the denied ranges, then by the allowed ranges, then by the table of special ranges.
///
/// Ranges are compared with the address that the system dials, in whatever notation it is written: `::ffff:10.0.0.1` is 10.0.0.1, and
/// `0.0.0.0` and `::` are this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
    loopback: LoopbackAccess,
}

/// Whether targets on this machine are allowed without an allowed range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopbackAccess {
    /// Loopback addresses are refused like other special addresses.
    Refused,
    /// Loopback addresses may be dialled.
    Allowed,
}

impl Guard {
    /// Allows addresses of the public internet only.
    pub fn public_only() -> Self {
        Self { allow: Vec::new(), deny: Vec::new(), loopback: LoopbackAccess::Refused }
    }

    /// Also allows loopback addresses; for a service that only this machine can call.
    pub fn open_to_loopback() -> Self {
        Self::public_only().with_loopback(LoopbackAccess::Allowed)
    }

    /// With this access to loopback addresses.
    pub fn with_loopback(self, loopback: LoopbackAccess) -> Self {
        Self { loopback, ..self }
    }

    /// The access to loopback addresses.
    pub fn loopback(&self) -> LoopbackAccess {
        self.loopback
    }

    /// Allows a range that the table refuses.
    pub fn allow(mut self, range: impl Into<IpNet>) -> Self {
        self.allow.push(without_mapping(range.into()));
        self
    }

    /// Denies a range, even if something else allows it.
    pub fn deny(mut self, range: impl Into<IpNet>) -> Self {
        self.deny.push(without_mapping(range.into()));
        self
    }

    /// Whether `address` may be dialled.
    pub fn check(&self, address: IpAddr) -> Result<(), GuardError> {
        if let Some(range) = self.denied(address) {
            return Err(GuardError::Denied { address, range });
        }
        if self.allows(dialled(address)) {
            return Ok(());
        }
        match special(address).or_else(|| special(dialled(address))) {
            Some((range, what)) => Err(GuardError::Special { address, range, what }),
            None => Ok(()),
        }
    }

    /// The range that denies an address. Each range is compared with the address as written, the address as dialled, and the IPv4
    /// addresses that the address contains, because its packets would end up there.
    fn denied(&self, address: IpAddr) -> Option<IpNet> {
        let carried = embedded(address).into_iter().flatten().map(|inner| dialled(IpAddr::V4(inner)));
        let forms: Vec<IpAddr> = [address, dialled(address)].into_iter().chain(carried).collect();
        self.deny.iter().find(|range| forms.iter().any(|form| range.contains(form))).copied()
    }

    /// Whether a range allows an address that is about to be dialled. If the address contains an IPv4 address, that one must be allowed
    /// too: allowing NAT64 does not allow this machine behind it.
    fn allows(&self, dialled: IpAddr) -> bool {
        let open = self.loopback == LoopbackAccess::Allowed && dialled.is_loopback();
        let listed = open || self.allow.iter().any(|range| range.contains(&dialled));
        let [carried, _] = embedded(dialled);
        listed && carried.is_none_or(|inner| self.check(IpAddr::V4(inner)).is_ok())
    }
}

/// The current guard, shared by all dialers.
#[derive(Debug)]
pub(crate) struct SharedGuard(RwLock<Arc<Guard>>);

impl SharedGuard {
    pub(crate) fn new(guard: Guard) -> Self {
        Self(RwLock::new(Arc::new(guard)))
    }

    pub(crate) fn current(&self) -> Arc<Guard> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the guard. Returns false if the guard is the same.
    pub(crate) fn replace(&self, guard: Guard) -> bool {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let changed = **current != guard;
        *current = Arc::new(guard);
        changed
    }
}

/// The address that the system dials for `address`. An IPv4-mapped address is dialled over IPv4, and an unspecified address is this
/// machine.
pub fn dialled(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        canonical => canonical,
    }
}

/// Converts a range of IPv4-mapped addresses to IPv4. The range of all of them stays: it stands for the notation, not for every IPv4
/// address.
fn without_mapping(range: IpNet) -> IpNet {
    let IpNet::V6(mapped) = range else { return range };
    match (mapped.network().to_ipv4_mapped(), mapped.prefix_len().checked_sub(96)) {
        (Some(network), Some(length @ 1..)) => Ipv4Net::new(network, length).map_or(range, IpNet::V4),
        _ => range,
    }
}

/// Why an address may not be dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// It is in a special range, not in the public internet.
    #[error("{address} is {what} ({range}) and is not dialled; `--allow-target {range}` would allow it")]
    Special {
        /// The address.
        address: IpAddr,
        /// The range.
        range: IpNet,
        /// The purpose of the range.
        what: &'static str,
    },
    /// It is in a denied range.
    #[error("{address} is not dialled because `--deny-target {range}` denies it")]
    Denied {
        /// The address.
        address: IpAddr,
        /// The range.
        range: IpNet,
    },
}

impl GuardError {
    /// The address that was refused.
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Special { address, .. } | Self::Denied { address, .. } => *address,
        }
    }
}

const LOOPBACK_V4: Ipv4Net = v4([127, 0, 0, 0], 8);
const LOOPBACK_V6: Ipv6Net = v6([0, 0, 0, 0, 0, 0, 0, 1], 128);

/// From the special-purpose registries of IANA, with the addresses of cloud metadata services. The first match counts.
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

/// Ranges whose addresses contain an IPv4 address are refused as a whole: the network decides where their packets go.
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

/// The only part of IPv6 that is assigned for public use. Everything else is refused.
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
                outside.then(|| (IpNet::from(IpAddr::V6(address)), "not assigned for public use"))
            })
        }
    }
}

/// The IPv4 addresses that an IPv6 address contains. The first is the destination of packets. The second is a server that they pass, or the
/// destination if the network reads the notation differently.
fn embedded(address: IpAddr) -> [Option<Ipv4Addr>; 2] {
    let IpAddr::V6(address) = address else { return [None, None] };
    let [a, b, c, d, e, f, g, h] = address.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b, c, d, e, f) {
        // `::` and `::1` contain no IPv4 address.
        (0, 0, 0, 0, 0, 0) if g == 0 && h <= 1 => [None, None],
        (0, 0, 0, 0, 0, 0 | 0xffff) | (0, 0, 0, 0, 0xffff, 0) | (0x64, 0xff9b, 0, ..) => {
            [Some(joined(g, h)), None]
        }
        // RFC 6052: the address is split around a zero byte after a prefix of 48 bits. Networks also use 96 bits.
        (0x64, 0xff9b, 1, ..) => [Some(joined(d, (e << 8) | (f >> 8))), Some(joined(g, h))],
        (0x2002, ..) => [Some(joined(b, c)), None],
        // Teredo: the inverted address of the client, and the address of its server.
        (0x2001, 0, ..) => [Some(joined(!g, !h)), Some(joined(c, d))],
        // ISATAP.
        (.., 0 | 0x200, 0x5efe) => [Some(joined(g, h)), None],
        _ => [None, None],
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
