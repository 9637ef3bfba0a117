//! Breaks Postgres and Redis, the way to them and the nodes around them, and checks what is left, by name: NOTHING-LOST,
//! ATTEMPTS-BOUNDED, ONE-OUTCOME, STALE-SHUT-OUT, NO-WEDGE; and that orphans are picked up in time.
//!
//! `REDRIVE_SEED` repeats what was left to chance.

mod clocks;
mod commits;
mod crashes;
mod exhausted;
mod frozen;
mod full;
mod idle;
mod locks;
mod node;
mod power;
mod redis;
mod scene;
#[path = "../victim/mod.rs"]
mod victim;

fn main() {
    victim::program::run(&TESTS, node::main);
}

const TESTS: [victim::program::Test; 12] = [
    ("killed_and_restarted_under_load", crashes::killed_and_restarted_under_load),
    ("cut_in_the_middle_of_a_commit", commits::cut_in_the_middle_of_a_commit),
    ("frozen_for_three_leases", frozen::frozen_for_three_leases),
    ("clocks_that_differ_by_an_hour", clocks::clocks_that_differ_by_an_hour),
    ("pool_exhausted", exhausted::pool_exhausted),
    ("deadlock_ridden_out", locks::deadlock_ridden_out),
    ("lock_timeout_ridden_out", locks::lock_timeout_ridden_out),
    ("disk_full", full::disk_full),
    (
        "an_idle_node_makes_at_most_two_statements_a_second",
        idle::an_idle_node_makes_at_most_two_statements_a_second,
    ),
    ("redis_killed_and_restarted_under_load", redis::redis_killed_and_restarted_under_load),
    ("redis_power_cut_loses_no_more_than_was_said", power::redis_power_cut_loses_no_more_than_was_said),
    (
        "redis_cluster_moves_slots_and_loses_a_primary_under_load",
        redis::redis_cluster_moves_slots_and_loses_a_primary_under_load,
    ),
];
