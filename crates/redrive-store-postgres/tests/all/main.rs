//! Tests of the Postgres store on private servers.

mod concurrent_nodes;
mod conformance;
mod counts;
mod deadlocks;
mod doctor;
mod guide_programs;
mod harness;
mod isolation;
mod job_trees;
mod lanes;
mod lease_parts;
mod limits;
mod locked_rows;
mod migration;
mod planned_claims;
mod plans;
mod retention;
// The statements themselves, which are private to the crate: tests of plans and races run them one by one.
#[path = "../../src/sql.rs"]
#[expect(dead_code, reason = "only some of the statements are tested by themselves")]
mod sql;
mod steps;
mod transactions;
mod wakes;
