//! The library as a program uses it: one module for each part of its face.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod admit;
mod batch;
mod bodies;
mod conflict;
mod context;
mod ending;
mod errors;
mod events;
mod middleware;
mod operate;
mod postgres;
mod replace;
mod result;
mod schedule;
mod stage;
mod steps;
mod testing;
mod trace;
mod transact;
mod waits;
