//! Durable jobs and retries. A job runs until it succeeds or its policy allows no further attempt. It survives crashes, and every
//! failed attempt is logged.
//!
//! ```
//! use redrive::{Context, Redrive, Task};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Task)]
//! struct SendReceipt { order: u64 }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), redrive::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let address = format!("sqlite:{}", folder.path().join("jobs.db").display());
//! # let (done, shutdown) = tokio::sync::oneshot::channel::<u64>();
//! # let done = std::sync::Mutex::new(Some(done));
//! # let shutdown_signal = || async { let _ = shutdown.await; };
//! # let address = address.as_str();
//! # /*
//! let address = "sqlite:jobs.db";
//! # */
//! let redrive = Redrive::open(address).await?;
//! redrive.enqueue(SendReceipt { order: 7 }).await?;
//! redrive
//!     .worker()
//!     .on(move |job: SendReceipt, _cx: Context| {
//!         println!("receipt for order {}", job.order);
//! #       if let Some(done) = done.lock().unwrap().take() { done.send(job.order).unwrap(); }
//!         async { Ok(()) }
//!     })
//!     .run_until(shutdown_signal())
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`retry()`] uses the same policies without a store:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use redrive::{Policy, retry};
//!
//! let mut calls = 0;
//! let answer = retry(&Policy::default(), || {
//!     calls += 1;
//!     let third = calls == 3;
//!     async move { if third { Ok("there") } else { Err("not yet") } }
//! })
//! .await;
//! assert_eq!(answer, Ok("there"));
//! # }
//! ```

mod address;
mod bodies;
mod client;
mod context;
mod durable;
mod enqueue;
mod error;
mod json;
mod maintenance;
mod operator_actions;
mod queue_limits;
mod result;
pub mod schedule;
mod shutdown;
mod task;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod transactions;
mod transfer;
mod unused_policies;
mod worker;

pub use address::{check_address, is_shared, mask_password};
#[cfg(feature = "bodies")]
pub use bodies::INLINE_BYTES_MAX;
pub use client::Redrive;
pub use context::Context;
pub use durable::{
    AwaitSignal, AwaitSignalUntil, ChildError, CollectAll, Determinism, FanOut, Select, SelectArm, Sleep,
};
pub use enqueue::{BatchConflict, Conflict, Enqueue, EnqueueMiddleware, EnqueuedJob, IntoEnqueue};
pub use error::{Error, JobError};
pub use maintenance::{doctor, migrate};
pub use result::{AwaitResult, ResultError};
pub use schedule::{MissedRuns, Schedule, ScheduleChange, ScheduleInfo};
pub use shutdown::shutdown_signal;
pub use task::Task;
#[cfg(feature = "postgres")]
pub use transactions::PostgresTransaction;
pub use transactions::PreparedTask;
#[cfg(feature = "sqlite")]
pub use transactions::SqliteTransaction;
pub use transfer::{MoveProgress, MoveResult, StoreMove, UnmovedJob, lift_seals};
pub use worker::{EndedJob, Event, Middleware, Next, TaskWorker};

#[cfg(feature = "bodies")]
pub use redrive_bodies::PutError;
pub use redrive_core::policy::{self, presets};
pub use redrive_core::queue_limits::{Limits, Order, Partition, QueueLimits, Rate};
pub use redrive_core::steps::{
    ForgetResult, Parent, PauseResult, Signal, SignalResult, Step, StepKind, WaitCondition,
};
pub use redrive_core::store::{
    Backend, CancelResult, Cursor, DiscardResult, Filter, Page, PageRequest, RedriveResult, Retention,
    RunNowResult, Stats,
};
pub use redrive_core::{
    Attempt, AttemptReport, Backoff, Clock, Deferral, DeferralScope, Eligibility, Epoch, Failure,
    FailureKind, Finding, Fraction, Idempotency, IdempotencyKey, Invalid, Jitter, Job, JobId, Kind,
    ManualClock, MaxAttempts, NewJob, Outcome, Panic, PartitionKey, Policy, PolicyName, PolicyRef, Priority,
    Queue, Reason, Severity, SignalName, Start, State, StepName, StoreError, Tenant, Timestamp, Unique,
    UniqueKey, UniqueRule, Wait, WorkerId, limits,
};
#[cfg(feature = "macros")]
pub use redrive_macros::Task;
#[cfg(feature = "postgres")]
pub use redrive_store_postgres::{
    Options as PostgresOptions, PostgresStore, TransactionFuture, tokio_postgres,
};
#[cfg(feature = "redis")]
pub use redrive_store_redis::{Options as RedisOptions, RedisStore};
#[cfg(feature = "sqlite")]
pub use redrive_store_sqlite::{Options as SqliteOptions, SqliteStore, rusqlite};
pub use redrive_worker::{
    AttemptLogging, AttemptNote, HeartbeatSource, Observer, Retry, Settings, Summary, WorkerError, retry,
};

pub mod store {
    //! The traits of a store and the types in their signatures, for programs that call [`crate::Redrive::backend`] or implement a
    //! store of their own.
    //!
    //! [`Store::enqueue`] returns an [`EnqueueResult`], in which a conflict is one of several variants. The library turns it into a
    //! [`crate::EnqueuedJob`] or a [`crate::Conflict`].

    pub use redrive_core::job::{Idempotency, Lease};
    pub use redrive_core::lifecycle::{Event, State};
    pub use redrive_core::records::{
        EVERY_QUEUE, PAUSED, Precondition, Record, RecordStore, RecordWrite, WriteResult,
    };
    pub use redrive_core::steps::*;
    pub use redrive_core::store::*;
    pub use redrive_core::transfer::*;
    pub use redrive_core::verdict::*;
    pub use redrive_core::{Epoch, LEASE_COUNT_BITS, LEASE_COUNT_MAX, RandomSource, lease_count};
    #[cfg(feature = "postgres")]
    pub use redrive_store_postgres::{
        OpenTransaction as PostgresStoreTransaction, Thresholds as PostgresThresholds,
    };
    #[cfg(feature = "sqlite")]
    pub use redrive_store_sqlite::Transaction as SqliteStoreTransaction;
}
