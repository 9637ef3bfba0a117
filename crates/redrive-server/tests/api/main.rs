//! The API through its real router, on SQLite in memory.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod batch;
mod dead_letters;
mod document;
mod policies;
mod refusals;
mod service;
mod stage;
mod tasks;
mod tenants;
mod uploads;
