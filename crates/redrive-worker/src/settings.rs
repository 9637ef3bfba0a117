//! The settings of a worker: concurrency, leases, intervals, retries and logging.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::Retention;
use redrive_core::{Invalid, MaxAttempts, Policy, Queue, WorkerId};

/// The largest number of attempts that one worker may run at once.
pub const CONCURRENCY_MAX: usize = 100_000;
/// The shortest lease. Its heartbeat is a third of it, which is the resolution of timers.
pub const LEASE_MIN: Duration = Duration::from_millis(3);

/// The settings of a [`crate::Worker`].
///
/// ```
/// use redrive_worker::Settings;
/// use std::time::Duration;
///
/// let settings = Settings::default()
///     .with_concurrency(256)
///     .with_lease(Duration::from_secs(60));
/// assert!(settings.check().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The name of the worker, which operators see on its leases.
    pub worker: WorkerId,
    /// The queues to claim from. An empty list means all queues.
    pub queues: Vec<Queue>,
    /// How many attempts may run at once.
    pub concurrency: usize,
    /// How long a lease lasts without a heartbeat. After a crash, its job is reclaimed after this time.
    pub lease: Duration,
    /// Time from one heartbeat to the next. The default is a third of the lease.
    pub heartbeat: Option<Duration>,
    /// Time from one reclaim to the next.
    pub reclaim_every: Duration,
    /// Time from one prune to the next.
    pub prune_every: Duration,
    /// The longest time between two claims of an idle worker. Wake-ups and due times make it claim earlier.
    pub poll: Duration,
    /// The timeout of attempts for which neither the job nor the policy sets one.
    pub attempt_timeout: Option<Duration>,
    /// How long a shutdown waits for running handlers.
    pub drain: Duration,
    /// How long ended jobs are kept.
    pub retention: Retention,
    /// Which attempts are written to the attempt log.
    pub log: AttemptLogging,
    /// Exceptions from `log` for single queues.
    pub log_by_queue: BTreeMap<Queue, AttemptLogging>,
    /// How all calls that [`crate::RetryingStore`] retries are retried, except claim. A settlement that still fails
    /// after these retries keeps its lease and is tried again every few seconds, until the store answers or the worker
    /// shuts down.
    pub storage_retry: Policy,
    /// How claim is retried.
    pub dequeue_retry: Policy,
    /// The seed of all random numbers of the worker. Without one, they come from entropy.
    pub seed: Option<u64>,
    /// What sends the heartbeats.
    pub heartbeat_source: HeartbeatSource,
}

/// Which attempts are written to the attempt log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttemptLogging {
    /// Every attempt.
    All,
    /// Only failed attempts, so that a successful job costs no extra row.
    #[default]
    Failures,
    /// No attempts.
    None,
}

/// What sends the heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeartbeatSource {
    /// A thread with its own runtime. Handlers keep their leases even if they block every thread of their runtime.
    #[default]
    OwnThread,
    /// A task in the runtime of the handlers, for simulations on one thread and a paused clock.
    Inline,
}

impl Default for Settings {
    /// All queues, 64 at once, a lease of 30 s, reclaim every 5 s, prune every minute, poll every second, no timeout,
    /// a drain of 20 s, failures logged, 5 attempts for calls to the store and 3 for claims.
    fn default() -> Self {
        Self {
            worker: unique_name(),
            queues: Vec::new(),
            concurrency: 64,
            lease: Duration::from_secs(30),
            heartbeat: None,
            reclaim_every: Duration::from_secs(5),
            prune_every: Duration::from_secs(60),
            poll: Duration::from_secs(1),
            attempt_timeout: None,
            drain: Duration::from_secs(20),
            retention: Retention::default(),
            log: AttemptLogging::default(),
            log_by_queue: BTreeMap::new(),
            storage_retry: presets::storage(),
            dequeue_retry: presets::dequeue(),
            seed: None,
            heartbeat_source: HeartbeatSource::default(),
        }
    }
}

impl Settings {
    /// Sets the name of the worker on its leases.
    pub fn with_worker(self, worker: WorkerId) -> Self {
        Self { worker, ..self }
    }

    /// Claims only from `queues`. An empty list means all queues.
    pub fn with_queues(self, queues: impl IntoIterator<Item = Queue>) -> Self {
        let queues = queues.into_iter().collect();
        Self { queues, ..self }
    }

    /// Runs at most `concurrency` attempts at once.
    pub fn with_concurrency(self, concurrency: usize) -> Self {
        Self { concurrency, ..self }
    }

    /// Sets the duration of a lease.
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Renews leases every `heartbeat`. `None` means a third of the lease.
    pub fn with_heartbeat(self, heartbeat: impl Into<Option<Duration>>) -> Self {
        let heartbeat = heartbeat.into();
        Self { heartbeat, ..self }
    }

    /// Reclaims jobs every `reclaim_every`.
    pub fn with_reclaim_every(self, reclaim_every: Duration) -> Self {
        Self { reclaim_every, ..self }
    }

    /// Prunes ended jobs every `prune_every`.
    pub fn with_prune_every(self, prune_every: Duration) -> Self {
        Self { prune_every, ..self }
    }

    /// Claims at least every `poll`, even without a wake-up.
    pub fn with_poll(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    /// Ends attempts after `attempt_timeout`, unless the job or the policy sets a timeout.
    pub fn with_attempt_timeout(self, attempt_timeout: impl Into<Option<Duration>>) -> Self {
        let attempt_timeout = attempt_timeout.into();
        Self { attempt_timeout, ..self }
    }

    /// Waits up to `drain` for running handlers at a shutdown. Zero releases them at once.
    pub fn with_drain(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }

    /// Keeps ended jobs for `retention`.
    pub fn with_retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// Sets which attempts are written to the attempt log.
    pub fn with_log(self, log: AttemptLogging) -> Self {
        Self { log, ..self }
    }

    /// Sets which attempts of `queue` are written to the attempt log.
    pub fn with_log_of(mut self, queue: Queue, log: AttemptLogging) -> Self {
        self.log_by_queue.insert(queue, log);
        self
    }

    /// Retries calls to the store by `policy`, except claim.
    pub fn with_storage_retry(self, policy: Policy) -> Self {
        Self { storage_retry: policy, ..self }
    }

    /// Retries claim by `policy`.
    pub fn with_dequeue_retry(self, policy: Policy) -> Self {
        Self { dequeue_retry: policy, ..self }
    }

    /// Sets the number of attempts in the storage policy, and nothing else. Zero is an error.
    pub fn with_retry_attempts(mut self, attempts: u32) -> Result<Self, Invalid> {
        self.storage_retry.max_attempts = MaxAttempts::new(attempts)?;
        Ok(self)
    }

    /// Calls the store once for each operation, without retries.
    pub fn disable_retry(self) -> Self {
        Self { storage_retry: presets::once(), dequeue_retry: presets::once(), ..self }
    }

    /// Draws all random numbers from `seed`.
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Sets what sends the heartbeats.
    pub fn with_heartbeat_source(self, heartbeat_source: HeartbeatSource) -> Self {
        Self { heartbeat_source, ..self }
    }

    /// Checks the settings. The error names the invalid field.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            let problem = format!("must be from 1 to {CONCURRENCY_MAX}, is {}", self.concurrency);
            return Err(Invalid::new("concurrency", problem));
        }
        if self.lease < LEASE_MIN {
            let problem = format!("must be at least {LEASE_MIN:?}, is {:?}", self.lease);
            return Err(Invalid::new("lease", problem));
        }
        if self.heartbeat() >= self.lease {
            let problem =
                format!("must be shorter than the lease ({:?}), is {:?}", self.lease, self.heartbeat());
            return Err(Invalid::new("heartbeat", problem));
        }
        for (field, duration) in [
            ("heartbeat", Some(self.heartbeat())),
            ("reclaim_every", Some(self.reclaim_every)),
            ("prune_every", Some(self.prune_every)),
            ("poll", Some(self.poll)),
            ("attempt_timeout", self.attempt_timeout),
        ] {
            if duration == Some(Duration::ZERO) {
                return Err(Invalid::new(field, "must be longer than zero"));
            }
        }
        Ok(())
    }

    /// The time from one heartbeat to the next: the setting, or a third of the lease.
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat.unwrap_or(self.lease / 3)
    }

    /// Which attempts of `queue` are written to the attempt log.
    pub fn log_of(&self, queue: &Queue) -> AttemptLogging {
        self.log_by_queue.get(queue).copied().unwrap_or(self.log)
    }
}

/// Returns a name with the process id, and a random part that distinguishes workers of one process or of several hosts.
fn unique_name() -> WorkerId {
    let name = format!("worker-{}-{:08x}", std::process::id(), fastrand::u32(..));
    WorkerId::new(name).unwrap_or_else(|_| unreachable!("a short printable name is valid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn an_invalid_setting_is_rejected_with_its_field_name() {
        let new = Settings::default;
        let cases = [
            (new().with_concurrency(0), "concurrency"),
            (new().with_concurrency(CONCURRENCY_MAX + 1), "concurrency"),
            (new().with_lease(Duration::ZERO), "lease"),
            (new().with_lease(Duration::from_millis(2)), "lease"),
            (new().with_heartbeat(30 * S), "heartbeat"),
            (new().with_heartbeat(Duration::ZERO), "heartbeat"),
            (new().with_reclaim_every(Duration::ZERO), "reclaim_every"),
            (new().with_prune_every(Duration::ZERO), "prune_every"),
            (new().with_poll(Duration::ZERO), "poll"),
            (new().with_attempt_timeout(Duration::ZERO), "attempt_timeout"),
        ];
        for (settings, field) in cases {
            assert_eq!(settings.check().unwrap_err().field, field);
        }
        assert_eq!(new().with_retry_attempts(0).unwrap_err().field, "maxAttempts");
        assert!(new().check().is_ok() && new().with_drain(Duration::ZERO).check().is_ok());
        assert!(new().with_lease(LEASE_MIN).check().is_ok());
    }

    #[test]
    fn the_default_heartbeat_is_a_third_of_the_lease() {
        assert_eq!(Settings::default().heartbeat(), 10 * S);
        assert_eq!(Settings::default().with_heartbeat(S).heartbeat(), S);
    }

    #[test]
    fn each_retry_setting_changes_only_its_own_policy() {
        let new = Settings::default;
        assert_eq!(new().storage_retry, presets::storage());
        assert_eq!(new().dequeue_retry, presets::dequeue());
        let other = presets::upload();
        let storage = new().with_storage_retry(other.clone());
        assert_eq!((&storage.storage_retry, storage.dequeue_retry), (&other, presets::dequeue()));
        let dequeue = new().with_dequeue_retry(other.clone());
        assert_eq!((dequeue.storage_retry, &dequeue.dequeue_retry), (presets::storage(), &other));
        let ten = new().with_retry_attempts(10).unwrap();
        assert_eq!(ten.storage_retry, presets::storage().with_max_attempts(10).unwrap());
        assert_eq!(ten.dequeue_retry, presets::dequeue());
        let off = new().disable_retry();
        assert_eq!(off.storage_retry.max_attempts.get(), 1);
        assert_eq!(off.dequeue_retry.max_attempts.get(), 1);
    }

    #[test]
    fn a_queue_may_have_its_own_attempt_logging() {
        let audit = Queue::new("audit").unwrap();
        let settings = Settings::default().with_log_of(audit.clone(), AttemptLogging::All);
        assert_eq!(settings.log_of(&audit), AttemptLogging::All);
        assert_eq!(settings.log_of(&Queue::default()), AttemptLogging::Failures);
    }
}
