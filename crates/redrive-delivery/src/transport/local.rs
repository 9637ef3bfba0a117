//! Failures of this machine, told apart from failures of a target: they cost a task no attempt.

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
    /// The local failure that an error of the system stands for; none if the error may be the target's fault.
    pub fn of(error: &io::Error) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::MFILE => Some(Self::ProcessFiles),
            Errno::NFILE => Some(Self::SystemFiles),
            Errno::NOMEM | Errno::NOBUFS => Some(Self::Memory),
            Errno::NETDOWN => Some(Self::Interface),
            _ => None,
        }
    }

    /// The same of an error and everything behind it.
    pub fn behind(error: &(dyn Error + 'static)) -> Option<Self> {
        let own = error.downcast_ref::<io::Error>().and_then(|error| {
            // An io::Error names the source of what it wraps, but not the wrapped error itself.
            Self::of(error).or_else(|| Self::behind(error.get_ref()?))
        });
        own.or_else(|| Self::behind(error.source()?))
    }

    /// The same of a connection that could not be opened to `address`.
    ///
    /// EADDRNOTAVAIL has two meanings: no local port is free, or this machine has no source address for the target,
    /// such as IPv6 where there is none. Only the first is a problem of the node. Connecting a UDP socket chooses a
    /// source address in the same way, needs no TCP port and sends nothing, so it tells the two apart.
    pub(crate) fn of_connect(error: &io::Error, address: SocketAddr) -> Option<Self> {
        if error.kind() != io::ErrorKind::AddrNotAvailable {
            return Self::of(error);
        }
        has_source_address(address).then_some(Self::Ports)
    }
}

/// Whether this machine has an address from which it could call `address`. Nothing is sent.
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
    fn what_the_system_lacks_is_local_and_what_the_target_does_is_not() {
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
            assert_eq!(LocalFailure::of(&os(errno)), failure, "{errno}");
        }
    }

    #[test]
    fn a_local_failure_is_found_behind_other_errors() {
        let wrapped = io::Error::other(io::Error::other(os(Errno::MFILE)));
        assert_eq!(LocalFailure::behind(&wrapped), Some(LocalFailure::ProcessFiles));
        assert_eq!(LocalFailure::behind(&io::Error::other(os(Errno::CONNREFUSED))), None);
        assert_eq!(LocalFailure::behind(&io::Error::other("plain text")), None);
    }

    #[test]
    fn no_free_port_is_told_from_no_source_address() {
        let here: SocketAddr = ([127, 0, 0, 1], 9).into();
        assert_eq!(LocalFailure::of_connect(&os(Errno::ADDRNOTAVAIL), here), Some(LocalFailure::Ports));
        // On a machine without IPv6 the same error only says that this target cannot be called from here.
        let far: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
        let expected = has_source_address(far).then_some(LocalFailure::Ports);
        assert_eq!(LocalFailure::of_connect(&os(Errno::ADDRNOTAVAIL), far), expected);
        assert_eq!(LocalFailure::of_connect(&os(Errno::CONNREFUSED), here), None);
    }
}
