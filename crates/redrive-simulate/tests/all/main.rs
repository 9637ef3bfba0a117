//! Tests of the two experiments and their figures.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod contention;
mod figures;
mod outage;
