//! The durable row: a job, the lease on one attempt, and the log of attempts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::invalid::Invalid;
use crate::lifecycle::State;
use crate::limits::{HORIZON, LEASE_MAX, LEASE_MIN, PAYLOAD_BYTES_MAX, SUBJECT_BYTES_MAX, check_text};
use crate::names::{IdempotencyKey, Kind, Queue, Tenant, UniqueKey, WorkerId};
use crate::policy::{Policy, PolicyRef};
use crate::quota::Partition;
use crate::steps::{Await, Parent};
use crate::time::Timestamp;
use crate::verdict::{Reason, Run};

/// A job's identity: a version 7 UUID made by whoever enqueues it, so that a repeated enqueue makes no double and
/// newer jobs have greater ids.
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

/// Counts the leases on a job. A write under an older epoch than the row's changes nothing.
pub type Epoch = u64;

/// The right to settle one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The job.
    pub id: JobId,
    /// The epoch under which the lease was taken.
    pub epoch: Epoch,
}

/// How urgent a job is, from 0 to 9; higher ones are claimed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// The most urgent.
    pub const MAX: Self = Self(9);

    /// Takes a number from 0 to 9.
    pub fn new(priority: u8) -> Result<Self, Invalid> {
        if priority <= Self::MAX.0 {
            Ok(Self(priority))
        } else {
            Err(Invalid::new("priority", format!("must be from 0 to 9, is {priority}")))
        }
    }

    /// The number.
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
    /// The instant, once the store knows its `now`. Beyond a year is refused.
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

    /// Refuses what is too far ahead at any time. For an instant only the store's clock can tell.
    pub fn check(self) -> Result<(), Invalid> {
        match self {
            Self::After(wait) if wait > HORIZON => Err(Self::too_far()),
            Self::Now | Self::After(_) | Self::At(_) => Ok(()),
        }
    }

    /// The refusal of what is too far ahead.
    pub fn too_far() -> Invalid {
        Invalid::new("runAt", "must be at most one year ahead")
    }
}

/// A job to enqueue.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// Its identity, made by the caller.
    pub id: JobId,
    /// Whose it is.
    pub tenant: Tenant,
    /// Which queue it waits in.
    pub queue: Queue,
    /// What it is.
    pub kind: Kind,
    /// How urgent it is.
    pub priority: Priority,
    /// The policy to decide by; it must be in the store.
    pub policy: PolicyRef,
    /// What the handler gets.
    pub payload: Vec<u8>,
    /// Makes the enqueue repeatable.
    pub idempotency: Option<Idempotency>,
    /// Makes it the only one under a key.
    pub unique: Option<Unique>,
    /// Which jobs of its queue it shares bounds or an order with.
    pub partition: Option<Partition>,
    /// Whose child it is.
    pub parent: Option<Parent>,
    /// When it is first due.
    pub start: Start,
    /// How long one attempt may take; the policy's or worker's limit when absent.
    pub timeout: Option<Duration>,
    /// How long a claim of it is leased; the worker's lease when absent.
    pub lease: Option<Duration>,
    /// What it is about, for lists: where a delivery goes.
    pub subject: Option<String>,
    /// Free text of the caller's, usually JSON, kept beside the payload.
    pub metadata: Option<String>,
}

impl NewJob {
    /// A job with defaults for everything but these.
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
            subject: None,
            metadata: None,
        }
    }

    /// Refuses what no store would take.
    pub fn check(&self) -> Result<(), Invalid> {
        let length = self.payload.len();
        if length > PAYLOAD_BYTES_MAX {
            let problem = format!("is {length} bytes long, at most {PAYLOAD_BYTES_MAX} are allowed inline");
            return Err(Invalid::new("payload", problem));
        }
        if self.metadata.as_ref().is_some_and(|text| text.len() > PAYLOAD_BYTES_MAX) {
            return Err(Invalid::new("metadata", format!("at most {PAYLOAD_BYTES_MAX} bytes are allowed")));
        }
        if self.subject.as_ref().is_some_and(|text| text.len() > SUBJECT_BYTES_MAX) {
            return Err(Invalid::new("subject", format!("at most {SUBJECT_BYTES_MAX} bytes are allowed")));
        }
        if self.idempotency.is_some() && self.unique.is_some() {
            return Err(Invalid::new("uniqueKey", "cannot be combined with an idempotency key"));
        }
        check_text("metadata", self.metadata.as_deref())?;
        check_text("subject", self.subject.as_deref())?;
        if self.lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            return Err(Invalid::new("lease", format!("must be from {LEASE_MIN:?} to {LEASE_MAX:?}")));
        }
        Ok(())
    }

    /// Makes the enqueue repeatable under `key`, with what it asks for as the fingerprint: queue, kind, priority,
    /// payload and the policy's name. Its version is left out, so that a repeat after an edit is still the same request.
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

/// A key and what was asked for under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The key, unique within the tenant for as long as its job is kept.
    pub key: IdempotencyKey,
    /// Tells a repeat from a different request under the same key.
    pub fingerprint: [u8; 32],
}

/// A key of which a tenant has one job of a kind.
///
/// It is looked at when a job is enqueued and never again, so that no retry and no redrive is ever held up by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unique {
    /// The key.
    pub key: UniqueKey,
    /// For how long, and what happens to a second one.
    pub rule: UniqueRule,
}

/// For how long a key has one job, and what happens to a second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UniqueRule {
    /// Until the job has ended; a second one finds the first.
    Live,
    /// For this long from the first one's enqueue, whatever becomes of it; a second one finds the first.
    For(Duration),
    /// Until its first attempt; a second one replaces what the first would have done, and when: payload, metadata, subject,
    /// policy, timeout, lease and start.
    Replace,
}

/// A job as the store has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its identity.
    pub id: JobId,
    /// Whose it is.
    pub tenant: Tenant,
    /// Which queue it is in.
    pub queue: Queue,
    /// What it is.
    pub kind: Kind,
    /// Where it is in its life.
    pub state: State,
    /// How urgent it is.
    pub priority: Priority,
    /// The policy it was created with.
    pub policy: PolicyRef,
    /// What the handler gets.
    pub payload: Vec<u8>,
    /// What makes its enqueue repeatable.
    pub key: Option<IdempotencyKey>,
    /// What it is about, for lists.
    pub subject: Option<String>,
    /// Free text of the caller's.
    pub metadata: Option<String>,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// How long a claim of it is leased; the worker's lease when absent.
    pub lease: Option<Duration>,
    /// Which jobs of its queue it shares bounds or an order with.
    pub partition: Option<Partition>,
    /// Whose child it is.
    pub parent: Option<Parent>,
    /// What it waits for, while it waits.
    pub awaits: Option<Await>,
    /// An operator holds it: no further attempt is made.
    pub held: bool,
    /// Which run it is: 1, and one more for each redrive.
    pub run: u32,
    /// Attempts charged in this run.
    pub attempt: u32,
    /// Counts its leases.
    pub epoch: Epoch,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When this run was first due, moved on by the time it slept by choice; the budget counts from here.
    pub began_at: Timestamp,
    /// When it is due; meaningful while it is pending or retrying.
    pub next_run_at: Timestamp,
    /// When the current or last attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// When the lease runs out, while it is running.
    pub lease_until: Option<Timestamp>,
    /// Who holds or last held the lease.
    pub worker: Option<WorkerId>,
    /// The last actual wait between two attempts of this run.
    pub wait: Option<Duration>,
    /// Someone asked for its end while it was running.
    pub cancel_requested: bool,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// What the handler returned.
    pub output: Option<Vec<u8>>,
    /// The last failure.
    pub last_error: Option<String>,
    /// With which number the other side last answered: an HTTP status or a gRPC code.
    pub last_status: Option<u16>,
    /// Why it is dead.
    pub reason: Option<Reason>,
}

impl Job {
    /// The lease this row was returned under.
    pub fn lease(&self) -> Lease {
        Lease { id: self.id, epoch: self.epoch }
    }

    /// What the decision looks at.
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

/// What a worker says about the attempt it settles; the store adds what the settlement came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The run.
    pub run: u32,
    /// The attempt within the run, from 1.
    pub attempt: u32,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// How long it took.
    pub duration: Duration,
    /// [`crate::Outcome::name`] of how it ended.
    pub outcome: String,
    /// What went wrong.
    pub error: Option<String>,
    /// More evidence, as JSON.
    pub detail: Option<String>,
}

/// An attempt in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The epoch that was settled; unique within the job and growing.
    pub epoch: Epoch,
    /// What the worker said.
    pub entry: Entry,
    /// Who settled it.
    pub worker: Option<WorkerId>,
    /// The state that the settlement led to.
    pub led_to: State,
    /// The wait that was planned.
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
    fn a_fingerprint_sees_what_the_request_asks_for_and_not_who_asks() {
        let print =
            |job: NewJob| job.with_key(IdempotencyKey::new("k").unwrap()).idempotency.unwrap().fingerprint;
        let later = PolicyRef { version: std::num::NonZeroU32::MAX, ..job().policy };
        let same = NewJob { id: JobId(Uuid::max()), start: Start::After(HORIZON), policy: later, ..job() };
        assert_eq!(print(same), print(job()));
        let others = [
            NewJob { payload: b"other".to_vec(), ..job() },
            NewJob { kind: Kind::new("other").unwrap(), ..job() },
            NewJob { queue: Queue::new("other").unwrap(), ..job() },
            NewJob { priority: Priority::MAX, ..job() },
        ];
        for other in others {
            assert_ne!(print(other), print(job()));
        }
    }
}
