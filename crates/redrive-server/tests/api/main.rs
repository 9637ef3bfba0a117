//! The API through its real router, on SQLite in memory.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod access;
mod batch;
mod budget;
mod client;
mod dead_letters;
mod delivery;
mod document;
mod finding;
mod glance;
mod jobs;
mod listener;
mod local;
mod logins;
mod metrics;
mod operations;
mod policies;
mod readiness;
mod refusals;
mod request_bodies;
mod schedules;
mod secrecy;
mod service;
mod sessions;
mod socket;
mod stage;
mod tasks;
mod tenants;
mod uploads;
