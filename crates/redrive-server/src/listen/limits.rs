//! The limits of the listener: how many connections, how long each may wait, how much request bodies may hold.

use std::time::Duration;

/// Connections at once, however many files the process may open.
pub const CONNECTIONS_MAX: usize = 10_000;
/// The share of [`CONNECTIONS_MAX`] that one peer may have: a quarter.
const PEERS_TO_FILL: usize = 4;
/// The share of the open files that connections may have: a half. The rest is for the store, bodies and deliveries.
const FILES_PER_CONNECTION: u64 = 2;
/// Connections at least, however few files the process may open.
const CONNECTIONS_MIN: usize = 16;

/// The limits of the listener. They keep silent, slow and greedy clients from shutting out the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenLimits {
    /// Connections at once. Beyond them only health and metrics are answered.
    pub connections_max: usize,
    /// Connections at once from one peer: an IPv4 address or an IPv6 network of 64 bits. Beyond them only health and
    /// metrics are answered.
    pub connections_per_peer_max: usize,
    /// Connections at once beyond the other limits, for health and metrics.
    pub reserved_connections_max: usize,
    /// The time from accept to the end of the first request head.
    pub head_timeout: Duration,
    /// The same for a reserved connection.
    pub reserved_head_timeout: Duration,
    /// The time from the end of one response to the end of the next request head.
    pub idle_timeout: Duration,
    /// The time for which a client may leave a response unread.
    pub write_timeout: Duration,
    /// The time for which a client may send nothing of a request body that it has begun.
    pub body_timeout: Duration,
    /// The bytes a second at which a request body must arrive, averaged over `body_timeout`.
    pub body_bytes_per_second_min: u32,
    /// The bytes of request bodies that all requests together may hold in memory.
    pub buffered_bytes_max: usize,
}

impl Default for ListenLimits {
    /// 10,000 connections, 2,500 from one peer, 64 reserved; 10 s for a head (2 s where reserved), 75 s idle, 30 s unread;
    /// bodies of at least 16 KiB/s with pauses of up to 20 s, 256 MiB of them in memory.
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            connections_per_peer_max: CONNECTIONS_MAX / PEERS_TO_FILL,
            reserved_connections_max: 64,
            head_timeout: Duration::from_secs(10),
            reserved_head_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(20),
            body_bytes_per_second_min: 16 * 1024,
            buffered_bytes_max: 256 * 1024 * 1024,
        }
    }
}

impl ListenLimits {
    /// The defaults for a process that may have `files` open: at most half of them are connections.
    pub fn for_open_files(files: u64) -> Self {
        let half = usize::try_from(files / FILES_PER_CONNECTION).unwrap_or(usize::MAX);
        Self::default().with_connections(half.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX))
    }

    /// The same with another limit of connections, of which one peer may have a quarter.
    pub fn with_connections(self, connections: usize) -> Self {
        let per_peer = (connections / PEERS_TO_FILL).max(1);
        Self { connections_max: connections, connections_per_peer_max: per_peer, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_half_of_the_files_to_the_rest() {
        for (files, connections, per_peer) in
            [(1024, 512, 128), (65_536, 10_000, 2_500), (u64::MAX, 10_000, 2_500), (0, 16, 4)]
        {
            let limits = ListenLimits::for_open_files(files);
            assert_eq!((limits.connections_max, limits.connections_per_peer_max), (connections, per_peer));
        }
    }
}
