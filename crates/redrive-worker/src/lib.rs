//! Runs attempts: claim, execute, settle; heartbeat, reclaim and prune beside them; and retry within a process.
//!
//! A [`Worker`] is one future that owns everything it runs: dropping it is a crash, and the store's leases see to the
//! rest. All its time comes from tokio's clock and all its chance from [`Settings::seed`], so that a simulation on a
//! paused clock replays it exactly.

mod claim;
mod count;
mod crew;
mod engine;
mod estimate;
mod execute;
mod follow_up;
pub mod handler;
mod heartbeat;
mod hold;
mod node_pause;
pub mod observe;
mod perform;
mod policies;
mod process;
mod prune;
mod reclaim;
mod remember;
pub mod resume;
mod retry;
mod seal;
pub mod settings;
mod settle;
mod shutdown;
pub mod storage_retry;
pub mod worker;

pub use count::Summary;
pub use handler::{Context, Ending, Handler, Note, Settler};
pub use observe::Observer;
pub use retry::{Retry, retry};
pub use settings::{KeepLog, Pulse, Settings};
pub use storage_retry::RetryingStore;
pub use worker::{Worker, WorkerError};
