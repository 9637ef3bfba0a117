//! The leases that this worker holds, from the claim until the settlement is written, and how to abort under them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use redrive_core::Lease;
use tokio_util::sync::CancellationToken;

/// Every lease held, also of attempts that have ended and are not settled yet: those must be renewed too.
#[derive(Default)]
pub(crate) struct Held {
    flights: Mutex<BTreeMap<Lease, Arc<Flight>>>,
}

impl Held {
    /// Adds a batch under one lock.
    pub(crate) fn add(&self, batch: impl IntoIterator<Item = (Lease, Arc<Flight>)>) {
        lock(&self.flights).extend(batch);
    }

    /// Removes a batch under one lock.
    pub(crate) fn remove(&self, batch: impl IntoIterator<Item = Lease>) {
        let mut flights = lock(&self.flights);
        for lease in batch {
            flights.remove(&lease);
        }
    }

    /// The leases, in their order.
    pub(crate) fn leases(&self) -> Vec<Lease> {
        lock(&self.flights).keys().copied().collect()
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
