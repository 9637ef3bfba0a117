//! A job as a store keeps it, the lease on one attempt, and the attempt log.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::invalid::Invalid;
use crate::lifecycle::State;
use crate::limits::{HORIZON, LEASE_MAX, LEASE_MIN, PAYLOAD_BYTES_MAX, TARGET_BYTES_MAX, check_text};
use crate::names::{IdempotencyKey, Kind, Queue, Tenant, UniqueKey, WorkerId};
use crate::policy::{Policy, PolicyRef};
use crate::queue_limits::Partition;
use crate::reason::Reason;
use crate::steps::{Parent, WaitCondition};
use crate::time::Timestamp;
use crate::verdict::Run;

/// The identity of a job: a version 7 UUID that the caller creates, so that a repeated enqueue adds no second job and newer jobs
/// have greater ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub Uuid);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        text.parse().map(Self).map_err(|_| Invalid::new("id", format!("must be a UUID, is {text:?}")))
    }
}

/// The number of a lease. A write with an older epoch than the stored one changes nothing.
///
/// The epoch of a job only grows, no two leases of a job share one, and its low [`LEASE_COUNT_BITS`] bits count the leases of the
/// job: see [`lease_count`]. The bits above them belong to the store. A store may increase the epoch by one for each lease, or put
/// the number of the claim there. So the next epoch of a job cannot be calculated, and epochs of different stores are not comparable.
/// A job that was never leased has epoch 0. An imported job keeps its epoch, and its next lease in the new store has a greater one.
pub type Epoch = u64;

/// How many of the low bits of an [`Epoch`] count the leases of its job.
pub const LEASE_COUNT_BITS: u32 = 16;

/// The highest number of leases that an [`Epoch`] counts. The count of a job that is leased more often stays at this number.
pub const LEASE_COUNT_MAX: u32 = (1 << LEASE_COUNT_BITS) - 1;

/// How often a job had been leased when it got this epoch, including the lease with this epoch. At most [`LEASE_COUNT_MAX`].
///
/// ```
/// use redrive_core::{LEASE_COUNT_BITS, lease_count};
///
/// assert_eq!(lease_count(3), 3);
/// assert_eq!(lease_count((77 << LEASE_COUNT_BITS) | 3), 3);
/// ```
pub const fn lease_count(epoch: Epoch) -> u32 {
    epoch as u32 & LEASE_COUNT_MAX
}

/// The epoch of the next lease, in a store that does not number its claims. Beyond [`LEASE_COUNT_MAX`] leases the count stays, and the
/// epoch still grows.
///
/// ```
/// use redrive_core::{LEASE_COUNT_MAX, lease_count, next_epoch};
///
/// assert_eq!(next_epoch(3), 4);
/// assert_eq!(lease_count(next_epoch(u64::from(LEASE_COUNT_MAX))), LEASE_COUNT_MAX);
/// ```
pub const fn next_epoch(epoch: Epoch) -> Epoch {
    if lease_count(epoch) == LEASE_COUNT_MAX { epoch + (1 << LEASE_COUNT_BITS) } else { epoch + 1 }
}

/// The right to settle one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The leased job.
    pub id: JobId,
    /// The epoch of the job when the lease was granted.
    pub epoch: Epoch,
}

/// The priority of a job, from 0 to 9. Jobs with a higher priority are claimed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// The highest priority.
    pub const MAX: Self = Self(9);

    /// Accepts a number from 0 to 9.
    pub fn new(priority: u8) -> Result<Self, Invalid> {
        if priority <= Self::MAX.0 {
            Ok(Self(priority))
        } else {
            Err(Invalid::new("priority", format!("must be from 0 to 9, is {priority}")))
        }
    }

    /// The priority as a number from 0 to 9.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u8> for Priority {
    type Error = Invalid;
    fn try_from(priority: u8) -> Result<Self, Invalid> {
        Self::new(priority)
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> u8 {
        priority.0
    }
}

/// When a new job is first due, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// This long from now.
    After(Duration),
    /// At this instant.
    At(Timestamp),
}

impl Start {
    /// The due time at the store's `now`. Rejects times more than a year ahead.
    pub fn resolve(self, now: Timestamp) -> Result<Timestamp, Invalid> {
        let at = match self {
            Self::Now => now,
            Self::After(wait) => now.after(wait),
            Self::At(at) => at,
        };
        if at > now.after(HORIZON) {
            return Err(Self::too_far());
        }
        Ok(at)
    }

    /// Rejects a wait of more than a year. Only the store's clock can check an instant.
    pub fn check(self) -> Result<(), Invalid> {
        match self {
            Self::After(wait) if wait > HORIZON => Err(Self::too_far()),
            Self::Now | Self::After(_) | Self::At(_) => Ok(()),
        }
    }

    /// The error for a start that is too far ahead.
    pub fn too_far() -> Invalid {
        Invalid::new("runAt", "must be at most one year ahead")
    }
}

/// A job to enqueue.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// The identity, which the caller creates.
    pub id: JobId,
    /// The tenant that the job belongs to.
    pub tenant: Tenant,
    /// The queue of the job.
    pub queue: Queue,
    /// The kind, which selects the handler.
    pub kind: Kind,
    /// The priority of the job.
    pub priority: Priority,
    /// The retry policy. It must be in the store.
    pub policy: PolicyRef,
    /// The input of the handler.
    pub payload: Vec<u8>,
    /// Makes a repeated enqueue return the first job.
    pub idempotency: Option<Idempotency>,
    /// Makes the job the only one with a key, for as long as its rule says.
    pub unique: Option<Unique>,
    /// The partition, whose jobs share limits and possibly an order.
    pub partition: Option<Partition>,
    /// The parent, if the job is a child.
    pub parent: Option<Parent>,
    /// When the job is first due.
    pub start: Start,
    /// How long one attempt may take. If absent, the limit of the policy or the worker applies.
    pub timeout: Option<Duration>,
    /// How long a lease lasts. If absent, the worker's lease applies.
    pub lease: Option<Duration>,
    /// The address of a delivery, or what another kind of job works on. Lists show it.
    pub target: Option<String>,
    /// Free text of the caller, usually JSON.
    pub metadata: Option<String>,
}

impl NewJob {
    /// A job with defaults for everything else.
    pub fn new(id: JobId, kind: Kind, policy: PolicyRef, payload: Vec<u8>) -> Self {
        Self {
            id,
            tenant: Tenant::default(),
            queue: Queue::default(),
            kind,
            priority: Priority::default(),
            policy,
            payload,
            idempotency: None,
            unique: None,
            partition: None,
            parent: None,
            start: Start::Now,
            timeout: None,
            lease: None,
            target: None,
            metadata: None,
        }
    }

    /// Checks the limits that every store has.
    pub fn check(&self) -> Result<(), Invalid> {
        let length = self.payload.len();
        if length > PAYLOAD_BYTES_MAX {
            let problem = format!("is {length} bytes long, at most {PAYLOAD_BYTES_MAX} are allowed inline");
            return Err(Invalid::new("payload", problem));
        }
        if self.metadata.as_ref().is_some_and(|text| text.len() > PAYLOAD_BYTES_MAX) {
            return Err(Invalid::new("metadata", format!("at most {PAYLOAD_BYTES_MAX} bytes are allowed")));
        }
        if self.target.as_ref().is_some_and(|text| text.len() > TARGET_BYTES_MAX) {
            return Err(Invalid::new("target", format!("at most {TARGET_BYTES_MAX} bytes are allowed")));
        }
        if self.idempotency.is_some() && self.unique.is_some() {
            return Err(Invalid::new("uniqueKey", "cannot be combined with an idempotency key"));
        }
        check_text("metadata", self.metadata.as_deref())?;
        check_text("target", self.target.as_deref())?;
        if self.lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            return Err(Invalid::new("lease", format!("must be from {LEASE_MIN:?} to {LEASE_MAX:?}")));
        }
        Ok(())
    }

    /// Sets an idempotency key, with a fingerprint of queue, kind, priority, payload and the policy's name. The fingerprint leaves out
    /// the policy's version, so that a repeat after a change of the policy is still the same request.
    pub fn with_key(mut self, key: IdempotencyKey) -> Self {
        let mut hash = Sha256::new();
        for part in [self.queue.as_str(), self.kind.as_str(), self.policy.name.as_str()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update([self.priority.get()]);
        hash.update(&self.payload);
        self.idempotency = Some(Idempotency { key, fingerprint: hash.finalize().into() });
        self
    }
}

/// An idempotency key and a fingerprint of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The key, unique within the tenant while the store keeps the job.
    pub key: IdempotencyKey,
    /// Distinguishes a repeat from a different request with the same key.
    pub fingerprint: [u8; 32],
}

/// A key that at most one job of a tenant and kind has.
///
/// Stores check it when a job is enqueued and never again, so that it never delays a retry or a redrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unique {
    /// The key.
    pub key: UniqueKey,
    /// How long the key is taken, and what happens to a second job.
    pub rule: UniqueRule,
}

/// How long a unique key is taken, and what happens to a second job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UniqueRule {
    /// Until the job has ended. A second enqueue returns the first job.
    Live,
    /// For this long from the enqueue of the first job, even if that job ends or is removed. A second enqueue returns the first job.
    For(Duration),
    /// Until the first attempt. A second enqueue replaces payload, metadata, target, policy, timeout, lease and start of the first job.
    Replace,
}

/// A job as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The identity.
    pub id: JobId,
    /// The tenant that the job belongs to.
    pub tenant: Tenant,
    /// The queue of the job.
    pub queue: Queue,
    /// The kind, which selects the handler.
    pub kind: Kind,
    /// The state of the job.
    pub state: State,
    /// The priority of the job.
    pub priority: Priority,
    /// The policy that the job was created with.
    pub policy: PolicyRef,
    /// The input of the handler.
    pub payload: Vec<u8>,
    /// The idempotency key.
    pub key: Option<IdempotencyKey>,
    /// The address of a delivery, or what another kind of job works on.
    pub target: Option<String>,
    /// Free text of the caller.
    pub metadata: Option<String>,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// How long a lease lasts. If absent, the worker's lease applies.
    pub lease: Option<Duration>,
    /// The partition, whose jobs share limits and possibly an order.
    pub partition: Option<Partition>,
    /// The parent, if the job is a child.
    pub parent: Option<Parent>,
    /// The condition that the job waits for.
    pub awaits: Option<WaitCondition>,
    /// Whether an operator has paused the job. While it is paused, no further attempt starts.
    pub paused: bool,
    /// The number of the run: 1, plus one for each redrive.
    pub run: u32,
    /// Attempts charged in this run.
    pub attempt: u32,
    /// The epoch of the current or last lease, or 0 before the first one. [`Job::lease_count`] has the number of leases.
    pub epoch: Epoch,
    /// When the job was enqueued.
    pub created_at: Timestamp,
    /// When this run was first due, plus the time that it slept or waited since. The time budget starts here.
    pub began_at: Timestamp,
    /// When a pending or retrying job is due. When a waiting job started to wait.
    pub next_run_at: Timestamp,
    /// When the current or last attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// When the lease of a running job runs out.
    pub lease_until: Option<Timestamp>,
    /// The worker that holds or last held the lease.
    pub worker: Option<WorkerId>,
    /// The last wait between two attempts of this run.
    pub wait: Option<Duration>,
    /// Whether someone cancelled the job while it was running.
    pub cancel_requested: bool,
    /// When the job ended.
    pub finished_at: Option<Timestamp>,
    /// The output of the handler.
    pub output: Option<Vec<u8>>,
    /// The last failure.
    pub last_error: Option<String>,
    /// The HTTP status or gRPC code of the last response.
    pub last_status: Option<u16>,
    /// Why the job is dead.
    pub reason: Option<Reason>,
}

impl Job {
    /// The current lease.
    pub fn lease(&self) -> Lease {
        Lease { id: self.id, epoch: self.epoch }
    }

    /// How often the job was leased, by claims and reclaims in all its runs. At most [`LEASE_COUNT_MAX`].
    pub fn lease_count(&self) -> u32 {
        lease_count(self.epoch)
    }

    /// The state to show for the job. The store keeps a job as pending if its due time ends its sleep, its snooze or its wait;
    /// until then the job is shown as waiting.
    pub fn shown_state(&self, now: Timestamp) -> State {
        let has_not_started = matches!(self.state, State::Pending | State::Retrying);
        if has_not_started && (self.awaits.is_some() || self.has_timer(now)) {
            State::Waiting
        } else {
            self.state
        }
    }

    /// Whether an attempt postponed the job, and the time has not passed.
    fn has_timer(&self, now: Timestamp) -> bool {
        self.state == State::Pending && self.started_at.is_some() && self.next_run_at > now
    }

    /// The input of the decision about the current attempt.
    pub fn as_run<'a>(&self, policy: &'a Policy, estimated_call: Duration) -> Run<'a> {
        Run {
            policy,
            attempt: self.attempt,
            began_at: self.began_at,
            previous_wait: self.wait,
            estimated_call,
        }
    }
}

/// The worker's report about an attempt. The store adds the result of the settlement.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReport {
    /// The number of the run, from 1.
    pub run: u32,
    /// The number of the attempt within the run, from 1.
    pub attempt: u32,
    /// When the attempt was claimed.
    pub started_at: Timestamp,
    /// How long the attempt took.
    pub duration: Duration,
    /// The outcome, as [`crate::Outcome::name`].
    pub outcome: String,
    /// The error, if the attempt failed.
    pub error: Option<String>,
    /// More evidence, as JSON.
    pub detail: Option<String>,
}

/// An attempt in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The epoch of the attempt, unique within the job and increasing.
    pub epoch: Epoch,
    /// The worker's report.
    pub entry: AttemptReport,
    /// The worker that settled the attempt.
    pub worker: Option<WorkerId>,
    /// The state of the job after the settlement.
    pub led_to: State,
    /// The wait before the next attempt.
    pub wait: Option<Duration>,
    /// When the next attempt is due.
    pub next_run_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::PolicyName;

    fn job() -> NewJob {
        let policy = PolicyRef::first(PolicyName::new("default").unwrap());
        NewJob::new(JobId(Uuid::nil()), Kind::new("k").unwrap(), policy, b"payload".to_vec())
    }

    #[test]
    fn limits_name_the_field() {
        let big = NewJob { payload: vec![0; PAYLOAD_BYTES_MAX + 1], ..job() };
        assert_eq!(big.check().unwrap_err().field, "payload");
        assert_eq!(Priority::new(10).unwrap_err().field, "priority");
        assert_eq!("x".parse::<JobId>().unwrap_err().field, "id");
        let late = Start::After(HORIZON + Duration::from_secs(1)).resolve(Timestamp::default());
        assert_eq!(late.unwrap_err().field, "runAt");
    }

    #[test]
    fn a_fingerprint_covers_the_content_of_a_request_but_not_its_id_start_or_policy_version() {
        let fingerprint =
            |job: NewJob| job.with_key(IdempotencyKey::new("k").unwrap()).idempotency.unwrap().fingerprint;
        let later = PolicyRef { version: std::num::NonZeroU32::MAX, ..job().policy };
        let same = NewJob { id: JobId(Uuid::max()), start: Start::After(HORIZON), policy: later, ..job() };
        assert_eq!(fingerprint(same), fingerprint(job()));
        let others = [
            NewJob { payload: b"other".to_vec(), ..job() },
            NewJob { kind: Kind::new("other").unwrap(), ..job() },
            NewJob { queue: Queue::new("other").unwrap(), ..job() },
            NewJob { priority: Priority::MAX, ..job() },
        ];
        for other in others {
            assert_ne!(fingerprint(other), fingerprint(job()));
        }
    }
}
