//! What makes a job durable across attempts: steps that run once, timers, children, signals, versions of the code.
//!
//! A handler starts from its beginning each time. What it has done so far is remembered place by place, in the order in
//! which it asked, and given back instead of being done again.

mod fan_out;
mod history;
mod pause;
mod race;
mod select;
mod signal;
mod step;
mod timer;
mod version;

pub use fan_out::{ChildError, CollectAll, FanOut};
pub(crate) use history::{History, unreadable};
pub(crate) use pause::Pauses;
pub use select::{Arm, Select};
pub use signal::{AwaitSignal, AwaitSignalUntil};
pub use timer::Sleep;

/// What happens when a handler no longer asks for the steps that were remembered of its job, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Determinism {
    /// A step by another name than the one remembered at its place fails the attempt. Steps that are no longer asked for
    /// are let be.
    #[default]
    Explicit,
    /// As [`Determinism::Explicit`], and a handler that succeeds without asking for all that was remembered is rejected.
    Strict,
    /// Steps are found by their names, wherever they are; what is not found runs.
    BestEffort,
}
