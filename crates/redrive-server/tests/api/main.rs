//! The API through its real router, on SQLite in memory.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod access;
mod batch;
mod budget;
mod dead_letters;
mod delivery;
mod document;
mod error_responses;
mod failed_logins;
mod jobs;
mod listener;
mod lists;
mod local;
mod masking;
mod metrics;
mod operations;
mod overview;
mod policies;
mod quiet;
mod readiness;
mod reference;
mod request_bodies;
mod schedules;
mod search;
mod service;
mod sessions;
mod socket;
mod stage;
mod tasks;
mod tenants;
mod uploads;
mod wire_types;
