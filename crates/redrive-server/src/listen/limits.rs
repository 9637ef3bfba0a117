//! The limits of the listener: connections, timeouts, and memory for request bodies.

use std::time::Duration;

/// The maximum number of connections, however many files the process may open.
pub const CONNECTIONS_MAX: usize = 10_000;
/// One peer may have a quarter of all connections.
const PEERS_TO_FILL: usize = 4;
/// Connections may use half of the open files. The rest is for the store, bodies and deliveries.
const FILES_PER_CONNECTION: u64 = 2;
/// The minimum limit of connections, however few files the process may open.
const CONNECTIONS_MIN: usize = 16;

/// The limits of the listener. They keep idle, slow and greedy clients from blocking the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenLimits {
    /// Concurrent connections. Further ones get answers only for health checks and metrics.
    pub connections_max: usize,
    /// Concurrent connections from one peer: an IPv4 address or an IPv6 /64 network. Further ones get answers only for health
    /// checks and metrics.
    pub connections_per_peer_max: usize,
    /// Concurrent connections beyond the other limits, for health checks and metrics.
    pub reserved_connections_max: usize,
    /// The time from accept to the end of the first request head.
    pub head_timeout: Duration,
    /// The same for a reserved connection.
    pub reserved_head_timeout: Duration,
    /// The time from the end of one response to the end of the next request head.
    pub idle_timeout: Duration,
    /// The longest time for which a client may leave a response unread.
    pub write_timeout: Duration,
    /// The longest pause of a client while it sends a request body.
    pub body_timeout: Duration,
    /// The minimum rate of a request body in bytes per second, averaged over `body_timeout`.
    pub body_bytes_per_second_min: u32,
    /// The memory for the request bodies of all requests together.
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

    /// Sets the limit of connections. One peer may have a quarter of them.
    pub fn with_connections(self, connections: usize) -> Self {
        let per_peer = (connections / PEERS_TO_FILL).max(1);
        Self { connections_max: connections, connections_per_peer_max: per_peer, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_use_at_most_half_of_the_open_files() {
        for (files, connections, per_peer) in
            [(1024, 512, 128), (65_536, 10_000, 2_500), (u64::MAX, 10_000, 2_500), (0, 16, 4)]
        {
            let limits = ListenLimits::for_open_files(files);
            assert_eq!((limits.connections_max, limits.connections_per_peer_max), (connections, per_peer));
        }
    }
}
