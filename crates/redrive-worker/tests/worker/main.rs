//! The worker as its users and its store see it, on the reference model and a paused clock.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod attempts;
mod claims;
mod endings;
mod leases;
mod node_pause;
mod outage;
mod panics;
mod rigged;
mod shutdown;
mod stage;
mod storage_retry;
mod waits;
