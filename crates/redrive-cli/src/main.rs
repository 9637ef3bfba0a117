//! The `redrive` command.

mod bench;
mod config;
mod demo;
mod doctor;
mod key;
mod migrate;
mod policy;
mod serve;
mod simulate;
mod telemetry;
mod transfer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Requests, attempts and settlements are many small allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs work that may fail, until it succeeds or its policy says stop, and keeps the evidence.
#[derive(Parser)]
#[command(name = "redrive", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Take calls over HTTP and deliver them under a policy
    Serve(serve::Arguments),
    /// Start a service, a flaky target and a trickle of tasks, to see it work
    Demo(demo::Arguments),
    /// Make, show and revoke API keys
    #[command(subcommand)]
    Key(key::Verb),
    /// Make or update a store's tables, and do nothing else
    ///
    /// A service does this when it starts. Do it apart where its role may not change tables, or before many start at once.
    Migrate(config::Place),
    /// Move everything from one store to another
    ///
    /// Nothing is claimed from either while it runs; running jobs may end first. Cut off and run again it goes on where it
    /// stopped. Afterwards the target is open and the source stays sealed; running it once more brings what was enqueued at
    /// the source meanwhile.
    Move(transfer::Arguments),
    /// Say what would hurt, with evidence and what to do
    ///
    /// Looks at a store and its server: durability, vacuum, indexes, clocks, connections, wake-ups. It changes nothing, and
    /// needs no superuser. Ends with 0 when nothing is grave, and with 1 when something is or the store cannot be reached.
    Doctor(doctor::Arguments),
    /// Measure the engine on this machine, beside raw probes
    Bench(bench::Arguments),
    /// Look at retry policies
    #[command(subcommand)]
    Policy(policy::Verb),
    /// Show what a target sees while clients retry, in simulated time
    #[command(subcommand)]
    Simulate(simulate::Verb),
}

/// 0 worked, 1 did not, 2 was not asked rightly (clap's own).
fn main() -> ExitCode {
    run(Arguments::parse().verb).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Serve(arguments) => serve::run(arguments)?,
        Verb::Demo(arguments) => demo::run(&arguments)?,
        Verb::Key(verb) => key::run(verb)?,
        Verb::Migrate(place) => migrate::run(&place)?,
        Verb::Move(arguments) => transfer::run(&arguments)?,
        Verb::Doctor(arguments) => return doctor::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments)?,
        Verb::Policy(verb) => policy::run(verb)?,
        Verb::Simulate(verb) => simulate::run(verb)?,
    }
    Ok(ExitCode::SUCCESS)
}
