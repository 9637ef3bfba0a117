//! The reference model: every verb of a store over plain maps, meant to be obviously right.

mod claim;
mod enqueue;
mod operate;
mod prune;
mod read;
mod reclaim;
mod records;
mod settle;
mod steps;
mod tamper;
mod transfer;
mod tree;
mod turns;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redrive_core::lifecycle::{Event, transition};
use redrive_core::steps::Step;
use redrive_core::store::Wake;
use redrive_core::time::ceil_ms;
use redrive_core::transfer::Received;
use redrive_core::{
    Attempt, Epoch, IdempotencyKey, Job, JobId, Kind, Lease, Priority, Queue, State, Tenant, Timestamp,
    UniqueKey,
};

use records::Slot;
use turns::Scope;

/// A store as plain data. Each verb takes `now` and is one step; nothing else moves it.
///
/// Spans are kept in whole milliseconds, rounded up, as the real stores keep them.
#[derive(Debug, Clone, Default)]
pub struct Model {
    rows: BTreeMap<JobId, Row>,
    keys: BTreeMap<(Tenant, IdempotencyKey), JobId>,
    uniques: BTreeMap<(Tenant, Kind, UniqueKey), Holder>,
    children: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Claimable jobs by what a claim can ask for.
    lanes: BTreeMap<(Queue, Kind), Lane>,
    /// Running jobs in the order of a reclaim.
    leases: BTreeSet<(Timestamp, JobId)>,
    /// Final jobs in the order of a prune.
    ended: BTreeSet<(State, Timestamp, JobId)>,
    /// Whether a job was ever in a partition.
    partitioned: bool,
    /// When jobs were started, where a rate counts them.
    starts: BTreeMap<Scope, Vec<Timestamp>>,
    slots: BTreeMap<(String, String), Slot>,
    wake: Wake,
    /// How often the end of a running job was requested.
    cancels: Wake,
}

/// Claimable jobs in the order of a claim.
type Lane = BTreeSet<(Reverse<Priority>, Timestamp, JobId)>;

/// A job with what only the store sees of it.
#[derive(Debug, Clone)]
struct Row {
    job: Job,
    fingerprint: Option<[u8; 32]>,
    log: BTreeMap<Epoch, Attempt>,
    steps: BTreeMap<u32, Step>,
    /// In the order of their arrival, those taken too.
    signals: Vec<Received>,
}

/// Who has a unique key, and until when whatever becomes of it.
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

    /// Every job, smallest id first.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.rows.values().map(|row| &row.job)
    }

    /// A job.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.rows.get(&id).map(|row| &row.job)
    }

    /// A job's whole log, oldest entry first.
    pub fn log(&self, id: JobId) -> impl Iterator<Item = &Attempt> {
        self.rows.get(&id).into_iter().flat_map(|row| row.log.values())
    }

    /// How far the wake-ups have come: it moves whenever something may have become claimable.
    pub fn wake(&self) -> Wake {
        self.wake
    }

    /// How often the end of a running job was requested.
    pub fn cancels(&self) -> Wake {
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

    /// Removes a row with its log and all that points at it; a unique key stays for as long as it was promised.
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

    /// Changes a row and moves its index entries with it.
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
            self.lanes.entry(lane_of(job)).or_default().insert(due_entry(job));
        }
        if let Some(until) = job.lease_until {
            self.leases.insert((until, job.id));
        }
        if let Some(at) = job.finished_at {
            self.ended.insert((job.state, at, job.id));
        }
    }

    fn unindex(&mut self, job: &Job) {
        if let Some(lane) = self.lanes.get_mut(&lane_of(job)) {
            lane.remove(&due_entry(job));
        }
        if let Some(until) = job.lease_until {
            self.leases.remove(&(until, job.id));
        }
        if let Some(at) = job.finished_at {
            self.ended.remove(&(job.state, at, job.id));
        }
    }

    /// The job of a lease that is still held.
    fn held(&self, lease: Lease) -> Option<&Job> {
        self.job(lease.id).filter(|job| job.state == State::Running && job.epoch == lease.epoch)
    }
}

fn due_entry(job: &Job) -> (Reverse<Priority>, Timestamp, JobId) {
    (Reverse(job.priority), job.next_run_at, job.id)
}

fn lane_of(job: &Job) -> (Queue, Kind) {
    (job.queue.clone(), job.kind.clone())
}

fn key_of(job: &Job) -> Option<(Tenant, IdempotencyKey)> {
    job.key.clone().map(|key| (job.tenant.clone(), key))
}

/// Moves a job by the only state machine.
fn advance(job: &mut Job, event: Event) {
    job.state = transition(job.state, event).expect("the verb looked at the state before");
}

/// What a store keeps of a span.
fn whole_ms(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(ceil_ms(span)).unwrap_or(0))
}
