//! How a worker works: how much at once, how long its leases last, how often it looks after the store.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::Retention;
use redrive_core::{Invalid, MaxAttempts, Policy, Queue, WorkerId};

/// Attempts that one worker may run at once.
pub const CONCURRENCY_MAX: usize = 100_000;
/// The shortest lease: its heartbeat, a third of it, is as fine as timers are.
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
    /// The name that operators see on a lease.
    pub worker: WorkerId,
    /// Claims from these queues; none means all.
    pub queues: Vec<Queue>,
    /// Attempts at once.
    pub concurrency: usize,
    /// How long a lease lasts without a heartbeat: after a crash the job is stuck for this long.
    pub lease: Duration,
    /// Time from one heartbeat to the next; a third of the lease when absent.
    pub heartbeat: Option<Duration>,
    /// Time from one search for orphans to the next.
    pub reclaim_every: Duration,
    /// Time from one removal of ended jobs to the next.
    pub prune_every: Duration,
    /// How long an idle worker trusts wake-ups before it looks for itself.
    pub poll: Duration,
    /// How long an attempt may take when neither its job nor its policy says so.
    pub attempt_timeout: Option<Duration>,
    /// How long an orderly shutdown waits for running handlers.
    pub drain: Duration,
    /// How long ended jobs are kept.
    pub retention: Retention,
    /// Which attempts go into the log.
    pub log: KeepLog,
    /// Which attempts of a queue go into the log, where that differs from `log`.
    pub log_by_queue: BTreeMap<Queue, KeepLog>,
    /// How settle, extend, reclaim and prune are retried. A result that the store has not taken by then is kept with its lease
    /// and offered again every few seconds, until the store answers or the worker shuts down.
    pub storage_retry: Policy,
    /// How claim is retried.
    pub dequeue_retry: Policy,
    /// Where all randomness of the worker comes from; from entropy when absent.
    pub seed: Option<u64>,
    /// Where heartbeats come from.
    pub pulse: Pulse,
}

/// Which attempts go into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepLog {
    /// Every attempt.
    All,
    /// Those that failed, so that a job that works costs no extra row.
    #[default]
    Failures,
    /// None.
    None,
}

/// Where heartbeats come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pulse {
    /// A thread with a runtime of its own, so that handlers that block every thread of theirs keep their leases.
    #[default]
    OwnThread,
    /// A task beside the handlers, for simulations on one thread and a paused clock.
    Inline,
}

impl Default for Settings {
    /// All queues, 64 at once, a lease of 30 s, reclaim every 5 s, prune every minute, poll every second, no timeout,
    /// a drain of 20 s, failures logged, storage retried 5 times and claims 3 times.
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
            log: KeepLog::default(),
            log_by_queue: BTreeMap::new(),
            storage_retry: presets::storage(),
            dequeue_retry: presets::dequeue(),
            seed: None,
            pulse: Pulse::default(),
        }
    }
}

impl Settings {
    /// Goes by `worker` on its leases.
    pub fn with_worker(self, worker: WorkerId) -> Self {
        Self { worker, ..self }
    }

    /// Claims from `queues` only; none means all.
    pub fn with_queues(self, queues: impl IntoIterator<Item = Queue>) -> Self {
        let queues = queues.into_iter().collect();
        Self { queues, ..self }
    }

    /// Runs at most `concurrency` attempts at once.
    pub fn with_concurrency(self, concurrency: usize) -> Self {
        Self { concurrency, ..self }
    }

    /// Takes leases for `lease`.
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Renews leases every `heartbeat`; none is a third of the lease.
    pub fn with_heartbeat(self, heartbeat: impl Into<Option<Duration>>) -> Self {
        let heartbeat = heartbeat.into();
        Self { heartbeat, ..self }
    }

    /// Looks for orphans every `reclaim_every`.
    pub fn with_reclaim_every(self, reclaim_every: Duration) -> Self {
        Self { reclaim_every, ..self }
    }

    /// Removes ended jobs every `prune_every`.
    pub fn with_prune_every(self, prune_every: Duration) -> Self {
        Self { prune_every, ..self }
    }

    /// Looks for due jobs every `poll`, wake-up or not.
    pub fn with_poll(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    /// Ends attempts after `attempt_timeout` unless their job or policy says otherwise.
    pub fn with_attempt_timeout(self, attempt_timeout: impl Into<Option<Duration>>) -> Self {
        let attempt_timeout = attempt_timeout.into();
        Self { attempt_timeout, ..self }
    }

    /// Waits up to `drain` for running handlers at an orderly shutdown; zero releases them at once.
    pub fn with_drain(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }

    /// Keeps ended jobs for `retention`.
    pub fn with_retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// Logs the attempts that `log` names.
    pub fn with_log(self, log: KeepLog) -> Self {
        Self { log, ..self }
    }

    /// Logs the attempts of `queue` that `log` names.
    pub fn with_log_of(mut self, queue: Queue, log: KeepLog) -> Self {
        self.log_by_queue.insert(queue, log);
        self
    }

    /// Retries settle, extend, reclaim and prune by `policy`.
    pub fn with_storage_retry(self, policy: Policy) -> Self {
        Self { storage_retry: policy, ..self }
    }

    /// Retries claim by `policy`.
    pub fn with_dequeue_retry(self, policy: Policy) -> Self {
        Self { dequeue_retry: policy, ..self }
    }

    /// Changes how often storage operations are tried, and nothing else; zero is refused.
    pub fn with_retry_attempts(mut self, attempts: u32) -> Result<Self, Invalid> {
        self.storage_retry.max_attempts = MaxAttempts::new(attempts)?;
        Ok(self)
    }

    /// Tries every operation of the store once.
    pub fn disable_retry(self) -> Self {
        Self { storage_retry: presets::once(), dequeue_retry: presets::once(), ..self }
    }

    /// Draws all randomness from `seed`.
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Sends heartbeats from `pulse`.
    pub fn with_pulse(self, pulse: Pulse) -> Self {
        Self { pulse, ..self }
    }

    /// Refuses settings under which a worker could not work, naming the field.
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
        for (field, span) in [
            ("heartbeat", Some(self.heartbeat())),
            ("reclaim_every", Some(self.reclaim_every)),
            ("prune_every", Some(self.prune_every)),
            ("poll", Some(self.poll)),
            ("attempt_timeout", self.attempt_timeout),
        ] {
            if span == Some(Duration::ZERO) {
                return Err(Invalid::new(field, "must be longer than zero"));
            }
        }
        Ok(())
    }

    /// The time from one heartbeat to the next, as given or by default.
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat.unwrap_or(self.lease / 3)
    }

    /// Which attempts of `queue` go into the log.
    pub fn log_of(&self, queue: &Queue) -> KeepLog {
        self.log_by_queue.get(queue).copied().unwrap_or(self.log)
    }
}

/// The process says where to look; the rest tells several workers of one process, or of several hosts, apart.
fn unique_name() -> WorkerId {
    let name = format!("worker-{}-{:08x}", std::process::id(), fastrand::u32(..));
    WorkerId::new(name).unwrap_or_else(|_| unreachable!("a short printable name is legal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn an_illegal_combination_names_its_field() {
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
    fn a_heartbeat_is_a_third_of_the_lease_unless_given() {
        assert_eq!(Settings::default().heartbeat(), 10 * S);
        assert_eq!(Settings::default().with_heartbeat(S).heartbeat(), S);
    }

    #[test]
    fn each_way_to_set_retry_changes_what_it_names_and_nothing_else() {
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
    fn a_queue_may_log_otherwise() {
        let audit = Queue::new("audit").unwrap();
        let settings = Settings::default().with_log_of(audit.clone(), KeepLog::All);
        assert_eq!(settings.log_of(&audit), KeepLog::All);
        assert_eq!(settings.log_of(&Queue::default()), KeepLog::Failures);
    }
}
