//! Durable jobs: steps that run once, sleeps, signals, fan-outs and versions of the code.
//!
//! Every attempt runs the handler from its beginning. The store keeps the result of each step at a numbered place, in the order
//! in which the handler called them. When a later attempt reaches the same place, it gets the stored result and the step does not
//! run again.

mod fan_out;
mod history;
mod race;
mod select;
mod signal;
mod step;
mod suspend;
mod timer;
mod version;

pub use fan_out::{ChildError, CollectAll, FanOut};
pub(crate) use history::{History, unreadable};
pub use select::{Select, SelectArm};
pub use signal::{AwaitSignal, AwaitSignalUntil};
pub(crate) use suspend::Suspensions;
pub use timer::Sleep;

/// What happens when the steps of a handler differ from the stored steps of its job because the code has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Determinism {
    /// A step whose name differs from the stored name at its place fails the attempt. Stored steps that the handler no longer
    /// calls are ignored.
    #[default]
    Explicit,
    /// Like [`Determinism::Explicit`]. In addition, a handler that succeeds without calling every stored step is rejected.
    Strict,
    /// Steps are found by their names, at any place. A step that is not found runs.
    BestEffort,
}
