//! Limits the number of connections, in total and per peer, and reserves a few more for health checks and metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::limits::ListenLimits;
use crate::peer::PeerGroup;

/// The minimum interval between warnings about too many connections.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Counts the open connections.
pub(super) struct Admission {
    connections_max: usize,
    per_peer_max: usize,
    reserved_max: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    regular: usize,
    regular_by_peer: HashMap<PeerGroup, usize>,
    /// The reserved connections by number, the oldest first.
    reserved: BTreeMap<u64, ReservedConnection>,
    next_number: u64,
    warned_at: Option<Instant>,
}

struct ReservedConnection {
    peer: PeerGroup,
    evicted: CancellationToken,
}

/// The pool of connections that a connection belongs to. It decides which requests are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pool {
    /// All requests.
    Regular,
    /// Health checks and metrics.
    Reserved,
}

/// Counts one connection as open until the permit is dropped.
pub(super) struct ConnectionPermit {
    admission: Arc<Admission>,
    peer: PeerGroup,
    number: u64,
    /// The pool of the connection.
    pub(super) pool: Pool,
    /// Cancelled when the connection must make room for a newer one.
    pub(super) evicted: CancellationToken,
}

impl Admission {
    pub(super) fn new(limits: &ListenLimits) -> Arc<Self> {
        Arc::new(Self {
            connections_max: limits.connections_max,
            per_peer_max: limits.connections_per_peer_max,
            reserved_max: limits.reserved_connections_max.max(1),
            open: Mutex::default(),
        })
    }

    /// Admits a new connection. This always succeeds: if the reserve is full too, one of its connections is closed.
    pub(super) fn admit(self: &Arc<Self>, peer: PeerGroup) -> ConnectionPermit {
        let mut open = self.lock();
        let number = open.next_number;
        open.next_number += 1;
        let evicted = CancellationToken::new();
        let of_peer = open.regular_by_peer.get(&peer).copied().unwrap_or(0);
        let pool = if open.regular < self.connections_max && of_peer < self.per_peer_max {
            open.regular += 1;
            *open.regular_by_peer.entry(peer).or_default() += 1;
            Pool::Regular
        } else {
            self.warn(&mut open, peer, of_peer);
            if open.reserved.len() >= self.reserved_max {
                open.evict_one();
            }
            open.reserved.insert(number, ReservedConnection { peer, evicted: evicted.clone() });
            Pool::Reserved
        };
        ConnectionPermit { admission: self.clone(), peer, number, pool, evicted }
    }

    fn warn(&self, open: &mut OpenConnections, peer: PeerGroup, of_peer: usize) {
        let now = Instant::now();
        if open.warned_at.is_some_and(|at| now - at < WARN_INTERVAL) {
            return;
        }
        open.warned_at = Some(now);
        tracing::warn!(
            %peer,
            of_peer,
            per_peer_max = self.per_peer_max,
            connections = open.regular,
            connections_max = self.connections_max,
            "too many connections: new ones get answers only for health checks and metrics"
        );
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Closes the oldest connection of the peer that has the most, so that no peer can displace the others.
    fn evict_one(&mut self) {
        let mut by_peer: HashMap<PeerGroup, usize> = HashMap::new();
        for connection in self.reserved.values() {
            *by_peer.entry(connection.peer).or_default() += 1;
        }
        let most = by_peer.values().copied().max();
        let oldest = self.reserved.iter().find(|(_, it)| by_peer.get(&it.peer).copied() == most);
        if let Some(number) = oldest.map(|(number, _)| *number)
            && let Some(connection) = self.reserved.remove(&number)
        {
            connection.evicted.cancel();
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.admission.lock();
        match self.pool {
            Pool::Reserved => {
                open.reserved.remove(&self.number);
            }
            Pool::Regular => {
                open.regular -= 1;
                if let Some(count) = open.regular_by_peer.get_mut(&self.peer) {
                    *count -= 1;
                    if *count == 0 {
                        open.regular_by_peer.remove(&self.peer);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_wire::Peer;

    fn admission() -> Arc<Admission> {
        Admission::new(&ListenLimits {
            connections_max: 3,
            connections_per_peer_max: 2,
            reserved_connections_max: 3,
            ..ListenLimits::default()
        })
    }

    fn peer(number: u8) -> PeerGroup {
        PeerGroup::of(Peer(([192, 0, 2, number], 1).into()))
    }

    #[test]
    fn connections_are_limited_per_peer_and_in_total() {
        let admission = admission();
        let mut permits: Vec<ConnectionPermit> =
            [1, 1, 1, 2, 2].map(|number| admission.admit(peer(number))).into();
        let pools: Vec<Pool> = permits.iter().map(|permit| permit.pool).collect();
        let (regular, reserved) = (Pool::Regular, Pool::Reserved);
        assert_eq!(pools, [regular, regular, reserved, regular, reserved]);
        permits.remove(0);
        assert_eq!(admission.admit(peer(1)).pool, regular, "a closed connection makes room");
        permits.clear();
        let open = admission.lock();
        assert_eq!((open.regular, open.regular_by_peer.len(), open.reserved.len()), (0, 0, 0));
    }

    #[test]
    fn a_full_reserve_closes_the_oldest_connection_of_the_peer_with_the_most() {
        let admission = admission();
        let _regular: Vec<ConnectionPermit> = [1, 1, 9].map(|number| admission.admit(peer(number))).into();
        let health = admission.admit(peer(2));
        let flood: Vec<ConnectionPermit> = (0..20).map(|_| admission.admit(peer(1))).collect();
        let alive = flood.iter().filter(|permit| !permit.evicted.is_cancelled()).count();
        assert_eq!(alive, 2);
        assert!(!flood[19].evicted.is_cancelled(), "the newest connection stays open");
        assert!(!health.evicted.is_cancelled(), "a flood evicts only its own connections");
    }
}
