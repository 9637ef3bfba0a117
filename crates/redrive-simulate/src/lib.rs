//! Two experiments on retries in simulated time: many clients that write one row, and an outage of a target.
//!
//! Waits come from [`redrive_core::Policy`], and [`redrive_core::decide`] chooses between retry and dead letter, as in the worker.
//! Nothing here reads a clock or prints, and the same seed gives the same results.
//!
//! ```
//! use redrive_simulate::ContentionExperiment;
//!
//! let experiment = ContentionExperiment { clients: 20, trials: 5, ..ContentionExperiment::default() };
//! let report = experiment.run()?;
//! let calls = |name: &str| report.row(name, 20).map(|row| row.mean_write_calls);
//! assert!(calls("none") > calls("full"));
//! # Ok::<(), redrive_core::Invalid>(())
//! ```

mod event_queue;
mod random;

pub mod contention;
pub mod figure;
pub mod outage;
pub mod policies;
pub mod target;
pub mod timeline;

pub use contention::ContentionExperiment;
pub use figure::Figure;
pub use outage::OutageExperiment;
pub use policies::NamedPolicy;
pub use random::NetworkDelay;
pub use timeline::Timeline;
