//! Opening a store: its thread, its connections, its tables, and what its clones share.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::steps::Memory;
use redrive_core::store::Wake;
use redrive_core::{Clock, NewJob, Start, StoreError, Timestamp};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_postgres::Row;

use crate::PostgresStore;
use crate::address::Address;
use crate::claim_bounded::Met;
use crate::error::Sorted;
use crate::floors::Floors;
use crate::gather::Gather;
use crate::lanes::{Lanes, SharedLanes};
use crate::leases::LeaseFloors;
use crate::listen::{Ears, News, Outbox};
use crate::migrate;
use crate::pool::{Connect, Pool};
use crate::tls;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tells the time instead of the server, for tests; the server's clock by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// How long a call may take before it counts as failed, the wait for a connection included; 15 s by default.
    pub patience: Duration,
    /// Whether missing tables are made; they are by default.
    pub migrate: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: None, patience: Duration::from_secs(15), migrate: true }
    }
}

impl Options {
    /// Tells the time by `clock`.
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Gives a call so much time.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl PostgresStore {
    /// Connects to the server at `address` and makes its tables if they are missing. A schema that this version would not
    /// understand is refused.
    pub async fn open(address: &str, options: Options) -> Result<Self, StoreError> {
        let opened = Opened::new(address, &options)?;
        if options.migrate {
            migrate::migrate(&opened.pool).await?;
        } else {
            migrate::check(&opened.pool).await?;
        }
        let lanes = SharedLanes::default();
        lanes.reload(&opened.pool).await?;
        let (news, outbox) = (Arc::new(News::default()), Arc::new(Outbox::default()));
        let ears = Ears::open(&opened, news.clone(), outbox.clone()).await?;
        let Opened { thread, pool, heartbeats, .. } = opened;
        let inner = Inner {
            pool,
            heartbeats,
            lanes,
            leases: Mutex::default(),
            met: Mutex::default(),
            enqueues: Gather::default(),
            memories: Gather::default(),
            clock: options.clock,
            news,
            outbox,
            _ears: ears,
            thread,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes or updates the tables at `address`, and says which schema they are at. Safe from many places at once.
    pub async fn migrate(address: &str) -> Result<u32, StoreError> {
        let opened = Opened::new(address, &Options::default())?;
        migrate::migrate(&opened.pool).await
    }
}

/// A server that can be spoken to.
pub(crate) struct Opened {
    pub(crate) thread: Thread,
    pub(crate) address: Address,
    pub(crate) connect: Connect,
    pub(crate) pool: Arc<Pool>,
    pub(crate) heartbeats: Arc<Pool>,
}

impl Opened {
    pub(crate) fn new(address: &str, options: &Options) -> Result<Self, StoreError> {
        let address: Address = address.parse()?;
        let tls = tls::connector(&address.trust)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redrive-postgres")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let connect = Connect { config: address.config.clone(), tls, runtime: runtime.handle().clone() };
        let pool = Pool::new(connect.clone(), address.connections, options.patience);
        // Its own connection: leases are renewed however busy the others are.
        let heartbeats = Pool::new(connect.clone(), 1, options.patience);
        Ok(Self { thread: Thread(Some(runtime)), address, connect, pool, heartbeats })
    }
}

/// The thread that drives a store's connections. It is let go rather than waited for: a runtime must not be waited for
/// from inside another, and that is where stores are dropped, those too that could not be opened.
pub(crate) struct Thread(Option<Runtime>);

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the clones of a store share.
pub(crate) struct Inner {
    pub(crate) pool: Arc<Pool>,
    pub(crate) heartbeats: Arc<Pool>,
    pub(crate) lanes: SharedLanes,
    leases: Mutex<LeaseFloors>,
    met: Mutex<Met>,
    pub(crate) enqueues: Gather<NewJob>,
    pub(crate) memories: Gather<Memory>,
    clock: Option<Arc<dyn Clock>>,
    /// What this node must know, wherever it happened.
    news: Arc<News>,
    /// What other nodes are to be told.
    outbox: Arc<Outbox>,
    _ears: Ears,
    thread: Thread,
}

impl Inner {
    /// The time by the store's own clock, if it has one; the server's rules otherwise.
    pub(crate) fn manual_now(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.now().as_ms())
    }

    /// How far wake-ups have come.
    pub(crate) fn wakes(&self) -> Wake {
        Wake(*self.news.wakes.borrow())
    }

    /// Returns once wake-ups have gone beyond `seen`.
    pub(crate) async fn wait(&self, seen: Wake) {
        changed(&self.news.wakes, seen).await;
    }

    /// Returns how often the end of a running job was requested, once that is not `seen`.
    pub(crate) async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        changed(&self.news.cancels, seen).await
    }

    /// Something may have become claimable: wakes workers here at once, and those of other nodes soon.
    pub(crate) fn wake(&self) {
        if let Some(now) = self.manual_now() {
            // A clock of its own may have been set back.
            self.floors().lower(Timestamp::from_ms(now));
        }
        self.news.wake();
        self.outbox.add(|message| message.wake = true);
    }

    /// Wakes workers if something may have become claimable.
    pub(crate) fn wake_if(&self, yes: bool) {
        if yes {
            self.wake();
        }
    }

    /// The end of running jobs was requested: their workers look here at once, and on other nodes soon.
    pub(crate) fn request_cancels(&self) {
        self.news.cancel();
        self.outbox.add(|message| message.cancel = true);
    }

    /// Jobs have become due at these times in these lanes, which claims may have passed already, here and on other nodes.
    pub(crate) fn expect_early(&self, early: &HashMap<i32, i64>) {
        self.floors().lower_lanes(early);
        self.outbox.add(|message| message.expect_early(early));
    }

    /// Where claims begin.
    pub(crate) fn floors(&self) -> MutexGuard<'_, Floors> {
        self.news.floors()
    }

    /// Where looks for ended leases begin.
    pub(crate) fn leases(&self) -> MutexGuard<'_, LeaseFloors> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where claims have met bounds.
    pub(crate) fn met(&self) -> MutexGuard<'_, Met> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something on the store's own thread.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.thread.0 {
            runtime.spawn(work);
        }
    }

    /// Makes claims look where these jobs will be, if their time has passed already.
    pub(crate) fn expect<'a>(&self, jobs: impl IntoIterator<Item = &'a NewJob>) {
        for job in jobs {
            if let Start::At(at) = job.start {
                self.floors().lower(at);
            }
        }
    }

    /// The lanes, with those of these rows among them.
    pub(crate) async fn lanes_of(&self, rows: &[Row]) -> Result<Arc<Lanes>, StoreError> {
        let known = self.lanes.snapshot();
        for row in rows {
            if let Some(lane) = row.try_get::<_, Option<i32>>(1).sorted()?
                && known.get(lane).is_none()
            {
                self.lanes.reload(&self.pool).await?;
                break;
            }
        }
        Ok(self.lanes.snapshot())
    }
}

/// Returns a counter once it is not `seen`. The store holds the sender for as long as it lives.
async fn changed(counter: &watch::Sender<u64>, seen: Wake) -> Wake {
    let mut counter = counter.subscribe();
    let changed = counter.wait_for(|count| *count != seen.0).await;
    changed.map_or(seen, |count| Wake(*count))
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("pool", &self.pool).finish_non_exhaustive()
    }
}
