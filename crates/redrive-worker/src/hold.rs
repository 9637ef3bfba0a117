//! The leases that this worker holds, from the claim until the settlement is written: when each is to be renewed, and how to
//! abort under it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redrive_core::Lease;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Leases of one length that are due up to this part of their interval later are renewed in the same call.
const RENEWED_EARLY: u32 = 4;

/// Every lease held, also of attempts that have ended and are not settled yet: those must be renewed too.
pub(crate) struct Held {
    /// How long a lease lasts that is not the job's own.
    lease: Duration,
    /// The longest time from one renewal to the next.
    heartbeat: Duration,
    table: Mutex<Table>,
    /// Told when a lease must be renewed before the heartbeat is going to look.
    hurry: Notify,
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<Lease, HeldLease>,
    /// When the heartbeat is going to look again.
    next_look: Option<Instant>,
}

struct HeldLease {
    flight: Arc<Flight>,
    renew_at: Instant,
}

impl Held {
    /// None yet, for a worker with these settings.
    pub(crate) fn new(lease: Duration, heartbeat: Duration) -> Self {
        Self { lease, heartbeat, table: Mutex::default(), hurry: Notify::new() }
    }

    /// Adds a batch under one lock.
    pub(crate) fn add(&self, batch: impl IntoIterator<Item = (Lease, Arc<Flight>)>) {
        let (now, mut hurry) = (Instant::now(), false);
        let mut table = lock(&self.table);
        for (lease, flight) in batch {
            let renew_at = now + self.interval(self.length(&flight));
            hurry |= table.next_look.is_some_and(|look| renew_at < look);
            table.entries.insert(lease, HeldLease { flight, renew_at });
        }
        drop(table);
        if hurry {
            self.hurry.notify_one();
        }
    }

    /// Removes a batch under one lock.
    pub(crate) fn remove(&self, batch: impl IntoIterator<Item = Lease>) {
        let mut table = lock(&self.table);
        for lease in batch {
            table.entries.remove(&lease);
        }
    }

    /// Lets go of every lease whose attempt has ended: the worker is gone, and nobody will settle its result.
    pub(crate) fn abandon_results(&self) {
        lock(&self.table).entries.retain(|_, held| !held.flight.has_ended());
    }

    /// Every lease, in their order.
    pub(crate) fn leases(&self) -> Vec<Lease> {
        lock(&self.table).entries.keys().copied().collect()
    }

    /// Returns when a lease must be renewed before the time that [`Held::next_look`] said.
    pub(crate) async fn hurried(&self) {
        self.hurry.notified().await;
    }

    /// When to look for leases to renew: at the first that is due, and never later than a heartbeat from now.
    pub(crate) fn next_look(&self) -> Instant {
        let mut table = lock(&self.table);
        let latest = Instant::now() + self.heartbeat;
        let look =
            table.entries.values().map(|held| held.renew_at).min().map_or(latest, |due| due.min(latest));
        table.next_look = Some(look);
        look
    }

    /// The leases that are due, by how long they last, the shortest first. Those that are almost due come along with others of
    /// their length, so that leases taken one after the other are renewed together.
    pub(crate) fn due(&self) -> BTreeMap<Duration, Vec<Lease>> {
        let now = Instant::now();
        let table = lock(&self.table);
        let mut due = BTreeMap::<Duration, Vec<Lease>>::new();
        for held in table.entries.values().filter(|held| held.renew_at <= now) {
            due.entry(self.length(&held.flight)).or_default();
        }
        for (lease, held) in &table.entries {
            let length = self.length(&held.flight);
            if let Some(leases) = due.get_mut(&length)
                && held.renew_at <= now + self.interval(length) / RENEWED_EARLY
            {
                leases.push(*lease);
            }
        }
        due
    }

    /// The leases of all attempts that still run, by how long they last.
    pub(crate) fn running(&self) -> BTreeMap<Duration, Vec<Lease>> {
        let mut running = BTreeMap::<Duration, Vec<Lease>>::new();
        for (lease, held) in lock(&self.table).entries.iter().filter(|(_, held)| !held.flight.has_ended()) {
            running.entry(self.length(&held.flight)).or_default().push(*lease);
        }
        running
    }

    /// Leases that last for `length` were renewed by a call that was sent at `sent`.
    pub(crate) fn renewed(&self, leases: &[Lease], length: Duration, sent: Instant) {
        self.renew_at(leases, sent + self.interval(length));
    }

    /// Leases could not be renewed: tries again after `wait`, or sooner where that is when they would be due.
    pub(crate) fn not_renewed(&self, leases: &[Lease], length: Duration, wait: Duration) {
        self.renew_at(leases, Instant::now() + wait.min(self.interval(length)));
    }

    fn renew_at(&self, leases: &[Lease], at: Instant) {
        let mut table = lock(&self.table);
        for lease in leases {
            if let Some(held) = table.entries.get_mut(lease) {
                held.renew_at = at;
            }
        }
    }

    /// From one renewal to the next. A long lease is renewed at every heartbeat too, because that brings a cancel.
    fn interval(&self, length: Duration) -> Duration {
        if length == self.lease { self.heartbeat } else { self.heartbeat.min(length / 3) }
    }

    fn length(&self, flight: &Flight) -> Duration {
        flight.lease.unwrap_or(self.lease)
    }

    /// Aborts the attempt under `lease`; says whether there was one to abort.
    pub(crate) fn abort(&self, lease: Lease, abort: Abort) -> bool {
        let flight = lock(&self.table).entries.get(&lease).map(|held| held.flight.clone());
        flight.is_some_and(|flight| flight.abort(abort))
    }

    /// Aborts every attempt that still runs; says how many.
    pub(crate) fn abort_all(&self, abort: Abort) -> usize {
        let flights: Vec<_> = lock(&self.table).entries.values().map(|held| held.flight.clone()).collect();
        flights.iter().filter(|flight| flight.abort(abort)).count()
    }
}

/// One attempt as those see it who may abort it.
#[derive(Default)]
pub(crate) struct Flight {
    /// Seen by the handler too.
    pub(crate) stop: CancellationToken,
    lease: Option<Duration>,
    abort: OnceLock<Abort>,
    ended: AtomicBool,
}

/// Why an attempt is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abort {
    /// Someone asked for the job's end.
    CancelRequested,
    /// Someone else holds the lease.
    LeaseLost,
    /// The worker shuts down.
    Released,
}

impl Flight {
    /// One under a lease of the job's own length, or the worker's.
    pub(crate) fn new(lease: Option<Duration>) -> Self {
        Self { lease, ..Self::default() }
    }

    /// One under which no handler runs: there is nothing to abort, only a lease to renew.
    pub(crate) fn grounded() -> Arc<Self> {
        let flight = Self::default();
        flight.end();
        Arc::new(flight)
    }

    /// From here on an abort has no effect: the attempt has its outcome.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for an abort.
    pub(crate) async fn aborted(&self) -> Abort {
        self.stop.cancelled().await;
        // Without a cause the attempt itself is being dropped, and settles nothing.
        self.abort.get().copied().unwrap_or(Abort::LeaseLost)
    }

    fn abort(&self, abort: Abort) -> bool {
        if self.has_ended() || self.abort.set(abort).is_err() {
            return false;
        }
        self.stop.cancel();
        true
    }
}

/// Locks `mutex`. No invariant spans a lock here, so that a panic elsewhere spoils nothing.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
