//! The library as a program uses it: one module for each part of its face.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod admit;
mod batch;
mod bodies;
mod clock_changes;
mod conflict;
mod context;
mod ending;
mod errors;
mod events;
mod middleware;
mod operate;
mod panics;
mod postgres;
mod replace;
mod result;
mod schedule;
mod select;
mod simulated;
mod stage;
mod steps;
mod stores;
mod testing;
mod trace;
mod transact;
mod trees;
mod waits;
