//! The clock that tests move.

pub use redrive_core::manual_clock::{ManualClock, START};
