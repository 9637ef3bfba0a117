//! Tests the worker through its public interface, on the model store and with a paused clock.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod attempts;
mod claims;
mod faulty_store;
mod fixture;
mod job_ends;
mod leases;
mod node_pause;
mod outage;
mod panics;
mod shutdown;
mod storage_retry;
mod waits;
