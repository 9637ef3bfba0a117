//! Tests of the pages of the console, with a real API on a store in memory.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod access;
mod content;
mod fixture;
mod forms;
mod quiet;
