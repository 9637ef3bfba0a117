//! The pure heart of redrive: when to try again, what follows an attempt, and what a store must guarantee.
//!
//! Nothing here does I/O, reads a clock or rolls dice: `now` and [`Chance`] are arguments. The life of a job is
//! [`lifecycle::transition`], what follows an attempt is [`verdict::decide`], and both exist once.

pub mod catalog;
pub mod chance;
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
pub mod quota;
pub mod records;
pub mod rooms;
pub mod steps;
pub mod store;
pub mod time;
pub mod transfer;
pub mod verdict;

pub use chance::Chance;
pub use finding::{Finding, Gravity};
pub use invalid::Invalid;
pub use job::{
    Attempt, Entry, Epoch, Idempotency, Job, JobId, Lease, NewJob, Priority, Start, Unique, UniqueRule,
};
pub use lifecycle::State;
pub use manual_clock::ManualClock;
pub use names::{
    IdempotencyKey, Kind, PartitionKey, PolicyName, Queue, SignalName, StepName, Tenant, UniqueKey, WorkerId,
};
pub use panics::{CatchPanic, Panic};
pub use policy::{Backoff, Eligibility, Fraction, Jitter, MaxAttempts, Policy, PolicyRef};
pub use quota::{Order, Partition, Quota};
pub use records::Records;
pub use steps::{Await, Parent, Steps};
pub use store::{Store, StoreError};
pub use time::{Clock, Timestamp};
pub use transfer::Transfer;
pub use verdict::{
    Deferral, DeferralScope, Failure, Fault, Outcome, Reason, Run, Verdict, Wait, admit, decide,
};
