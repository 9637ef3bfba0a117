//! Kills processes that run durable jobs and checks what they leave behind, by name: STEP-ONCE, FANOUT-EXACT, UNIQUE,
//! SCHEDULE-ONCE, SIGNAL-ONCE, TIMER-ONCE, SLOT-NO-LEAK, IN-ORDER, CANCEL-FINAL, beside the five of the core.
//!
//! `REDRIVE_SOAK_SECONDS` makes the killing go on for longer, `REDRIVE_SEED` repeats its moments.

#[path = "../victim/books.rs"]
mod books;
mod checks;
mod journal;
mod node;
#[path = "../victim/process.rs"]
mod process;
#[path = "../victim/program.rs"]
mod program;
mod rounds;
mod tasks;

fn main() {
    program::run(&TESTS, node::main);
}

const TESTS: [program::Test; 3] = [
    ("durable_jobs_survive_kills_on_sqlite", rounds::on_sqlite),
    ("durable_jobs_survive_kills_on_postgres", rounds::on_postgres),
    ("durable_jobs_survive_kills_on_redis", rounds::on_redis),
];
