//! Runs the program `redrive` as its users do.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cli;
mod doctor;
mod fixtures;
mod glossary;
mod policy_preview;
mod service;
mod simulate;
mod store_move;
