//! What a target sees while clients retry: two experiments in simulated time, with the engine's own policies.
//!
//! Waits come from [`redrive_core::Policy`] and the choice between retry and dead letter from [`redrive_core::decide`],
//! as in the worker. Nothing here reads a clock or prints: a seed gives the same figures each time.
//!
//! ```
//! use redrive_simulate::Contention;
//!
//! let contention = Contention { clients: 20, trials: 5, ..Contention::default() };
//! let report = contention.run()?;
//! let calls = |name: &str| report.of(name, 20).map(|row| row.mean_write_calls);
//! assert!(calls("none") > calls("full"));
//! # Ok::<(), redrive_core::Invalid>(())
//! ```

mod agenda;
mod dice;

pub mod contenders;
pub mod contention;
pub mod draw;
pub mod outage;
pub mod target;
pub mod timeline;

pub use contenders::Contender;
pub use contention::Contention;
pub use dice::Hop;
pub use draw::Drawing;
pub use outage::Outage;
pub use timeline::Timeline;
