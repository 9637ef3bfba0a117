//! Claims due jobs in batches as large as there are free slots, starts their attempts, and sleeps exactly until more jobs are
//! due.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::limits::{BATCH_ITEMS_MAX, PAYLOAD_BYTES_MAX};
use redrive_core::store::{ClaimRequest, ClaimedJobs, Store, StoreError, UnreadableJob, WakeToken};
use redrive_core::{Job, Outcome, Timestamp};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::Instrument;

use crate::engine::{Engine, ErrorChain, StoreTime, lock};
use crate::execute::{RunningAttempt, execute};
use crate::lease_table::AttemptHandle;
use crate::node_pause::ClaimPermission;
use crate::settle::EndedAttempt;

/// How long a claim may be delayed to make the batch larger. It is the resolution of timers.
const BATCH_DELAY: Duration = Duration::from_millis(1);

/// A claim asks for about as many jobs as have payloads of this size together, so that an answer occupies a bounded amount of
/// memory. The size of the next payloads is estimated by the last ones.
const CLAIM_PAYLOAD_BYTES: usize = 16 * 1024 * 1024;

/// The tasks of the running attempts. When the worker is dropped the set is taken out, and no more attempts can start.
pub(crate) type RunningAttempts = Mutex<Option<JoinSet<()>>>;

/// How many claims may run at the same time during a backlog, in addition to the usual one. The store can work on one claim while
/// the jobs of another are read and started.
pub(crate) const BACKLOG_CLAIMS: usize = 2;

/// Tells whether more jobs are due than one claim may take, and how many jobs that is.
#[derive(Default)]
pub(crate) struct DueBacklog {
    /// Notified by each claim that left due jobs behind.
    notify: Notify,
    /// The mean size of the payloads in the last claim. 0 before the first claim.
    payload_bytes: AtomicUsize,
}

impl DueBacklog {
    /// How many jobs one claim asks for at most.
    fn batch_items(&self) -> usize {
        // Before the first claim the size is not known, so it is assumed to be the largest.
        let payload_bytes = match self.payload_bytes.load(Ordering::Relaxed) {
            0 => PAYLOAD_BYTES_MAX,
            bytes => bytes,
        };
        (CLAIM_PAYLOAD_BYTES / payload_bytes).clamp(1, BATCH_ITEMS_MAX)
    }

    fn record_claim(&self, claimed: &ClaimedJobs) {
        let count = claimed.jobs.len();
        if count == 0 {
            return;
        }
        let is_full = count >= self.batch_items();
        let bytes: usize = claimed.jobs.iter().map(|job| job.payload.len()).sum();
        self.payload_bytes.store((bytes / count).max(1), Ordering::Relaxed);
        if is_full && claimed.has_more_due() {
            self.notify.notify_one();
        }
    }
}

/// Claims jobs until the shutdown begins, each as soon as it is due and a slot is free.
pub(crate) async fn run(engine: Arc<Engine>, attempts: Arc<RunningAttempts>, backlog: Arc<DueBacklog>) {
    // A request without kinds would claim jobs of every kind.
    if engine.handlers.is_empty() {
        return engine.stop.cancelled().await;
    }
    let mut pacer = ClaimPacer::default();
    while let Some(slots) = pacer.wait_for_slots(&engine, backlog.batch_items()).await {
        let sent = Instant::now();
        match claim(&engine, slots.limit()).await {
            Ok(claimed) => {
                backlog.record_claim(&claimed);
                let next = pacer.plan_next(&engine, &claimed, sent);
                start_attempts(&engine, &attempts, slots, claimed).await;
                next.wait(&engine).await;
            }
            Err(error) => {
                drop(slots);
                tracing::error!(error = %ErrorChain(&error), "claim failed");
                wait_after_error(&engine).await;
            }
        }
    }
}

/// Makes an additional claim each time there is a backlog and the slots for a whole batch are free.
pub(crate) async fn run_during_backlog(
    engine: Arc<Engine>,
    attempts: Arc<RunningAttempts>,
    backlog: Arc<DueBacklog>,
) {
    loop {
        tokio::select! {
            biased;
            () = engine.stop.cancelled() => return,
            () = backlog.notify.notified() => {}
        }
        let Some(slots) = ClaimSlots::for_whole_batch(&engine, backlog.batch_items()) else { continue };
        match claim(&engine, slots.limit()).await {
            Ok(claimed) => {
                backlog.record_claim(&claimed);
                start_attempts(&engine, &attempts, slots, claimed).await;
            }
            // The other claims show how long the problem lasts.
            Err(error) => tracing::error!(error = %ErrorChain(&error), "claim failed"),
        }
    }
}

async fn claim(engine: &Engine, limit: usize) -> Result<ClaimedJobs, StoreError> {
    let request = ClaimRequest {
        worker: engine.settings.worker.clone(),
        queues: engine.settings.queues.clone(),
        kinds: engine.kinds(),
        limit,
        lease: engine.settings.lease,
    };
    engine.intake_store.claim(request).await
}

/// Waits after an error, even if the store's retries have waited already, so that claims never become a busy loop.
async fn wait_after_error(engine: &Engine) {
    tokio::select! {
        biased;
        () = engine.stop.cancelled() => {}
        () = sleep(engine.settings.poll) => {}
    }
}

/// The slots for the jobs of one claim.
struct ClaimSlots {
    permits: OwnedSemaphorePermit,
    /// The permit of the first job, if that job probes whether the node's problem is over.
    probe: Option<OwnedSemaphorePermit>,
}

impl ClaimSlots {
    /// Reserves the slots for a whole batch, if they are free and the node has no problem.
    fn for_whole_batch(engine: &Engine, batch_items: usize) -> Option<Self> {
        let slots = u32::try_from(batch_items).unwrap_or(u32::MAX);
        if engine.node_pause.deferral().is_some() {
            return None;
        }
        let permits = engine.slots.clone().try_acquire_many_owned(slots).ok()?;
        Some(Self { permits, probe: None })
    }

    fn limit(&self) -> usize {
        if self.probe.is_some() { 1 } else { self.permits.num_permits() }
    }
}

/// Decides when to claim, and how many jobs.
#[derive(Default)]
struct ClaimPacer {
    last_claim: Option<Instant>,
    /// Consecutive claims that returned no job although some were due.
    empty_claims: u32,
}

impl ClaimPacer {
    /// Waits until the node may claim, then reserves slots. Returns none once the shutdown has begun.
    async fn wait_for_slots(&self, engine: &Engine, batch_items: usize) -> Option<ClaimSlots> {
        loop {
            let permission = tokio::select! {
                biased;
                () = engine.stop.cancelled() => return None,
                permission = engine.node_pause.claim_permission() => permission,
            };
            let permits = tokio::select! {
                biased;
                () = engine.stop.cancelled() => return None,
                permits = self.reserve_slots(engine, batch_items) => permits?,
            };
            match permission {
                ClaimPermission::Probe(probe) => return Some(ClaimSlots { permits, probe: Some(probe) }),
                // The wait for slots may have been long, and a problem may have occurred during it.
                ClaimPermission::Unlimited if engine.node_pause.deferral().is_some() => {}
                ClaimPermission::Unlimited => return Some(ClaimSlots { permits, probe: None }),
            }
        }
    }

    /// Reserves the free slots. If few are free, waits briefly for more: a claim costs one write, for one job or a thousand.
    async fn reserve_slots(&self, engine: &Engine, batch_items: usize) -> Option<OwnedSemaphorePermit> {
        let slots = &engine.slots;
        let enough = (engine.settings.concurrency / 2).clamp(1, batch_items);
        let mut deadline = self.last_claim.map(|last| last + BATCH_DELAY);
        if slots.available_permits() == 0 {
            // Attempts tend to end together: after the first one, others are likely to follow.
            drop(slots.acquire().await);
            deadline = Some(Instant::now() + BATCH_DELAY);
        }
        if slots.available_permits() < enough
            && let Some(deadline) = deadline
            && deadline > Instant::now()
        {
            let _ = timeout_at(deadline, slots.acquire_many(u32::try_from(enough).unwrap_or(u32::MAX))).await;
        }
        let free = slots.available_permits().clamp(1, batch_items);
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        slots.clone().acquire_many_owned(free).await.ok()
    }

    /// Decides when to claim again after a claim that was sent at `sent`.
    fn plan_next(&mut self, engine: &Engine, claimed: &ClaimedJobs, sent: Instant) -> NextClaim {
        self.last_claim = Some(sent);
        let more_due = claimed.has_more_due();
        let count = claimed.jobs.len() + claimed.unreadable.len();
        self.empty_claims = if more_due && count == 0 { self.empty_claims.saturating_add(1) } else { 0 };
        if more_due && count > 0 {
            return NextClaim::Now;
        }
        let wait = match claimed.next_due {
            // Other workers are claiming the due jobs: try again soon, but less and less often.
            Some(_) if more_due => BATCH_DELAY.saturating_mul(1 << self.empty_claims.min(20)),
            Some(next) => next.since(claimed.now),
            None => engine.settings.poll,
        };
        // The wait starts before the call: to claim too early costs an empty claim, to claim too late would delay a job.
        NextClaim::Later { deadline: sent + wait.min(engine.settings.poll), wake: claimed.wake }
    }
}

/// When to claim again.
enum NextClaim {
    Now,
    /// At the deadline, or when the store signals new jobs.
    Later {
        deadline: Instant,
        wake: WakeToken,
    },
}

impl NextClaim {
    async fn wait(self, engine: &Engine) {
        match self {
            Self::Now => {}
            Self::Later { deadline, .. } if deadline <= Instant::now() => {}
            Self::Later { deadline, wake } => tokio::select! {
                biased;
                () = engine.stop.cancelled() => {}
                () = engine.intake_store.wait(wake) => {}
                () = sleep_until(deadline) => {}
            },
        }
    }
}

/// Starts a task for each job, so that a slow job delays no other.
async fn start_attempts(
    engine: &Arc<Engine>,
    running: &RunningAttempts,
    slots: ClaimSlots,
    claimed: ClaimedJobs,
) {
    let ClaimSlots { mut permits, mut probe } = slots;
    let time = StoreTime::from_response(claimed.now);
    tracing::debug!(count = claimed.jobs.len(), unreadable = claimed.unreadable.len(), "claim");
    engine.counts.claimed.add(claimed.jobs.len() + claimed.unreadable.len());
    let mut attempts = Vec::with_capacity(claimed.jobs.len());
    for job in claimed.jobs {
        let handle = Arc::new(AttemptHandle::new(job.lease));
        let job = Arc::new(job);
        // If a store returns more jobs than requested, the surplus gets no slot, and its leases run out.
        if let Some(slot) = permits.split(1) {
            let attempt = RunningAttempt::new(engine.clone(), job, handle, time, slot);
            attempts.push(attempt.with_probe(probe.take()));
        }
    }
    drop((permits, probe));
    let jobs: Vec<Arc<Job>> = attempts.iter().map(|attempt| attempt.job.clone()).collect();
    engine.observer.claimed(&jobs, claimed.now);
    engine.leases.add(attempts.iter().map(|attempt| (attempt.job.lease(), attempt.handle.clone())));
    if engine.stop.is_cancelled() {
        // The shutdown began during the claim.
        for attempt in attempts {
            attempt.release().await;
        }
    } else {
        spawn(running, attempts);
    }
    reject_unreadable(engine, claimed.unreadable, claimed.now).await;
}

fn spawn(running: &RunningAttempts, attempts: Vec<RunningAttempt>) {
    if let Some(tasks) = &mut *lock(running) {
        for attempt in attempts {
            let span = attempt_span(&attempt.job);
            // Boxed, because a future of this size would be moved several times on its way into its task.
            tasks.spawn(Box::pin(execute(attempt).instrument(span)));
        }
        while tasks.try_join_next().is_some() {}
    }
}

fn attempt_span(job: &Job) -> tracing::Span {
    tracing::info_span!("execute", job = %job.id, kind = job.kind.as_str(), run = job.run, attempt = job.attempt)
}

/// Settles damaged rows as rejected, so that they become dead letters that an operator sees.
pub(crate) async fn reject_unreadable(engine: &Engine, rows: Vec<UnreadableJob>, now: Timestamp) {
    engine.leases.add(rows.iter().map(|row| (row.lease, AttemptHandle::without_handler())));
    for row in rows {
        let outcome = Outcome::reject(format!("the job cannot be read: {}", row.problem));
        let ended = EndedAttempt {
            lease: row.lease,
            run: row.run,
            attempt: row.attempt,
            job: None,
            started_at: now,
            duration: Duration::ZERO,
            note: None,
        };
        let verdict = engine.decide_without_policy(&outcome);
        let settlement = engine.build_settlement(ended, &outcome, verdict);
        engine.submit(None, settlement).await;
    }
}
