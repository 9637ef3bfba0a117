//! Durable jobs and retries. Work that may fail runs until it succeeds or its policy says stop, survives crashes, and
//! leaves evidence of each failed attempt.
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
//! Without durability the same policies drive [`retry()`]:
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

mod admit;
mod answer;
mod batch;
mod bodies;
mod client;
mod context;
mod doctor;
mod durable;
mod ending;
mod enqueue;
mod error;
mod event;
mod handle;
mod json;
mod limit;
mod middleware;
mod migrate;
mod open;
mod operate;
mod prepare;
mod result;
pub mod schedule;
mod shutdown;
pub mod store;
mod task;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
#[cfg(feature = "sqlite")]
mod transact;
#[cfg(feature = "postgres")]
mod transact_postgres;
mod transfer;
mod worker;

pub use admit::EnqueueMiddleware;
pub use answer::{BatchConflict, Conflict, EnqueuedJob};
pub use batch::IntoEnqueue;
#[cfg(feature = "bodies")]
pub use bodies::INLINE_BYTES_MAX;
pub use client::Redrive;
pub use context::Context;
pub use doctor::doctor;
pub use durable::{
    Arm, AwaitSignal, AwaitSignalUntil, ChildError, CollectAll, Determinism, FanOut, Select, Sleep,
};
pub use ending::End;
pub use enqueue::Enqueue;
pub use error::{Error, JobError};
pub use event::Event;
pub use middleware::{Middleware, Next};
pub use migrate::migrate;
pub use open::{check_address, is_shared, shown};
pub use prepare::Prepared;
pub use result::{ResultError, Waiting};
pub use schedule::{Missed, Schedule, Scheduled};
pub use shutdown::shutdown_signal;
pub use task::Task;
#[cfg(feature = "sqlite")]
pub use transact::SqliteTransaction;
#[cfg(feature = "postgres")]
pub use transact_postgres::PostgresTransaction;
pub use transfer::{LeftBehind, Move, Moved, Progress, lift};
pub use worker::TaskWorker;

#[cfg(feature = "bodies")]
pub use redrive_bodies::PutError;
pub use redrive_core::policy::{self, presets};
pub use redrive_core::quota::{Bounds, Order, Partition, Quota, Rate};
pub use redrive_core::steps::{Await, Forgotten, Hold, Parent, Signal, Signalled, Step, StepKind};
pub use redrive_core::store::{
    Backend, Cancelled, Cursor, Discarded, Filter, Page, PageRequest, Redriven, Retention, RunNow, Stats,
};
pub use redrive_core::{
    Attempt, Backoff, Clock, Deferral, DeferralScope, Eligibility, Entry, Epoch, Failure, Fault, Finding,
    Fraction, Gravity, Idempotency, IdempotencyKey, Invalid, Jitter, Job, JobId, Kind, ManualClock,
    MaxAttempts, NewJob, Outcome, Panic, PartitionKey, Policy, PolicyName, PolicyRef, Priority, Queue,
    Reason, SignalName, Start, State, StepName, StoreError, Tenant, Timestamp, Unique, UniqueKey, UniqueRule,
    Wait, WorkerId, limits,
};
#[cfg(feature = "macros")]
pub use redrive_macros::Task;
#[cfg(feature = "postgres")]
pub use redrive_store_postgres::{Options as PostgresOptions, PostgresStore, Work, tokio_postgres};
#[cfg(feature = "redis")]
pub use redrive_store_redis::{Options as RedisOptions, RedisStore};
#[cfg(feature = "sqlite")]
pub use redrive_store_sqlite::{Options as SqliteOptions, SqliteStore, rusqlite};
pub use redrive_worker::{KeepLog, Note, Observer, Pulse, Retry, Settings, Summary, WorkerError, retry};
