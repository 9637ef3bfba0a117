//! Tests of the library through its public API, with one module for each part.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod batch;
mod bodies;
mod children;
mod clock_changes;
mod conflict;
mod context;
mod enqueue_middleware;
mod errors;
mod events;
mod examples;
mod exports;
mod fixture;
mod middleware;
mod on_end;
mod operator_actions;
mod panics;
mod postgres;
mod replace;
mod result;
mod schedule;
mod select;
mod simulated;
mod steps;
mod stores;
mod testing;
mod trace;
mod transactions;

mod waits;
