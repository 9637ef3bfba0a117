//! Tests of the site as processes, on SQLite and on Postgres, with a real S3 server that can fail.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod browser;
mod client;
mod crash;
mod create;
mod delete;
mod outage;
mod setup;
mod share;
mod show;
mod sweep;
