//! The network address of a caller, as it is passed on within the process.

use std::net::SocketAddr;

/// The address at the other end of a connection. The listener puts it into the extensions of every request.
///
/// It is the address of the socket: forwarding headers can be forged and are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);
