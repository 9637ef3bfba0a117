//! The state that the tasks of a running worker share.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::panics::catch;
use redrive_core::policy::presets;
use redrive_core::store::Backend;
use redrive_core::{Job, Kind, Outcome, Policy, RandomSource, Run, Timestamp, Verdict, decide};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::duration_estimates::DurationEstimates;
use crate::handler::Handler;
use crate::lease_table::{LeaseTable, ProcessLeases};
use crate::node_pause::NodePause;
use crate::observe::Observer;
use crate::policy_cache::PolicyCache;
use crate::settings::Settings;
use crate::settle::SettlementQueues;
use crate::storage_retry::RetryingStore;
use crate::summary::Counts;

/// Handlers by the kind of job they run.
pub(crate) type Handlers = BTreeMap<Kind, Arc<dyn Handler>>;

/// The state of one run of a worker.
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) handlers: Handlers,
    /// For claim, reclaim, prune and sweep. A shutdown ends its waits between retries at once.
    pub(crate) intake_store: RetryingStore,
    /// For extend, settle and remember, and for the calls that follow a settlement. It keeps retrying during the drain.
    pub(crate) store: Arc<RetryingStore>,
    pub(crate) policies: PolicyCache,
    pub(crate) estimates: DurationEstimates,
    pub(crate) leases: Arc<LeaseTable>,
    pub(crate) process_leases: ProcessLeases,
    /// One permit for each attempt that may run at once.
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) node_pause: NodePause,
    pub(crate) settlements: SettlementQueues,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) counts: Counts,
    /// Cancelled when the shutdown begins: the worker takes no new jobs.
    pub(crate) stop: CancellationToken,
    /// Cancelled when every attempt has ended: the writers settle the rest and end.
    pub(crate) flush: CancellationToken,
    /// Cancelled when the flush has taken too long: calls to the store are no longer retried.
    pub(crate) give_up: CancellationToken,
    rng: Mutex<fastrand::Rng>,
    /// Stands in for the policy where the policy makes no difference.
    no_retry_policy: Policy,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        settings: Settings,
        handlers: Handlers,
        observer: Arc<dyn Observer>,
        settlements: SettlementQueues,
    ) -> Self {
        let mut rng = settings.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let (stop, give_up) = (CancellationToken::new(), CancellationToken::new());
        let mut retrying = |token: &CancellationToken| {
            RetryingStore::new(
                backend.clone(),
                settings.storage_retry.clone(),
                settings.dequeue_retry.clone(),
            )
            .cancel_on(token.clone())
            .with_observer(observer.clone())
            .with_seed(rng.u64(..))
        };
        let leases = Arc::new(LeaseTable::new(settings.lease, settings.heartbeat()));
        Self {
            intake_store: retrying(&stop),
            store: Arc::new(retrying(&give_up)),
            policies: PolicyCache::new(backend.clone()),
            estimates: DurationEstimates::default(),
            process_leases: ProcessLeases::register(&backend, &leases),
            leases,
            slots: Arc::new(Semaphore::new(settings.concurrency)),
            node_pause: NodePause::new(observer.clone()),
            settlements,
            observer: observer.clone(),
            counts: Counts::default(),
            stop,
            flush: CancellationToken::new(),
            give_up,
            rng: Mutex::new(rng),
            no_retry_policy: presets::once(),
            settings,
            handlers,
        }
    }

    /// The kinds that this worker has handlers for.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.handlers.keys().cloned().collect()
    }

    /// The key for the estimated duration of the job's attempts: the kind, unless the handler returns another key.
    pub(crate) fn estimate_key<'a>(&self, job: &'a Job) -> Cow<'a, str> {
        let by_kind = || Cow::Borrowed(job.kind.as_str());
        let Some(handler) = self.handlers.get(&job.kind) else { return by_kind() };
        catch("the handler's estimate_key", || handler.estimate_key(job)).unwrap_or_else(|panic| {
            tracing::error!(job = %job.id, %panic, "estimate_key panicked: the job's kind is used instead");
            by_kind()
        })
    }

    /// Decides what follows an attempt, with jitter from the worker's random numbers.
    pub(crate) fn decide(&self, run: &Run<'_>, outcome: &Outcome, now: Timestamp) -> Verdict {
        decide(run, outcome, now, &mut SharedRng(&self.rng))
    }

    /// The wait of the storage policy after `failed` failed calls.
    pub(crate) fn storage_backoff(&self, failed: u32) -> Duration {
        self.settings.storage_retry.wait(failed, None, None, &mut SharedRng(&self.rng))
    }

    /// Decides about an outcome for which every policy gives the same verdict.
    pub(crate) fn decide_without_policy(&self, outcome: &Outcome) -> Verdict {
        let run = Run {
            policy: &self.no_retry_policy,
            attempt: 1,
            began_at: Timestamp::default(),
            previous_wait: None,
            estimated_call: Duration::ZERO,
        };
        self.decide(&run, outcome, Timestamp::default())
    }
}

/// Locks the generator only when a number is drawn: most attempts succeed and draw none.
struct SharedRng<'a>(&'a Mutex<fastrand::Rng>);

impl RandomSource for SharedRng<'_> {
    fn unit(&mut self) -> f64 {
        lock(self.0).f64()
    }
}

/// The store's time from one of its responses, advanced by tokio's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreTime {
    pub(crate) now: Timestamp,
    pub(crate) read_at: Instant,
}

impl StoreTime {
    /// Takes the time from a response that has just arrived.
    pub(crate) fn from_response(now: Timestamp) -> Self {
        Self { now, read_at: Instant::now() }
    }

    /// The store's time at `instant`.
    pub(crate) fn at(&self, instant: Instant) -> Timestamp {
        self.now.after(instant.saturating_duration_since(self.read_at))
    }
}

/// Displays an error with all its causes, for a log line.
pub(crate) struct ErrorChain<'a>(pub(crate) &'a dyn std::error::Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

/// Locks `mutex` even if a thread panicked while it held the lock: no invariant of this crate spans several statements under a
/// lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
