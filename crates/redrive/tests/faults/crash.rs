//! Kills processes that work on a SQLite file.

pub(crate) mod child;
mod full;
mod rounds;
mod stale;

use crate::runner::Test;

/// The name of this suite, for its child processes.
pub(crate) const SUITE: &str = "crash";

pub(crate) const TESTS: [Test; 3] = [
    ("processes_killed_at_random_moments_lose_nothing", rounds::killed_at_random_moments),
    ("a_paused_worker_that_wakes_after_reclaim_changes_nothing", stale::paused_worker),
    ("a_full_disk_is_an_error_and_loses_nothing", full::full_disk),
];
