//! What a store must do: the life of a job, in batches, fenced by epochs.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::invalid::Invalid;
use crate::job::{Attempt, Entry, Job, JobId, Lease, NewJob};
use crate::lifecycle::State;
use crate::limits::{BATCH_ITEMS_MAX, DETAIL_BYTES_MAX, FOLLOW_UPS_MAX, OUTPUT_BYTES_MAX, check_text};
use crate::names::{Kind, Queue, WorkerId};
use crate::records::Records;
use crate::steps::{Await, Steps};
use crate::time::Timestamp;
use crate::transfer::Transfer;
use crate::verdict::Verdict;

pub use crate::listing::{Cursor, Filter, Looked, Page, PageRequest, look_by_lists};

/// The life of a job. Each method is one atomic write or read; results stand in the order of what was asked.
///
/// A store that spreads jobs over partitions applies a batch partition by partition, each in one atomic write, and takes
/// jobs of equal priority from partitions in turn. Everything that belongs to one job, and every name within its tenant, is
/// in one partition unless its address says otherwise.
///
/// A store applies what it is told and decides nothing: it never compares attempts with a limit.
#[async_trait]
pub trait Store: Send + Sync {
    /// Adds jobs. When it returns they are as durable as the store is. One illegal job refuses the whole batch.
    ///
    /// A job whose id exists, or whose tenant and key exist, is not added again, within the batch too. One with a
    /// [`crate::Unique`] key goes by its rule.
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError>;

    /// Leases due jobs (`next_run_at <= now`): highest priority first, then earliest due, then smallest id; raises the
    /// epoch and charges an attempt in the same write. A job's own lease goes before the request's. Never from a queue with a [`crate::records::PAUSED`] record,
    /// and nothing at all from a store with a [`crate::transfer::SEALED`] one.
    ///
    /// Never beyond a [`crate::Quota`] of the queue or of a partition's key, across all claims at once. A job for which its
    /// queue has no room is passed over. One that its partition has no room for, or that must come after another, is set
    /// aside until it is its [`crate::Await::Turn`]; where the key's rate is used up it is put off until that allows for it.
    /// Neither costs an attempt.
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError>;

    /// Applies [`Verdict::effect`] under each lease and writes the log entry with it. Valid as long as the job is running
    /// in that epoch, however late; a lease that was lost changes nothing.
    ///
    /// Whose turn it is in the job's partition afterwards is made due.
    ///
    /// A job that ends as cancelled or dead ends everything below it, as [`Store::cancel`] does.
    ///
    /// Follow-ups are enqueued in the same write, as by [`Store::enqueue`]; under a lost lease they are not.
    ///
    /// `next_run_at` and `wait` change only when the job goes on, `wait` only by a retry; while a job is waiting,
    /// `next_run_at` says since when. `awaits` is what the verdict says. The lease ends; `worker`, `last_error` and `last_status` stay as evidence.
    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError>;

    /// Renews leases for `lease` from now, those too that have run out but were not taken over, and brings back what
    /// the holder must know.
    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError>;

    /// Takes over leases of these kinds that have run out (`lease_until <= now`), longest ago first, ties by id, under a new
    /// epoch, without charging an attempt. `worker` and `started_at` stay those of the lost attempt, which the settlement logs.
    ///
    /// Leaves alone the leases that the caller still holds ([`ReclaimRequest::held`]), however late they are: after a suspend or
    /// a jump of the clock a process must not take jobs from itself.
    ///
    /// A pause does not stop it, a [`crate::transfer::SEALED`] record does: what is moved is taken over where it goes.
    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError>;

    /// Ends jobs that are not running; requests the end of those that are, which the answer to [`Store::extend`] tells their
    /// workers.
    ///
    /// The answers say how each job stood before anything below the others was ended.
    ///
    /// A job that had not ended ends everything below it: its children that have not ended, and theirs, except those that are
    /// [`crate::Parent::detached`] and what is below them. That is done when this returns. A store may need several writes for
    /// it: the first one then leaves a mark, so that [`crate::Steps::sweep`] finishes after a crash.
    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError>;

    /// Gives dead jobs a fresh run, due at once: attempts, wait, budget, reason, output and cancel request start again;
    /// the log and `last_error` stay.
    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError>;

    /// Makes jobs due now that wait for their time. The budget of one that was not yet due counts from now.
    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError>;

    /// Removes dead jobs with their logs.
    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError>;

    /// The jobs that stand in the way of an enqueue, by id or by tenant and idempotency key: what [`Store::enqueue`] would
    /// answer for each, or none where it would look no further. It adds nothing and makes no promise: an enqueue decides anew.
    ///
    /// It spares a repeated request what it would cost to prepare its job. Only what names and places a job is looked at, so
    /// its payload may be left out.
    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError>;

    /// Jobs by id. A row that cannot be read fails the call with [`StoreError::Corrupt`], which names the job and the field.
    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError>;

    /// Jobs that match, newest id first.
    ///
    /// A row that cannot be read is left out, here and in [`Store::look`], and logged with its id. The page may then be short,
    /// or empty, while its `next` says where to go on.
    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError>;

    /// Jobs that match, newest id first, out of at most `most` that are looked at: its cost is bounded whatever the filter and
    /// however many jobs there are. The page may be short, or empty, while its `next` says where to go on; nothing comes twice.
    ///
    /// A store without a quicker way has [`look_by_lists`].
    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError>;

    /// The attempts of a job, oldest first.
    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError>;

    /// Removes up to `limit` jobs, at most [`BATCH_ITEMS_MAX`], that ended at least their retention ago, with their logs;
    /// says how many. Children stay as long as their parent is there and has not ended. State by state in the order of [`Retention::by_state`], longest ended first, ties by id.
    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError>;

    /// Returns when something may have become claimable since `seen` was handed out by [`Store::claim`].
    ///
    /// Enqueue, redrive, run-now, follow-ups, a settlement into a claimable state and every write of a record wake. A wake-up may be lost:
    /// callers poll as well. It says nothing about jobs that become due by time.
    async fn wait(&self, seen: Wake);

    /// Returns how often the end of a running job was requested, by this process or another, once that differs from `seen`.
    /// Workers renew their leases then, which tells them which job it is. A request may be missed: the next heartbeat finds it.
    async fn wait_for_cancel(&self, seen: Wake) -> Wake;

    /// Counts by queue and state, and how late the oldest due job is.
    async fn stats(&self) -> Result<Stats, StoreError>;
}

/// A store with everything the engine needs.
pub trait Backend: Store + Steps + Records + Transfer {}
impl<T: Store + Steps + Records + Transfer + ?Sized> Backend for T {}

/// The result of enqueueing one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// It is new.
    Created(JobId),
    /// The same id, or the same request under the same key, was there before, as this job.
    Existing(JobId),
    /// The key belongs to a different request, this job.
    Conflict(JobId),
    /// This job had not started and will do what was asked for now.
    Replaced(JobId),
}

impl Enqueued {
    /// The job that the request led to, whichever way.
    pub fn id(self) -> JobId {
        match self {
            Self::Created(id) | Self::Existing(id) | Self::Conflict(id) | Self::Replaced(id) => id,
        }
    }
}

/// Which jobs to lease.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRequest {
    /// Who asks.
    pub worker: WorkerId,
    /// From these queues; none means all.
    pub queues: Vec<Queue>,
    /// Of these kinds; none means all.
    pub kinds: Vec<Kind>,
    /// At most this many, up to [`BATCH_ITEMS_MAX`].
    pub limit: usize,
    /// For how long.
    pub lease: Duration,
}

/// Which leases to take over.
#[derive(Debug, Clone, PartialEq)]
pub struct ReclaimRequest {
    /// Of these kinds; none means all.
    pub kinds: Vec<Kind>,
    /// At most this many, up to [`BATCH_ITEMS_MAX`].
    pub limit: usize,
    /// For how long the new lease lasts; it only has to cover the settlement.
    pub lease: Duration,
    /// Leases that the caller's process holds, in any number and order. One counts only in its own epoch: a lease that was
    /// lost does not protect its successor.
    pub held: Vec<Lease>,
}

/// Jobs under lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// The jobs, each as it is after the claim.
    pub jobs: Vec<Job>,
    /// Rows that could not be read. They are leased like the others, so that the worker can settle them as rejected.
    pub unreadable: Vec<Unreadable>,
    /// The store's time.
    pub now: Timestamp,
    /// When the next matching job is due; at most `now` when more are due already. A reclaim leaves it empty.
    pub next_due: Option<Timestamp>,
    /// What to hand to [`Store::wait`] if there was nothing to do.
    pub wake: Wake,
}

/// A leased row that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its lease.
    pub lease: Lease,
    /// The run, as far as it could be read.
    pub run: u32,
    /// The attempt, as far as it could be read.
    pub attempt: u32,
    /// What is wrong with it.
    pub problem: String,
}

/// How far a store's wake-ups had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Wake(pub u64);

/// A verdict to apply under a lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// What follows the attempt.
    pub verdict: Verdict,
    /// The error to keep on the row; none keeps the last one.
    pub error: Option<String>,
    /// With which number the other side answered; none keeps the last one.
    pub status: Option<u16>,
    /// What to write into the attempt log, if anything.
    pub entry: Option<Entry>,
    /// Jobs to enqueue with it, [`FOLLOW_UPS_MAX`] at most.
    pub follow_ups: Vec<NewJob>,
}

impl Settlement {
    /// One that applies `verdict` and says nothing more.
    pub fn new(lease: Lease, verdict: Verdict) -> Self {
        Self { lease, verdict, error: None, status: None, entry: None, follow_ups: Vec::new() }
    }

    /// Whether it is a success with nothing more to say about it, as most are. It stays one whether a cancel was asked for
    /// or not.
    pub fn is_plain(&self) -> bool {
        let Self { lease: _, verdict, error, status, entry, follow_ups } = self;
        *verdict == Verdict::Complete(None)
            && error.is_none()
            && status.is_none()
            && entry.is_none()
            && follow_ups.is_empty()
    }

    /// Refuses what no store would take.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.follow_ups.len() > FOLLOW_UPS_MAX {
            return Err(Invalid::new("followUps", format!("at most {FOLLOW_UPS_MAX} are allowed")));
        }
        let detail = self.entry.as_ref().and_then(|entry| entry.detail.as_ref());
        if detail.is_some_and(|detail| detail.len() > DETAIL_BYTES_MAX) {
            return Err(Invalid::new("detail", format!("at most {DETAIL_BYTES_MAX} bytes are allowed")));
        }
        check_text("error", self.error.as_deref())?;
        self.verdict.awaits().map_or(Ok(()), Await::check)?;
        if let Some(Entry { outcome, error, detail, .. }) = &self.entry {
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
pub enum Settled {
    /// It took effect; the job is in this state.
    Applied(State),
    /// Someone else holds or has settled the lease; nothing changed.
    LeaseLost,
}

/// The result of renewing a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    /// It goes on.
    Renewed,
    /// It goes on, and someone asked for the job's end.
    CancelRequested,
    /// Someone else holds or has settled it.
    LeaseLost,
}

/// The result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It has ended.
    Done,
    /// It is running; its worker will hear of it.
    Requested,
    /// It had ended before, in this state.
    Ended(State),
    /// There is no such job.
    NotFound,
}

/// The result of a redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redriven {
    /// It has a fresh run.
    Done,
    /// It is not dead but in this state.
    NotDead(State),
    /// There is no such job.
    NotFound,
}

/// The result of making a job due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunNow {
    /// It is due.
    Done,
    /// It does not wait for its time but is in this state.
    NotWaiting(State),
    /// There is no such job.
    NotFound,
}

/// The result of a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// It is gone.
    Done,
    /// It is not dead but in this state.
    NotDead(State),
    /// There is no such job.
    NotFound,
}

/// How long jobs are kept after they have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Those that succeeded.
    pub succeeded: Duration,
    /// Those that are dead.
    pub dead: Duration,
    /// Those that were cancelled.
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

/// Counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// The store's time.
    pub now: Timestamp,
    /// Jobs by queue and state; what is zero is absent.
    pub counts: BTreeMap<(Queue, State), u64>,
    /// When the job that has been due for longest was due.
    pub oldest_due: Option<Timestamp>,
}

impl Stats {
    /// Jobs in `state` over all queues.
    pub fn in_state(&self, state: State) -> u64 {
        self.counts.iter().filter(|((_, s), _)| *s == state).map(|(_, n)| n).sum()
    }
}

/// Refuses a batch that is too large, naming the limit.
pub fn check_batch(items: usize) -> Result<(), Invalid> {
    if items <= BATCH_ITEMS_MAX {
        Ok(())
    } else {
        Err(Invalid::new("batch", format!("has {items} items, at most {BATCH_ITEMS_MAX} are allowed")))
    }
}

/// Why a store could not do what it was asked. The variants are what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It may work in a moment: try again.
    #[error("the store is unavailable for now")]
    Unavailable(#[source] Cause),
    /// Another transaction was in the way (a deadlock, a lock or statement timeout): try again.
    #[error("the store was busy with a conflicting write")]
    Busy(#[source] Cause),
    /// There is no room: free some, then go on.
    #[error("the store is full; free disk space or raise its size limit, nothing acknowledged is lost")]
    Full(#[source] Cause),
    /// It cannot be opened or written as it is; the message says what to do.
    #[error("{0}")]
    Refused(String),
    /// What was asked is not legal.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// What is stored is not what was written: restore a backup or look at the named place.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
    /// A defect or a failure that another try will not cure.
    #[error("the store failed")]
    Failed(#[source] Cause),
}

/// The cause behind a [`StoreError`].
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

impl StoreError {
    /// Whether another try may work.
    pub fn may_pass(&self) -> bool {
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
    fn only_what_may_pass_is_worth_another_try() {
        let cause = || Cause::from("x");
        assert!(StoreError::Unavailable(cause()).may_pass() && StoreError::Busy(cause()).may_pass());
        for error in [
            StoreError::Full(cause()),
            StoreError::Refused("x".into()),
            StoreError::Invalid(Invalid::new("x", "y")),
            StoreError::Corrupt("x".into()),
            StoreError::Failed(cause()),
        ] {
            assert!(!error.may_pass(), "{error}");
        }
    }
}
