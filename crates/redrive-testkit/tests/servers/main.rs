//! The private servers for tests: they answer, survive, fail on demand, and are gone afterwards.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod client;
mod pgbouncer;
mod postgres;
mod proxy;
mod s3;
