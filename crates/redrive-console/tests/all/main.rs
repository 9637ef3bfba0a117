//! The console's pages as a browser gets them, on a real API with a store in memory.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod access;
mod content;
mod forms;
mod stage;
