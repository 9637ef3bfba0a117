//! The leases that this worker holds, from the claim until the settlement is written: when each must be renewed, and how to
//! abort the attempt that runs under it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use redrive_core::Lease;
use redrive_core::store::Backend;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::lock;
use crate::handler::AttemptNote;

/// A renewal also includes leases of the same duration that become due within this fraction (1/4) of their renewal interval.
const EARLY_RENEWAL_DIVISOR: u32 = 4;

/// Every lease that the worker holds. Leases of attempts that have ended but are not settled yet are included: they must be
/// renewed too.
pub(crate) struct LeaseTable {
    /// The duration of a lease whose job sets none of its own.
    default_duration: Duration,
    /// The longest time from one renewal to the next.
    heartbeat: Duration,
    state: Mutex<TableState>,
    /// Notified when a new lease must be renewed before the heartbeat wakes up.
    earlier_renewal: Notify,
}

#[derive(Default)]
struct TableState {
    entries: BTreeMap<Lease, LeaseEntry>,
    /// When the heartbeat wakes up next.
    next_wakeup: Option<Instant>,
}

struct LeaseEntry {
    handle: Arc<AttemptHandle>,
    renew_at: Instant,
}

impl LeaseTable {
    /// Creates an empty table for a worker with these settings.
    pub(crate) fn new(default_duration: Duration, heartbeat: Duration) -> Self {
        Self { default_duration, heartbeat, state: Mutex::default(), earlier_renewal: Notify::new() }
    }

    /// Adds a batch of leases under one lock.
    pub(crate) fn add(&self, batch: impl IntoIterator<Item = (Lease, Arc<AttemptHandle>)>) {
        let (now, mut is_earlier) = (Instant::now(), false);
        let mut state = lock(&self.state);
        for (lease, handle) in batch {
            let renew_at = now + self.renewal_interval(self.duration_of(&handle));
            is_earlier |= state.next_wakeup.is_some_and(|wakeup| renew_at < wakeup);
            state.entries.insert(lease, LeaseEntry { handle, renew_at });
        }
        drop(state);
        if is_earlier {
            self.earlier_renewal.notify_one();
        }
    }

    /// Removes a batch of leases under one lock. They are no longer renewed.
    pub(crate) fn remove(&self, batch: impl IntoIterator<Item = Lease>) {
        let mut state = lock(&self.state);
        for lease in batch {
            state.entries.remove(&lease);
        }
    }

    /// Removes every lease whose attempt has ended. For a worker that was dropped: nobody will settle these attempts.
    pub(crate) fn remove_ended(&self) {
        lock(&self.state).entries.retain(|_, entry| !entry.handle.has_ended());
    }

    /// Returns every lease, in order.
    pub(crate) fn leases(&self) -> Vec<Lease> {
        lock(&self.state).entries.keys().copied().collect()
    }

    /// Waits until a lease was added that must be renewed before the time that [`LeaseTable::next_renewal`] returned.
    pub(crate) async fn earlier_renewal(&self) {
        self.earlier_renewal.notified().await;
    }

    /// Returns and records when the heartbeat wakes up next: when the first lease is due, and at most one heartbeat from now.
    pub(crate) fn next_renewal(&self) -> Instant {
        let mut state = lock(&self.state);
        let latest = Instant::now() + self.heartbeat;
        let first_due = state.entries.values().map(|entry| entry.renew_at).min();
        let wakeup = first_due.map_or(latest, |due| due.min(latest));
        state.next_wakeup = Some(wakeup);
        wakeup
    }

    /// Returns the leases that are due for renewal, grouped by duration, the shortest first. Each group includes the leases of
    /// its duration that are almost due, so that leases taken one after the other are renewed together.
    pub(crate) fn due(&self) -> BTreeMap<Duration, Vec<Lease>> {
        let now = Instant::now();
        let state = lock(&self.state);
        let mut due = BTreeMap::<Duration, Vec<Lease>>::new();
        for entry in state.entries.values().filter(|entry| entry.renew_at <= now) {
            due.entry(self.duration_of(&entry.handle)).or_default();
        }
        for (lease, entry) in &state.entries {
            let duration = self.duration_of(&entry.handle);
            if let Some(leases) = due.get_mut(&duration)
                && entry.renew_at <= now + self.renewal_interval(duration) / EARLY_RENEWAL_DIVISOR
            {
                leases.push(*lease);
            }
        }
        due
    }

    /// Returns the leases of all attempts that still run, grouped by duration.
    pub(crate) fn running(&self) -> BTreeMap<Duration, Vec<Lease>> {
        let mut running = BTreeMap::<Duration, Vec<Lease>>::new();
        let state = lock(&self.state);
        for (lease, entry) in state.entries.iter().filter(|(_, entry)| !entry.handle.has_ended()) {
            running.entry(self.duration_of(&entry.handle)).or_default().push(*lease);
        }
        running
    }

    /// Records that leases of this `duration` were renewed by a call that was sent at `sent`.
    pub(crate) fn mark_renewed(&self, leases: &[Lease], duration: Duration, sent: Instant) {
        self.set_renewal(leases, sent + self.renewal_interval(duration));
    }

    /// Schedules leases that could not be renewed for another try, after `wait` or one renewal interval, whichever is shorter.
    pub(crate) fn mark_not_renewed(&self, leases: &[Lease], duration: Duration, wait: Duration) {
        self.set_renewal(leases, Instant::now() + wait.min(self.renewal_interval(duration)));
    }

    fn set_renewal(&self, leases: &[Lease], at: Instant) {
        let mut state = lock(&self.state);
        for lease in leases {
            if let Some(entry) = state.entries.get_mut(lease) {
                entry.renew_at = at;
            }
        }
    }

    /// The time from one renewal to the next. Long leases are renewed at every heartbeat too, because a renewal also reports
    /// whether the job was cancelled.
    fn renewal_interval(&self, duration: Duration) -> Duration {
        if duration == self.default_duration { self.heartbeat } else { self.heartbeat.min(duration / 3) }
    }

    fn duration_of(&self, handle: &AttemptHandle) -> Duration {
        handle.lease_duration.unwrap_or(self.default_duration)
    }

    /// Aborts the attempt that runs under `lease`, if there is one.
    pub(crate) fn abort(&self, lease: Lease, reason: AbortReason) {
        let handle = lock(&self.state).entries.get(&lease).map(|entry| entry.handle.clone());
        if let Some(handle) = handle {
            handle.abort(reason);
        }
    }

    /// Aborts every attempt that still runs, and returns how many were aborted.
    pub(crate) fn abort_all(&self, reason: AbortReason) -> usize {
        let handles: Vec<_> = lock(&self.state).entries.values().map(|entry| entry.handle.clone()).collect();
        handles.iter().filter(|handle| handle.abort(reason)).count()
    }
}

/// The state that an attempt shares with its handler and with the lease table. Aborts the attempt, and records that it has ended.
#[derive(Default)]
pub(crate) struct AttemptHandle {
    /// Cancelled when the attempt is aborted. The handler sees it through its context.
    pub(crate) stop: CancellationToken,
    /// The handler's last note about the attempt.
    pub(crate) note: Mutex<Option<AttemptNote>>,
    /// The duration of the lease, if the job sets one of its own.
    lease_duration: Option<Duration>,
    abort_reason: OnceLock<AbortReason>,
    ended: AtomicBool,
}

/// Why an attempt is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbortReason {
    /// Someone cancelled the job.
    CancelRequested,
    /// Another worker holds the lease.
    LeaseLost,
    /// The worker shuts down.
    Released,
}

impl AttemptHandle {
    /// Creates the handle of an attempt. Without a `lease_duration`, the worker's applies.
    pub(crate) fn new(lease_duration: Option<Duration>) -> Self {
        Self { lease_duration, ..Self::default() }
    }

    /// Creates a handle for a lease under which no handler runs: the lease is renewed, and an abort has no effect.
    pub(crate) fn without_handler() -> Arc<Self> {
        let handle = Self::default();
        handle.mark_ended();
        Arc::new(handle)
    }

    /// Records that the attempt has its outcome. From now on an abort has no effect.
    pub(crate) fn mark_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until the attempt is aborted.
    pub(crate) async fn aborted(&self) -> AbortReason {
        self.stop.cancelled().await;
        // Without a reason, the attempt itself is being dropped and settles nothing.
        self.abort_reason.get().copied().unwrap_or(AbortReason::LeaseLost)
    }

    /// Returns whether this call aborted the attempt.
    fn abort(&self, reason: AbortReason) -> bool {
        if self.has_ended() || self.abort_reason.set(reason).is_err() {
            return false;
        }
        self.stop.cancel();
        true
    }
}

/// The lease tables of all workers in this process.
static PROCESS_TABLES: Mutex<Vec<RegisteredTable>> = Mutex::new(Vec::new());

struct RegisteredTable {
    store_address: usize,
    table: Weak<LeaseTable>,
}

/// The leases that all workers of this process hold in one store, so that none of them reclaims a job from another.
///
/// A store compares leases with its clock. After a suspend, or when that clock is moved, every lease may seem to have run out
/// although its attempt still runs in this process.
pub(crate) struct ProcessLeases {
    store_address: usize,
}

impl ProcessLeases {
    /// Registers the table of a worker on `backend`. It stays registered until the table is dropped.
    ///
    /// Workers share a store if they share the `Arc`. Each worker keeps its store alive, so no other store can get the address.
    pub(crate) fn register(backend: &Arc<dyn Backend>, table: &Arc<LeaseTable>) -> Self {
        let store_address = Arc::as_ptr(backend).cast::<()>().addr();
        let mut tables = lock(&PROCESS_TABLES);
        tables.retain(|registered| registered.table.strong_count() > 0);
        tables.push(RegisteredTable { store_address, table: Arc::downgrade(table) });
        Self { store_address }
    }

    /// Returns every lease that a worker of this process holds in the store.
    pub(crate) fn all(&self) -> Vec<Lease> {
        let registered = lock(&PROCESS_TABLES);
        let same_store =
            registered.iter().filter(|registered| registered.store_address == self.store_address);
        let tables: Vec<Arc<LeaseTable>> =
            same_store.filter_map(|registered| registered.table.upgrade()).collect();
        drop(registered);
        tables.iter().flat_map(|table| table.leases()).collect()
    }
}
