//! The tests of the test kit.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod checks;
mod model;
mod mutants;
mod servers;
mod simulation;
