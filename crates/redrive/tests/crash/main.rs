//! Kills real processes at random moments and checks what they leave behind, by name: NOTHING-LOST, ATTEMPTS-BOUNDED,
//! ONE-OUTCOME, STALE-SHUT-OUT, NO-WEDGE.
//!
//! `REDRIVE_SOAK_SECONDS` makes the killing go on for longer, `REDRIVE_SEED` repeats its moments.

mod child;
mod full;
mod rounds;
mod stale;
#[path = "../victim/mod.rs"]
mod victim;

fn main() {
    victim::program::run(&TESTS, child::main);
}

const TESTS: [victim::program::Test; 3] = [
    ("processes_killed_at_random_moments_lose_nothing", rounds::killed_at_random_moments),
    ("a_paused_worker_that_wakes_after_reclaim_changes_nothing", stale::paused_worker),
    ("a_full_disk_is_an_error_and_loses_nothing", full::full_disk),
];
