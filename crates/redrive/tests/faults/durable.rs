//! Kills processes that run durable jobs, and checks STEP-ONCE, FANOUT-EXACT, UNIQUE, SCHEDULE-ONCE, SIGNAL-ONCE, TIMER-ONCE,
//! SLOT-NO-LEAK, IN-ORDER and CANCEL-FINAL in addition.

mod checks;
mod journal;
pub(crate) mod node;
mod rounds;
mod tasks;

use crate::runner::Test;

/// The name of this suite, for its child processes.
pub(crate) const SUITE: &str = "durable";

pub(crate) const TESTS: [Test; 3] = [
    ("durable_jobs_survive_kills_on_sqlite", rounds::on_sqlite),
    ("durable_jobs_survive_kills_on_postgres", rounds::on_postgres),
    ("durable_jobs_survive_kills_on_redis", rounds::on_redis),
];
