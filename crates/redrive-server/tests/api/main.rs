//! The API through its real router, on SQLite in memory.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod access;
mod batch;
mod client;
mod dead_letters;
mod delivery;
mod document;
mod finding;
mod glance;
mod jobs;
mod metrics;
mod operations;
mod policies;
mod readiness;
mod refusals;
mod schedules;
mod service;
mod stage;
mod tasks;
mod tenants;
mod uploads;
