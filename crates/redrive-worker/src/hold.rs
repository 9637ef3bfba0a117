//! The leases that this worker holds, from the claim until the settlement is written, and how to abort under them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redrive_core::Lease;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Every lease held, also of attempts that have ended and are not settled yet: those must be renewed too.
#[derive(Default)]
pub(crate) struct Held {
    flights: Mutex<BTreeMap<Lease, Arc<Flight>>>,
    /// Told when a job with a lease of its own is added: the heart may have to beat faster.
    hurry: Notify,
}

impl Held {
    /// Adds a batch under one lock.
    pub(crate) fn add(&self, batch: impl IntoIterator<Item = (Lease, Arc<Flight>)>) {
        let mut hurry = false;
        lock(&self.flights).extend(batch.into_iter().inspect(|(_, flight)| hurry |= flight.lease.is_some()));
        if hurry {
            self.hurry.notify_one();
        }
    }

    /// Returns when a job with a lease of its own has been added.
    pub(crate) async fn hurried(&self) {
        self.hurry.notified().await;
    }

    /// The shortest lease that a job has of its own.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        lock(&self.flights).values().filter_map(|flight| flight.lease).min()
    }

    /// Removes a batch under one lock.
    pub(crate) fn remove(&self, batch: impl IntoIterator<Item = Lease>) {
        let mut flights = lock(&self.flights);
        for lease in batch {
            flights.remove(&lease);
        }
    }

    /// The leases, in their order, by how long they last; none is as long as the worker's.
    pub(crate) fn leases(&self) -> BTreeMap<Option<Duration>, Vec<Lease>> {
        let mut leases = BTreeMap::<_, Vec<Lease>>::new();
        for (lease, flight) in &*lock(&self.flights) {
            leases.entry(flight.lease).or_default().push(*lease);
        }
        leases
    }

    /// Aborts the attempt under `lease`; says whether there was one to abort.
    pub(crate) fn abort(&self, lease: Lease, abort: Abort) -> bool {
        let flight = lock(&self.flights).get(&lease).cloned();
        flight.is_some_and(|flight| flight.abort(abort))
    }

    /// Aborts every attempt that still runs; says how many.
    pub(crate) fn abort_all(&self, abort: Abort) -> usize {
        let flights: Vec<_> = lock(&self.flights).values().cloned().collect();
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

    /// Waits for an abort.
    pub(crate) async fn aborted(&self) -> Abort {
        self.stop.cancelled().await;
        // Without a cause the attempt itself is being dropped, and settles nothing.
        self.abort.get().copied().unwrap_or(Abort::LeaseLost)
    }

    fn abort(&self, abort: Abort) -> bool {
        if self.ended.load(Ordering::Acquire) || self.abort.set(abort).is_err() {
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
