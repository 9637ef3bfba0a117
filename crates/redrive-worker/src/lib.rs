//! Runs attempts: claims, executes and settles jobs; renews leases, reclaims and prunes in the background; and retries
//! operations within a process.
//!
//! A [`Worker`] is one future that owns everything it runs. Dropping it has the effect of a crash: its leases run out, and
//! another worker reclaims the jobs. All time comes from tokio's clock and all randomness from [`Settings::seed`], so a
//! simulation on a paused clock can replay a run exactly.

mod claim;
mod duration_estimates;
mod engine;
mod execute;
pub mod handler;
mod heartbeat;
mod lease_table;
mod node_pause;
pub mod observe;
mod policy_cache;
mod prune;
mod recent_cache;
mod reclaim;
mod resume;
mod retry;
mod seal;
pub mod settings;
mod settle;
mod shutdown;
pub mod storage_retry;
mod summary;
pub mod worker;

pub use handler::{AttemptNote, Context, Handler, JobEnd, Settler};
pub use observe::Observer;
pub use retry::{Retry, retry};
pub use settings::{AttemptLogging, HeartbeatSource, Settings};
pub use storage_retry::RetryingStore;
pub use summary::Summary;
pub use worker::{Worker, WorkerError};
