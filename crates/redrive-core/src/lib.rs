//! The pure part of redrive: retry policies, the decision after each attempt, and the guarantees of a store.
//!
//! Nothing here does I/O, reads a clock or draws random numbers: `now` and [`RandomSource`] are arguments. The state
//! machine is [`lifecycle::transition`], and the decision after an attempt is [`verdict::decide`]. Both exist once.

pub mod capacity;
pub mod catalog;
pub mod finding;
pub mod invalid;
pub mod job;
pub mod lifecycle;
pub mod limits;
pub mod listing;
pub mod manual_clock;
pub mod names;
pub mod panics;
pub mod policy;
pub mod queue_limits;
pub mod random;
pub mod reason;
pub mod records;
pub mod sensitive;
pub mod steps;
pub mod store;
pub mod text;
pub mod time;
pub mod transfer;
pub mod verdict;

pub use finding::{Finding, Severity};
pub use invalid::Invalid;
pub use job::{
    Attempt, AttemptReport, Epoch, Idempotency, Job, JobId, LEASE_COUNT_BITS, LEASE_COUNT_MAX, Lease, NewJob,
    Priority, Start, Unique, UniqueRule, lease_count, next_epoch,
};
pub use lifecycle::State;
pub use manual_clock::ManualClock;
pub use names::{
    IdempotencyKey, Kind, PartitionKey, PolicyName, Queue, SignalName, StepName, Tenant, UniqueKey, WorkerId,
};
pub use panics::{CatchPanic, Panic};
pub use policy::{Backoff, Eligibility, Fraction, Jitter, MaxAttempts, Policy, PolicyRef};
pub use queue_limits::{Order, Partition, QueueLimits};
pub use random::RandomSource;
pub use reason::Reason;
pub use records::{RecordStore, Records};
pub use steps::{Parent, Steps, WaitCondition};
pub use store::{Store, StoreError};
pub use time::{Clock, Timestamp};
pub use transfer::Transfer;
pub use verdict::{
    Deferral, DeferralScope, Failure, FailureKind, Outcome, Run, Verdict, Wait, admit, decide,
};
