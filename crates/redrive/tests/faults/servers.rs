//! Breaks Postgres and Redis, the connections to them and the nodes on them. Also checks that orphans are reclaimed in time.

mod clocks;
mod commits;
mod crashes;
mod exhausted;
mod fixture;
mod frozen;
mod full;
mod idle;
mod locks;
pub(crate) mod node;
mod power;
mod redis;

use crate::runner::Test;

/// The name of this suite, for its child processes.
pub(crate) const SUITE: &str = "servers";

/// The names of tests that measure times start with `quiet::`, so that `cargo xtask test` runs them alone.
pub(crate) const TESTS: [Test; 12] = [
    ("quiet::killed_and_restarted_under_load", crashes::killed_and_restarted_under_load),
    ("cut_in_the_middle_of_a_commit", commits::cut_in_the_middle_of_a_commit),
    ("quiet::frozen_for_three_leases", frozen::frozen_for_three_leases),
    ("quiet::clocks_that_differ_by_an_hour", clocks::clocks_that_differ_by_an_hour),
    ("pool_exhausted", exhausted::pool_exhausted),
    ("settlements_survive_a_deadlock", locks::settlements_survive_a_deadlock),
    ("settlements_survive_a_lock_timeout", locks::settlements_survive_a_lock_timeout),
    ("disk_full", full::disk_full),
    (
        "quiet::an_idle_node_makes_at_most_two_statements_a_second",
        idle::an_idle_node_makes_at_most_two_statements_a_second,
    ),
    ("quiet::redis_killed_and_restarted_under_load", redis::redis_killed_and_restarted_under_load),
    (
        "redis_power_cut_loses_no_more_than_the_doctor_reports",
        power::redis_power_cut_loses_no_more_than_the_doctor_reports,
    ),
    (
        "redis_cluster_moves_slots_and_loses_a_primary_under_load",
        redis::redis_cluster_moves_slots_and_loses_a_primary_under_load,
    ),
];
