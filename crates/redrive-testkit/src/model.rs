//! The reference model: every call of a store on plain maps, simple enough to be obviously correct.

mod claim;
mod enqueue;
mod limits;
mod operate;
mod read;
mod records;
mod settle;
mod steps;
mod tamper;
mod transfer;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redrive_core::lifecycle::{Event, transition};
use redrive_core::steps::Step;
use redrive_core::store::WakeToken;
use redrive_core::time::ceil_ms;
use redrive_core::transfer::StoredSignal;
use redrive_core::{
    Attempt, Epoch, IdempotencyKey, Job, JobId, Kind, Lease, Priority, Queue, State, Tenant, Timestamp,
    UniqueKey,
};

use limits::Scope;
use records::RecordEntry;

/// A store as plain data. Each call takes `now` and is one step; nothing else changes the model.
///
/// Durations are rounded up to whole milliseconds, as in the real stores.
#[derive(Debug, Clone, Default)]
pub struct Model {
    rows: BTreeMap<JobId, Row>,
    keys: BTreeMap<(Tenant, IdempotencyKey), JobId>,
    uniques: BTreeMap<(Tenant, Kind, UniqueKey), Holder>,
    children: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Claimable jobs by queue and kind.
    claimable: BTreeMap<(Queue, Kind), ClaimableJobs>,
    /// Running jobs in the order in which a reclaim takes them.
    leases: BTreeSet<(Timestamp, JobId)>,
    /// Ended jobs in the order in which a prune deletes them.
    ended: BTreeSet<(State, Timestamp, JobId)>,
    /// Whether a job was ever in a partition.
    partitioned: bool,
    /// The times at which jobs started, where a rate limit needs them.
    starts: BTreeMap<Scope, Vec<Timestamp>>,
    /// Records, removed records and floors, by kind and id.
    records: BTreeMap<(String, String), RecordEntry>,
    /// The number of the last claim or reclaim. None if epochs only count leases.
    claims: Option<u64>,
    wake: WakeToken,
    /// How often a cancel of a running job was requested.
    cancels: WakeToken,
}

/// Claimable jobs in the order in which a claim takes them.
type ClaimableJobs = BTreeSet<(Reverse<Priority>, Timestamp, JobId)>;

/// A job with everything that the store keeps for it.
#[derive(Debug, Clone)]
struct Row {
    job: Job,
    fingerprint: Option<[u8; 32]>,
    log: BTreeMap<Epoch, Attempt>,
    steps: BTreeMap<u32, Step>,
    /// In the order of their arrival, including those that were taken.
    signals: Vec<StoredSignal>,
}

/// The job that has a unique key, and the time until which the key is reserved.
#[derive(Debug, Clone)]
struct Holder {
    job: JobId,
    until: Option<Timestamp>,
}

impl Model {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that puts the number of each claim into its epochs, above the count of leases.
    pub fn with_claim_numbers() -> Self {
        Self { claims: Some(0), ..Self::default() }
    }

    /// Every job, smallest id first.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.rows.values().map(|row| &row.job)
    }

    /// A job.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.rows.get(&id).map(|row| &row.job)
    }

    /// Whether the job was removed while its unique key stayed reserved.
    pub fn has_reserved_key_only(&self, id: JobId) -> bool {
        !self.rows.contains_key(&id) && self.uniques.values().any(|holder| holder.job == id)
    }

    /// The whole attempt log of a job, oldest attempt first.
    pub fn log(&self, id: JobId) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.rows.get(&id).into_iter().flat_map(|row| row.log.values())
    }

    /// Changes whenever a job may have become claimable.
    pub fn wake(&self) -> WakeToken {
        self.wake
    }

    /// How often a cancel of a running job was requested.
    pub fn cancels(&self) -> WakeToken {
        self.cancels
    }

    fn wake_up(&mut self) {
        self.wake.0 += 1;
    }

    /// Adds a row with its index entries.
    fn insert(&mut self, row: Row) {
        if let Some(key) = key_of(&row.job) {
            self.keys.insert(key, row.job.id);
        }
        self.partitioned |= row.job.partition.is_some();
        if let Some(parent) = row.job.parent {
            self.children.entry(parent.id).or_default().insert(row.job.id);
        }
        self.index(&row.job);
        self.rows.insert(row.job.id, row);
    }

    /// Removes a row, its log and all references to it. A unique key stays for as long as it is reserved.
    fn remove(&mut self, id: JobId, now: Timestamp) {
        if let Some(row) = self.rows.remove(&id) {
            self.unindex(&row.job);
            if let Some(key) = key_of(&row.job) {
                self.keys.remove(&key);
            }
            if let Some(parent) = row.job.parent {
                self.children.entry(parent.id).or_default().remove(&id);
            }
            self.uniques
                .retain(|_, holder| holder.job != id || holder.until.is_some_and(|until| until > now));
        }
    }

    /// Changes a row and updates its index entries.
    fn change<T>(&mut self, id: JobId, change: impl FnOnce(&mut Row) -> T) -> T {
        let mut row = self.rows.remove(&id).expect("only rows that exist are changed");
        self.unindex(&row.job);
        let result = change(&mut row);
        self.index(&row.job);
        self.rows.insert(id, row);
        result
    }

    fn index(&mut self, job: &Job) {
        if job.state.is_claimable() {
            self.claimable.entry(queue_and_kind(job)).or_default().insert(due_entry(job));
        }
        if let Some(until) = job.lease_until {
            self.leases.insert((until, job.id));
        }
        if let Some(at) = job.finished_at {
            self.ended.insert((job.state, at, job.id));
        }
    }

    fn unindex(&mut self, job: &Job) {
        if let Some(jobs) = self.claimable.get_mut(&queue_and_kind(job)) {
            jobs.remove(&due_entry(job));
        }
        if let Some(until) = job.lease_until {
            self.leases.remove(&(until, job.id));
        }
        if let Some(at) = job.finished_at {
            self.ended.remove(&(job.state, at, job.id));
        }
    }

    /// The job of a lease that is still held.
    fn leased_job(&self, lease: Lease) -> Option<&Job> {
        self.job(lease.id).filter(|job| job.state == State::Running && job.epoch == lease.epoch)
    }
}

fn due_entry(job: &Job) -> (Reverse<Priority>, Timestamp, JobId) {
    (Reverse(job.priority), job.next_run_at, job.id)
}

fn queue_and_kind(job: &Job) -> (Queue, Kind) {
    (job.queue.clone(), job.kind.clone())
}

fn key_of(job: &Job) -> Option<(Tenant, IdempotencyKey)> {
    job.key.clone().map(|key| (job.tenant.clone(), key))
}

/// Applies an event to the state of a job.
fn advance(job: &mut Job, event: Event) {
    job.state = transition(job.state, event).expect("the caller has checked the state");
}

/// A duration as a store keeps it.
fn whole_ms(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(ceil_ms(span)).unwrap_or(0))
}
