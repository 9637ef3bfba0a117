//! Opens a store: its options, its thread and connections, and the state that its clones share.

pub(crate) mod address;
mod tls;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::steps::NewStep;
use redrive_core::store::WakeToken;
use redrive_core::{Clock, NewJob, Start, StoreError, Timestamp};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_postgres::{Client, Row};

use crate::PostgresStore;
use crate::call_batcher::CallBatcher;
use crate::error::Result;
use crate::lanes::{LaneCache, Lanes};
use crate::lifecycle::claim::{self, LastClaims};
use crate::lifecycle::held_claims::HeldClaims;
use crate::lifecycle::prune::PrunePositions;
use crate::lifecycle::scan_start::{ClaimPositions, LeasePositions};
use crate::limits::claim::KnownLimits;
use crate::limits::usage::LimitedRoundState;
use crate::notifications::{NotificationTasks, Outbox, WakeState};
use crate::open::address::Address;
use crate::planned_function::{self, PlannedFunction};
use crate::pool::{Connector, Driver, Pool};
use crate::schema;

/// The options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Replaces the server's clock, for tests. None by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// The maximum time that a call may take, including the wait for a connection. 15 s by default.
    pub call_timeout: Duration,
    /// Whether to create or update the tables. If false, opening fails when they are missing or too old. True by default. An update
    /// that converts the jobs of an earlier version is left to [`PostgresStore::migrate`].
    pub migrate: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: None, call_timeout: Duration::from_secs(15), migrate: true }
    }
}

impl Options {
    /// Uses `clock` instead of the server's clock.
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Limits the time that a call may take.
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }
}

impl PostgresStore {
    /// Connects to the server at `address`, and creates or updates the tables if [`Options::migrate`] is set. Fails if the tables
    /// are too new for this version.
    pub async fn open(address: &str, options: Options) -> Result<Self, StoreError> {
        let opened = ServerAccess::new(address, &options)?;
        if options.migrate {
            schema::migrate_at_start(&opened.pool).await?;
        } else {
            schema::check(&opened.pool).await?;
        }
        let are_usable = async |client: &Client| planned_function::are_usable(client).await;
        let has_functions = opened.pool.with_timeout(options.call_timeout, are_usable).await?;
        if has_functions {
            claim::prepare_connections(&opened.pool).await;
        }
        let lanes = LaneCache::default();
        lanes.reload(&opened.pool).await?;
        let (wake_state, outbox) = (Arc::new(WakeState::default()), Arc::new(Outbox::default()));
        let notifications = NotificationTasks::start(&opened, wake_state.clone(), outbox.clone()).await?;
        let ServerAccess { thread, pool, heartbeats, .. } = opened;
        let inner = Inner {
            pool,
            heartbeats,
            lanes,
            has_functions,
            last_claims: LastClaims::default(),
            lease_positions: Mutex::default(),
            held_claims: Mutex::default(),
            prune_positions: Mutex::default(),
            known_limits: Mutex::default(),
            limited_round: tokio::sync::Mutex::default(),
            enqueue_batcher: CallBatcher::default(),
            remember_batcher: CallBatcher::default(),
            clock: options.clock,
            wake_state,
            outbox,
            _notifications: notifications,
            thread,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Creates or updates the tables at `address`, and returns their schema version. Several nodes may call it at once.
    pub async fn migrate(address: &str) -> Result<u32, StoreError> {
        let opened = ServerAccess::new(address, &Options::default())?;
        Ok(schema::migrate(&opened.pool).await?)
    }
}

/// The connections to a server, and the thread that drives them.
pub(crate) struct ServerAccess {
    pub(crate) thread: RuntimeThread,
    pub(crate) address: Address,
    pub(crate) connector: Connector,
    pub(crate) pool: Arc<Pool>,
    pub(crate) heartbeats: Arc<Pool>,
}

impl ServerAccess {
    pub(crate) fn new(address: &str, options: &Options) -> Result<Self> {
        let address: Address = address.parse()?;
        let tls = tls::connector(&address.trust)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redrive-postgres")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let connector = Connector { config: address.config.clone(), tls, runtime: runtime.handle().clone() };
        let pool = Pool::new(connector.clone(), Driver::Caller, address.connections, options.call_timeout);
        // A connection of its own, on a thread of its own, so that leases are renewed however busy the others are.
        let heartbeats = Pool::new(connector.clone(), Driver::Store, 1, options.call_timeout);
        Ok(Self { thread: RuntimeThread(Some(runtime)), address, connector, pool, heartbeats })
    }
}

/// The thread that drives a store's connections. Dropping it does not wait for its end, because stores are dropped inside other
/// runtimes, where waiting for a runtime is not allowed.
pub(crate) struct RuntimeThread(Option<Runtime>);

impl Drop for RuntimeThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The state that the clones of a store share.
pub(crate) struct Inner {
    pub(crate) pool: Arc<Pool>,
    pub(crate) heartbeats: Arc<Pool>,
    pub(crate) lanes: LaneCache,
    /// Whether this role can use the functions of this build.
    pub(crate) has_functions: bool,
    pub(crate) last_claims: LastClaims,
    lease_positions: Mutex<LeasePositions>,
    held_claims: Mutex<HeldClaims>,
    prune_positions: Mutex<PrunePositions>,
    known_limits: Mutex<KnownLimits>,
    /// Held during a round of a claim from queues with limits.
    pub(crate) limited_round: tokio::sync::Mutex<LimitedRoundState>,
    pub(crate) enqueue_batcher: CallBatcher<NewJob>,
    pub(crate) remember_batcher: CallBatcher<NewStep>,
    clock: Option<Arc<dyn Clock>>,
    /// Wake-ups, from this node and others.
    wake_state: Arc<WakeState>,
    /// Messages to other nodes.
    outbox: Arc<Outbox>,
    _notifications: NotificationTasks,
    thread: RuntimeThread,
}

impl Inner {
    /// The time of the store's own clock, if it has one. None means the server's clock.
    pub(crate) fn manual_now(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.now().as_ms())
    }

    /// The statement that calls a function, or the function's own statement for a role that cannot use the functions.
    pub(crate) fn sql(&self, function: &'static PlannedFunction) -> &'static str {
        if self.has_functions { function.call() } else { function.statement() }
    }

    /// The number of wake-ups so far.
    pub(crate) fn wakes(&self) -> WakeToken {
        WakeToken(*self.wake_state.wakes.borrow())
    }

    /// Returns after a wake-up that `seen` does not count.
    pub(crate) async fn wait(&self, seen: WakeToken) {
        changed(&self.wake_state.wakes, seen).await;
    }

    /// Returns the number of requests to cancel a running job, once it differs from `seen`.
    pub(crate) async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        changed(&self.wake_state.cancels, seen).await
    }

    /// Wakes the workers of this node at once, and those of other nodes soon, because jobs may have become claimable.
    pub(crate) fn wake(&self) {
        if let Some(now) = self.manual_now() {
            // The store's own clock may have been set back.
            self.claim_positions().lower(Timestamp::from_ms(now));
        }
        let local_worker_claims = self.wake_state.wake();
        self.outbox.add_wake(local_worker_claims);
    }

    /// Wakes workers if jobs may have become claimable.
    pub(crate) fn wake_if(&self, claimable: bool) {
        if claimable {
            self.wake();
        }
    }

    /// Wakes the workers whose running jobs were cancelled, here at once and on other nodes soon.
    pub(crate) fn announce_cancels(&self) {
        self.wake_state.cancel();
        self.outbox.add(|message| message.cancel = true);
    }

    /// Lowers the positions of claims in these lanes to these times, on this node and on others.
    pub(crate) fn announce_early(&self, early: &HashMap<i32, i64>) {
        self.claim_positions().lower_lanes(early);
        self.outbox.add(|message| message.announce_early(early));
    }

    /// The positions where claims start.
    pub(crate) fn claim_positions(&self) -> MutexGuard<'_, ClaimPositions> {
        self.wake_state.claim_positions()
    }

    /// The positions where scans for expired leases start.
    pub(crate) fn lease_positions(&self) -> MutexGuard<'_, LeasePositions> {
        self.lease_positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leases that this process holds.
    pub(crate) fn held_claims(&self) -> MutexGuard<'_, HeldClaims> {
        self.held_claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The positions where the next prune continues.
    pub(crate) fn prune_positions(&self) -> MutexGuard<'_, PrunePositions> {
        self.prune_positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits that this node knows of.
    pub(crate) fn known_limits(&self) -> MutexGuard<'_, KnownLimits> {
        self.known_limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns a task on the store's own thread.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.thread.0 {
            runtime.spawn(work);
        }
    }

    /// Lowers the positions of claims to the due times of these jobs, which may be in the past.
    pub(crate) fn lower_positions<'a>(&self, jobs: impl IntoIterator<Item = &'a NewJob>) {
        for job in jobs {
            if let Start::At(at) = job.start {
                self.claim_positions().lower(at);
            }
        }
    }

    /// The lanes, with those of these jobs, which are used from now on.
    pub(crate) async fn use_lanes(&self, jobs: &[NewJob]) -> Result<Arc<Lanes>> {
        self.lanes.ensure(&self.pool, self.manual_now(), jobs).await
    }

    /// The lanes, including those of these rows. Reads them again if a row has a lane that another node added.
    pub(crate) async fn lanes_of(&self, rows: &[Row]) -> Result<Arc<Lanes>> {
        let known = self.lanes.snapshot();
        for row in rows {
            if let Some(lane) = row.try_get::<_, Option<i32>>(1)?
                && known.get(lane).is_none()
            {
                self.lanes.reload(&self.pool).await?;
                break;
            }
        }
        Ok(self.lanes.snapshot())
    }
}

/// Returns a counter once it differs from `seen`. The store holds the sender for as long as it lives.
async fn changed(counter: &watch::Sender<u64>, seen: WakeToken) -> WakeToken {
    let mut counter = counter.subscribe();
    let changed = counter.wait_for(|count| *count != seen.0).await;
    changed.map_or(seen, |count| WakeToken(*count))
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("pool", &self.pool).finish_non_exhaustive()
    }
}
