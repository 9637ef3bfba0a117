//! Kills processes, breaks servers and cuts connections, and checks afterwards that no guarantee was violated.
//!
//! Every test checks NOTHING-LOST, ATTEMPTS-BOUNDED, ONE-OUTCOME, STALE-SHUT-OUT and NO-WEDGE. `REDRIVE_SEED` repeats the random
//! choices of a run, and `REDRIVE_SOAK_SECONDS` lets the tests that kill processes run for longer.

mod checks;
mod crash;
mod durable;
mod process;
mod runner;
mod servers;
mod workload;

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(process::CHILD) {
        return run_child(&arguments.collect::<Vec<_>>());
    }
    runner::run(&[&crash::TESTS[..], &durable::TESTS, &servers::TESTS].concat());
}

/// Runs as a process that a test kills.
fn run_child(arguments: &[String]) {
    let [suite, arguments @ ..] = arguments else { panic!("{} SUITE MODE …", process::CHILD) };
    match suite.as_str() {
        crash::SUITE => crash::child::main(arguments),
        durable::SUITE => durable::node::main(arguments),
        servers::SUITE => servers::node::main(arguments),
        other => panic!("unknown suite: {other}"),
    }
}
