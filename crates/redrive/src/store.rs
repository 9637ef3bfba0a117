//! The traits behind [`Backend`] with everything in their signatures, for programs that call [`crate::Redrive::backend`] or
//! bring a store of their own.
//!
//! The answer to [`Store::enqueue`] is an [`Enqueued`], in which a conflict is one of several answers. The library turns it into
//! a [`crate::EnqueuedJob`] or a [`crate::Conflict`].

pub use redrive_core::job::{Idempotency, Lease};
pub use redrive_core::lifecycle::{Event, State};
pub use redrive_core::records::{Change, EVERY_QUEUE, Expect, PAUSED, Record, Records, Written};
pub use redrive_core::steps::*;
pub use redrive_core::store::*;
pub use redrive_core::transfer::*;
pub use redrive_core::verdict::*;
pub use redrive_core::{Chance, Epoch};
#[cfg(feature = "postgres")]
pub use redrive_store_postgres::{
    OpenTransaction as PostgresStoreTransaction, Thresholds as PostgresThresholds,
};
#[cfg(feature = "sqlite")]
pub use redrive_store_sqlite::Transaction as SqliteStoreTransaction;
