//! What the parts of a running worker share.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::panics::catch;
use redrive_core::policy::presets;
use redrive_core::store::Backend;
use redrive_core::{Chance, Job, Kind, Outcome, Policy, Run, Timestamp, Verdict, decide};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::count::Counts;
use crate::estimate::Estimates;
use crate::handler::Handler;
use crate::hold::{Held, lock};
use crate::node_pause::NodePause;
use crate::observe::Observer;
use crate::policies::Policies;
use crate::process::ProcessLeases;
use crate::settings::Settings;
use crate::settle::Results;
use crate::storage_retry::RetryingStore;

/// Handlers by the kind of job they run.
pub(crate) type Handlers = BTreeMap<Kind, Arc<dyn Handler>>;

/// The state of one run of a worker.
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) handlers: Handlers,
    /// For what brings work in (claim, reclaim) and for prune: a shutdown ends its waits at once.
    pub(crate) intake: RetryingStore,
    /// For what is under lease (extend, settle, remember) and what follows from it: goes on through the drain.
    pub(crate) store: Arc<RetryingStore>,
    pub(crate) policies: Policies,
    pub(crate) estimates: Estimates,
    pub(crate) held: Arc<Held>,
    /// What this worker and others of the process hold in the store.
    pub(crate) process: ProcessLeases,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) node_pause: NodePause,
    pub(crate) results: Results,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) counts: Counts,
    /// The shutdown has begun: nothing new is taken in.
    pub(crate) stop: CancellationToken,
    /// Every attempt has ended: settle what is there and close.
    pub(crate) flush: CancellationToken,
    /// The flush has taken too long: no more waits between tries.
    pub(crate) give_up: CancellationToken,
    chance: Mutex<fastrand::Rng>,
    stand_in: Policy,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        settings: Settings,
        handlers: Handlers,
        observer: Arc<dyn Observer>,
        results: Results,
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
            .observed_by(observer.clone())
            .with_seed(rng.u64(..))
        };
        let held = Arc::new(Held::new(settings.lease, settings.heartbeat()));
        Self {
            intake: retrying(&stop),
            store: Arc::new(retrying(&give_up)),
            policies: Policies::new(backend.clone()),
            estimates: Estimates::default(),
            process: ProcessLeases::join(&backend, &held),
            held,
            slots: Arc::new(Semaphore::new(settings.concurrency)),
            node_pause: NodePause::new(observer.clone()),
            results,
            observer: observer.clone(),
            counts: Counts::default(),
            stop,
            flush: CancellationToken::new(),
            give_up,
            chance: Mutex::new(rng),
            stand_in: presets::once(),
            settings,
            handlers,
        }
    }

    /// The kinds that this worker has handlers for.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.handlers.keys().cloned().collect()
    }

    /// The key under which the duration of attempts like those of `job` is estimated: the kind, unless its handler names another.
    pub(crate) fn estimate_key<'a>(&self, job: &'a Job) -> Cow<'a, str> {
        let by_kind = || Cow::Borrowed(job.kind.as_str());
        let Some(handler) = self.handlers.get(&job.kind) else { return by_kind() };
        catch("the handler's estimate_key", || handler.estimate_key(job)).unwrap_or_else(|panic| {
            tracing::error!(job = %job.id, %panic, "the job's kind is used instead");
            by_kind()
        })
    }

    /// Decides with the worker's own randomness.
    pub(crate) fn decide(&self, run: &Run<'_>, outcome: &Outcome, now: Timestamp) -> Verdict {
        decide(run, outcome, now, &mut SharedChance(&self.chance))
    }

    /// How long to wait until the store is asked again after `failed` tries, as the storage policy would go on.
    pub(crate) fn storage_wait(&self, failed: u32) -> Duration {
        self.settings.storage_retry.wait(failed, None, None, &mut SharedChance(&self.chance))
    }

    /// Decides about an outcome that no policy could change, for a job whose policy is out of reach.
    pub(crate) fn decide_without_policy(&self, outcome: &Outcome) -> Verdict {
        let run = Run {
            policy: &self.stand_in,
            attempt: 1,
            began_at: Timestamp::default(),
            previous_wait: None,
            estimated_call: Duration::ZERO,
        };
        self.decide(&run, outcome, Timestamp::default())
    }
}

/// Locks only when a number is drawn: most attempts succeed and need none.
struct SharedChance<'a>(&'a Mutex<fastrand::Rng>);

impl Chance for SharedChance<'_> {
    fn unit(&mut self) -> f64 {
        lock(self.0).f64()
    }
}

/// The store's time as of an answer, carried on by the timer's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreTime {
    pub(crate) now: Timestamp,
    pub(crate) read_at: Instant,
}

impl StoreTime {
    /// Takes the time of an answer that has just come.
    pub(crate) fn of_answer(now: Timestamp) -> Self {
        Self { now, read_at: Instant::now() }
    }

    /// The store's time at `instant`.
    pub(crate) fn at(&self, instant: Instant) -> Timestamp {
        self.now.after(instant.saturating_duration_since(self.read_at))
    }
}

/// An error with what is behind it, for a log line.
pub(crate) struct Causes<'a>(pub(crate) &'a dyn std::error::Error);

impl fmt::Display for Causes<'_> {
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
