//! The trait of a store: every step in the life of a job, in batches, fenced by epochs.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::invalid::Invalid;
use crate::job::{Attempt, AttemptReport, Job, JobId, Lease, NewJob};
use crate::lifecycle::State;
use crate::limits::{BATCH_ITEMS_MAX, DETAIL_BYTES_MAX, FOLLOW_UPS_MAX, OUTPUT_BYTES_MAX, check_text};
use crate::names::{Kind, Queue, WorkerId};
use crate::records::RecordStore;
use crate::steps::{Steps, WaitCondition};
use crate::time::Timestamp;
use crate::transfer::Transfer;
use crate::verdict::Verdict;

pub use crate::listing::{Cursor, Filter, Page, PageRequest, SearchPage, search_by_listing};

/// Every operation on jobs. Each method is one atomic write or read. Results come in the order of the request.
///
/// A store that spreads jobs over shards applies a batch shard by shard, each part in one atomic write, and claims jobs
/// of equal priority from the shards in rotation. One shard holds everything that belongs to a job, and all keys of its
/// tenant, unless the address of the store says otherwise.
///
/// A store applies verdicts and decides nothing: it never compares attempts with a limit.
#[async_trait]
pub trait Store: Send + Sync {
    /// Adds jobs. When it returns, they are as durable as the store is. One invalid job rejects the whole batch.
    ///
    /// A job whose id exists, or whose tenant and idempotency key exist, is not added again, not even within one batch. A
    /// [`crate::Unique`] key follows its rule.
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError>;

    /// Leases due jobs (`next_run_at <= now`): highest priority first, then earliest due, then smallest id. The same write raises
    /// the epoch and charges an attempt. The lease lasts as long as the job asks for, or else as long as the request says. Skips
    /// queues with a [`crate::records::PAUSED`] record, and claims nothing from a store with a [`crate::transfer::SEALED`] record.
    ///
    /// Never exceeds the [`crate::QueueLimits`] of a queue or partition key, across all concurrent claims. Skips a job whose queue
    /// has no free slot. A job whose partition key has no free slot, or that must run after another job, starts to wait
    /// ([`crate::WaitCondition::FreeSlot`]). A job whose partition key has used up its rate becomes due when the rate allows it.
    /// None of these costs an attempt.
    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError>;

    /// Applies [`Verdict::effect`] under each lease and writes the attempt log in the same write. A settlement is valid while the job
    /// is running in the lease's epoch, even after the lease has run out. A lost lease changes nothing.
    ///
    /// If the job held a slot of its partition key, the next job that waits for the slot becomes due.
    ///
    /// A job that ends as cancelled or dead ends everything below it, as [`Store::cancel`] does.
    ///
    /// The same write enqueues the follow-ups, as [`Store::enqueue`] does. A lost lease enqueues none.
    ///
    /// `next_run_at` changes only if the job does not end, and `wait` only by a retry. While a job is waiting, `next_run_at` is the
    /// time at which it started to wait. `awaits` becomes the verdict's condition. The lease ends. `worker`, `last_error` and
    /// `last_status` stay as evidence.
    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError>;

    /// Renews leases for `lease` from now, including leases that have run out but were not reclaimed. Reports lost leases and
    /// requested cancels.
    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError>;

    /// Takes over leases of these kinds that have run out (`lease_until <= now`), the oldest first, ties by id, under a new epoch and
    /// without charging an attempt. `worker` and `started_at` keep the values of the lost attempt, because the settlement logs it.
    ///
    /// Skips the leases that the caller still holds ([`ReclaimRequest::held`]), even if they have run out: after a suspend or a jump
    /// of the clock, a process must not take jobs from itself.
    ///
    /// A pause does not stop it. A [`crate::transfer::SEALED`] record does: moved jobs are reclaimed in the new store.
    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError>;

    /// Ends jobs that are not running. For running jobs it records a request, which the worker receives from [`Store::extend`].
    ///
    /// Each result describes its job before the call ended the descendants of the other jobs.
    ///
    /// A job that had not ended ends everything below it: its live children, their children, and so on, except
    /// [`crate::Parent::detached`] children and everything below those. All of this is complete when the call returns. A store that
    /// needs several writes leaves a mark in the first one, so that [`crate::Steps::sweep`] can finish after a crash.
    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError>;

    /// Gives dead jobs a new run that is due at once. Resets attempts, wait, time budget, reason, output and cancel request. Keeps
    /// the attempt log and `last_error`.
    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError>;

    /// Makes pending and retrying jobs due now. The time budget of a job that was not yet due starts now.
    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError>;

    /// Removes dead jobs and their attempt logs.
    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError>;

    /// For each job, the existing job with the same id, or with the same tenant and idempotency key: the result that
    /// [`Store::enqueue`] would return, or none. Adds and reserves nothing.
    ///
    /// With this, a repeated request does not have to prepare its job again. The payload is ignored and may be empty.
    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError>;

    /// Jobs by id. A damaged row fails the call with [`StoreError::Corrupt`], which names the job and the field.
    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError>;

    /// The jobs that match, newest id first.
    ///
    /// A row that cannot be read is left out, here and in [`Store::search`], and logged with its id. The page may then
    /// be short, or even empty, although it has a `next`.
    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError>;

    /// The jobs that match, newest id first, among at most `examined_max` jobs. The cost is bounded for every filter and any number of
    /// jobs. A page may be short, or even empty, while `next` points to the next page. No job appears twice.
    ///
    /// A store without a faster way uses [`search_by_listing`].
    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError>;

    /// The attempts of a job, newest first.
    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError>;

    /// Removes up to `limit` jobs, at most [`BATCH_ITEMS_MAX`], whose retention is over, and their attempt logs.
    /// Returns their number. Children stay while their parent is live. Removes state by state in the order of
    /// [`Retention::by_state`], within a state the jobs that ended first, ties by id.
    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError>;

    /// Returns when a job may have become claimable since [`Store::claim`] returned `seen`.
    ///
    /// Enqueue, redrive, run-now, follow-ups, a settlement into a claimable state and every write of a record wake the callers. A
    /// wake-up can be lost, so callers also poll. Jobs that become due by time do not wake anyone.
    async fn wait(&self, seen: WakeToken);

    /// Waits until the number of cancel requests for running jobs, from any process, differs from `seen`, and returns it. Workers then
    /// renew their leases, and the results name the jobs. If a request is missed, the next heartbeat finds it.
    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken;

    /// Counts by queue and state, and the due time of the oldest due job.
    async fn stats(&self) -> Result<Stats, StoreError>;
}

/// A store with every trait that the engine needs.
pub trait Backend: Store + Steps + RecordStore + Transfer {}
impl<T: Store + Steps + RecordStore + Transfer + ?Sized> Backend for T {}

/// The result of enqueueing one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnqueueResult {
    /// The job is new.
    Created(JobId),
    /// This job has the same id, or is the same request under the same key.
    Existing(JobId),
    /// This job has the same key, but is a different request.
    Conflict(JobId),
    /// This job had not started. It now has the content of the new request.
    Replaced(JobId),
}

impl EnqueueResult {
    /// The new or existing job.
    pub fn id(self) -> JobId {
        match self {
            Self::Created(id) | Self::Existing(id) | Self::Conflict(id) | Self::Replaced(id) => id,
        }
    }
}

/// The jobs that a claim asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRequest {
    /// The worker that claims.
    pub worker: WorkerId,
    /// Claim from these queues. Empty means all.
    pub queues: Vec<Queue>,
    /// Claim jobs of these kinds. Empty means all.
    pub kinds: Vec<Kind>,
    /// Claim at most this many jobs, up to [`BATCH_ITEMS_MAX`].
    pub limit: usize,
    /// How long the leases last.
    pub lease: Duration,
}

/// The leases that a reclaim asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct ReclaimRequest {
    /// Reclaim jobs of these kinds. Empty means all.
    pub kinds: Vec<Kind>,
    /// Reclaim at most this many jobs, up to [`BATCH_ITEMS_MAX`].
    pub limit: usize,
    /// How long the new leases last. They only have to cover the settlement.
    pub lease: Duration,
    /// The leases that the caller's process holds, in any number and order. Each protects its own epoch only: a lost lease does
    /// not protect the lease that replaced it.
    pub held: Vec<Lease>,
}

/// The jobs that a claim or reclaim leased.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedJobs {
    /// The jobs, as they are after the claim.
    pub jobs: Vec<Job>,
    /// Damaged rows. They are leased like the others, so that the worker can settle them as rejected.
    pub unreadable: Vec<UnreadableJob>,
    /// The store's time.
    pub now: Timestamp,
    /// When the next matching job is due. At most `now` if more jobs are due already. None after a reclaim.
    pub next_due: Option<Timestamp>,
    /// The argument for [`Store::wait`] if there was nothing to do.
    pub wake: WakeToken,
}

impl ClaimedJobs {
    /// Whether further jobs are due already.
    pub fn has_more_due(&self) -> bool {
        self.next_due.is_some_and(|due| due <= self.now)
    }
}

/// A leased row that is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableJob {
    /// Its lease.
    pub lease: Lease,
    /// The number of the run. 1 if it cannot be read.
    pub run: u32,
    /// The number of the attempt. 0 if it cannot be read.
    pub attempt: u32,
    /// What is wrong with it.
    pub problem: String,
}

/// A position in the sequence of a store's wake-ups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct WakeToken(pub u64);

/// A verdict to apply under a lease, with its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// The decision about the attempt.
    pub verdict: Verdict,
    /// The error to store with the job. None keeps the previous error.
    pub error: Option<String>,
    /// The HTTP status or gRPC code of the response. None keeps the previous one.
    pub status: Option<u16>,
    /// The report for the attempt log. None writes no log entry.
    pub entry: Option<AttemptReport>,
    /// Jobs to enqueue in the same write, at most [`FOLLOW_UPS_MAX`].
    pub follow_ups: Vec<NewJob>,
}

impl Settlement {
    /// A settlement with `verdict` and no evidence.
    pub fn new(lease: Lease, verdict: Verdict) -> Self {
        Self { lease, verdict, error: None, status: None, entry: None, follow_ups: Vec::new() }
    }

    /// Whether this is a success without output, evidence or follow-ups, as most settlements are. A requested cancel does not
    /// change it.
    pub fn is_plain(&self) -> bool {
        let Self { lease: _, verdict, error, status, entry, follow_ups } = self;
        *verdict == Verdict::Complete(None)
            && error.is_none()
            && status.is_none()
            && entry.is_none()
            && follow_ups.is_empty()
    }

    /// Checks the limits that every store has.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.follow_ups.len() > FOLLOW_UPS_MAX {
            return Err(Invalid::new("followUps", format!("at most {FOLLOW_UPS_MAX} are allowed")));
        }
        let detail = self.entry.as_ref().and_then(|entry| entry.detail.as_ref());
        if detail.is_some_and(|detail| detail.len() > DETAIL_BYTES_MAX) {
            return Err(Invalid::new("detail", format!("at most {DETAIL_BYTES_MAX} bytes are allowed")));
        }
        check_text("error", self.error.as_deref())?;
        self.verdict.awaits().map_or(Ok(()), WaitCondition::check)?;
        if let Some(AttemptReport { outcome, error, detail, .. }) = &self.entry {
            check_text("outcome", Some(outcome))?;
            check_text("error", error.as_deref())?;
            check_text("detail", detail.as_deref())?;
        }
        self.follow_ups.iter().try_for_each(NewJob::check)?;
        if self.verdict.output().is_some_and(|output| output.len() > OUTPUT_BYTES_MAX) {
            return Err(Invalid::new("output", format!("at most {OUTPUT_BYTES_MAX} bytes are allowed")));
        }
        Ok(())
    }
}

/// The result of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleResult {
    /// The settlement took effect. The job is now in this state.
    Applied(State),
    /// Another worker holds the lease or has settled it. Nothing changed.
    LeaseLost,
}

/// The result of renewing a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtendResult {
    /// The lease is renewed.
    Renewed,
    /// The lease is renewed, and someone has cancelled the job: the worker should stop it.
    CancelRequested,
    /// Another worker holds the lease or has settled it.
    LeaseLost,
}

/// The result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelResult {
    /// The job is cancelled.
    Done,
    /// The job is running. Its worker will stop it.
    Requested,
    /// The job had ended before, in this state.
    Ended(State),
    /// There is no such job.
    NotFound,
}

/// The result of a redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedriveResult {
    /// The job has a new run.
    Done,
    /// The job is in this state, and not dead.
    NotDead(State),
    /// There is no such job.
    NotFound,
}

/// The result of making a job due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunNowResult {
    /// The job is due.
    Done,
    /// The job is in this state, and not pending or retrying.
    NotWaiting(State),
    /// There is no such job.
    NotFound,
}

/// The result of a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardResult {
    /// The job is removed.
    Done,
    /// The job is in this state, and not dead.
    NotDead(State),
    /// There is no such job.
    NotFound,
}

/// How long a store keeps jobs after they have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Succeeded jobs.
    pub succeeded: Duration,
    /// Dead jobs.
    pub dead: Duration,
    /// Cancelled jobs.
    pub cancelled: Duration,
}

impl Default for Retention {
    /// 7, 30 and 7 days.
    fn default() -> Self {
        let days = |n: u64| Duration::from_secs(n * 24 * 60 * 60);
        Self { succeeded: days(7), dead: days(30), cancelled: days(7) }
    }
}

impl Retention {
    /// The final states with their retention.
    pub fn by_state(&self) -> [(State, Duration); 3] {
        [(State::Succeeded, self.succeeded), (State::Dead, self.dead), (State::Cancelled, self.cancelled)]
    }
}

/// The number of jobs by queue and state, and the oldest due time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// The store's time.
    pub now: Timestamp,
    /// Jobs by queue and state. Zero counts are absent.
    pub counts: BTreeMap<(Queue, State), u64>,
    /// The due time of the job that has been due longest. None if no job is due.
    pub oldest_due: Option<Timestamp>,
}

impl Stats {
    /// Jobs in `state` over all queues.
    pub fn in_state(&self, state: State) -> u64 {
        self.counts.iter().filter(|((_, s), _)| *s == state).map(|(_, n)| n).sum()
    }
}

/// Rejects a batch with more than [`BATCH_ITEMS_MAX`] items.
pub fn check_batch(items: usize) -> Result<(), Invalid> {
    if items <= BATCH_ITEMS_MAX {
        Ok(())
    } else {
        Err(Invalid::new("batch", format!("has {items} items, at most {BATCH_ITEMS_MAX} are allowed")))
    }
}

/// Why a call to a store failed. Each variant tells the caller what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store does not answer now: try again.
    #[error("the store is unavailable for now")]
    Unavailable(#[source] BoxError),
    /// Another transaction conflicted (deadlock, lock timeout, statement timeout): try again.
    #[error("the store was busy with a conflicting write")]
    Busy(#[source] BoxError),
    /// The disk or memory of the store is full: free some.
    #[error("the store is full; free disk space or raise its size limit, nothing acknowledged is lost")]
    Full(#[source] BoxError),
    /// The store cannot be opened or written in its present condition. The message says what to do.
    #[error("{0}")]
    Refused(String),
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Stored data is damaged: restore a backup, or repair the place that the message names.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
    /// A defect, or a failure that a retry does not cure.
    #[error("the store failed")]
    Failed(#[source] BoxError),
}

/// The cause behind a [`StoreError`].
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl StoreError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Busy(_) => true,
            Self::Full(_) | Self::Refused(_) | Self::Invalid(_) | Self::Corrupt(_) | Self::Failed(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transient_errors_are_retried() {
        let cause = || BoxError::from("x");
        assert!(StoreError::Unavailable(cause()).is_transient() && StoreError::Busy(cause()).is_transient());
        for error in [
            StoreError::Full(cause()),
            StoreError::Refused("x".into()),
            StoreError::Invalid(Invalid::new("x", "y")),
            StoreError::Corrupt("x".into()),
            StoreError::Failed(cause()),
        ] {
            assert!(!error.is_transient(), "{error}");
        }
    }
}
