//! Failures of this machine, as opposed to failures of a target. A task is not charged an attempt for them.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::io::Errno;

/// A problem of this node that kept a request from being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LocalFailure {
    /// EMFILE.
    #[error(
        "this process has no file descriptors left (EMFILE): raise its limit, for example with ulimit -n"
    )]
    ProcessFiles,
    /// ENFILE.
    #[error("the system has no file descriptors left (ENFILE): raise fs.file-max")]
    SystemFiles,
    /// ENOMEM or ENOBUFS.
    #[error("the system has no memory left for connections (ENOMEM or ENOBUFS)")]
    Memory,
    /// EADDRNOTAVAIL, although there is a source address for the target.
    #[error("no local port is free (EADDRNOTAVAIL): widen net.ipv4.ip_local_port_range")]
    Ports,
    /// ENETDOWN.
    #[error("the network interface is down (ENETDOWN)")]
    Interface,
    /// No configured name server answers.
    #[error("no name server answers: check /etc/resolv.conf and the network")]
    Resolver,
}

impl LocalFailure {
    /// The local failure that an error of the system means; `None` if the target may have caused the error.
    pub fn from_io(error: &io::Error) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::MFILE => Some(Self::ProcessFiles),
            Errno::NFILE => Some(Self::SystemFiles),
            Errno::NOMEM | Errno::NOBUFS => Some(Self::Memory),
            Errno::NETDOWN => Some(Self::Interface),
            _ => None,
        }
    }

    /// The local failure among an error and its causes.
    pub fn find_in(error: &(dyn Error + 'static)) -> Option<Self> {
        let own = error.downcast_ref::<io::Error>().and_then(|error| {
            // The source of an io::Error is the source of the error that it wraps, so the wrapped error is checked here.
            Self::from_io(error).or_else(|| Self::find_in(error.get_ref()?))
        });
        own.or_else(|| Self::find_in(error.source()?))
    }

    /// The local failure that an error of connecting to `address` means.
    ///
    /// EADDRNOTAVAIL has two meanings: no local port is free, or this machine has no source address for the target, such as no IPv6
    /// address. Only the first is a problem of the node. Connecting a UDP socket chooses a source address in the same way, but needs
    /// no TCP port and sends nothing, so it shows which of the two it is.
    pub(crate) fn from_connect(error: &io::Error, address: SocketAddr) -> Option<Self> {
        if error.kind() != io::ErrorKind::AddrNotAvailable {
            return Self::from_io(error);
        }
        has_source_address(address).then_some(Self::Ports)
    }
}

/// Whether this machine has a source address for calls to `address`. Sends nothing.
pub(crate) fn has_source_address(address: SocketAddr) -> bool {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    UdpSocket::bind(any).and_then(|socket| socket.connect(address)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn missing_system_resources_are_local_failures_and_errors_of_the_target_are_not() {
        for (errno, failure) in [
            (Errno::MFILE, Some(LocalFailure::ProcessFiles)),
            (Errno::NFILE, Some(LocalFailure::SystemFiles)),
            (Errno::NOMEM, Some(LocalFailure::Memory)),
            (Errno::NOBUFS, Some(LocalFailure::Memory)),
            (Errno::NETDOWN, Some(LocalFailure::Interface)),
            (Errno::CONNREFUSED, None),
            (Errno::CONNRESET, None),
            (Errno::HOSTUNREACH, None),
            (Errno::NETUNREACH, None),
            (Errno::TIMEDOUT, None),
            (Errno::ADDRNOTAVAIL, None),
        ] {
            assert_eq!(LocalFailure::from_io(&os(errno)), failure, "{errno}");
        }
    }

    #[test]
    fn a_local_failure_is_found_inside_other_errors() {
        let wrapped = io::Error::other(io::Error::other(os(Errno::MFILE)));
        assert_eq!(LocalFailure::find_in(&wrapped), Some(LocalFailure::ProcessFiles));
        assert_eq!(LocalFailure::find_in(&io::Error::other(os(Errno::CONNREFUSED))), None);
        assert_eq!(LocalFailure::find_in(&io::Error::other("plain text")), None);
    }

    #[test]
    fn a_missing_port_is_distinguished_from_a_missing_source_address() {
        let here: SocketAddr = ([127, 0, 0, 1], 9).into();
        assert_eq!(LocalFailure::from_connect(&os(Errno::ADDRNOTAVAIL), here), Some(LocalFailure::Ports));
        // On a machine without IPv6 the same error means only that this target cannot be called from here.
        let far: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
        let expected = has_source_address(far).then_some(LocalFailure::Ports);
        assert_eq!(LocalFailure::from_connect(&os(Errno::ADDRNOTAVAIL), far), expected);
        assert_eq!(LocalFailure::from_connect(&os(Errno::CONNREFUSED), here), None);
    }
}
