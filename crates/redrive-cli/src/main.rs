//! The `redrive` command.

mod bench;
mod call;
mod completions;
mod config;
mod dead;
mod demo;
mod doctor;
mod exit;
mod filter;
mod job;
mod key;
mod list;
mod migrate;
mod node;
mod operation;
mod patience;
mod policy;
mod print;
mod progress;
mod queue;
mod schedule;
mod serve;
mod simulate;
mod table;
mod task;
mod telemetry;
mod terminal;
mod top;
mod transfer;
mod when;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::exit::Exit;

/// Requests, attempts and settlements are many small allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs work that may fail, until it succeeds or its policy says stop, and keeps the evidence.
#[derive(Parser)]
#[command(name = "redrive", version, arg_required_else_help = true, after_help = exit::EXIT_CODES)]
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
    /// Create, follow and operate on tasks of a running service
    Task(task::Arguments),
    /// Look at jobs of every kind and operate on them
    Job(job::Arguments),
    /// Look at dead letters, drive them again, remove or export them
    Dead(dead::Arguments),
    /// Register retry policies, and see what they would do
    Policy(policy::Arguments),
    /// Look at queues, pause and bound them
    Queue(queue::Arguments),
    /// Look at schedules, pause them and run them now
    Schedule(schedule::Arguments),
    /// See who works on the store
    Node(node::Arguments),
    /// Begin, follow and stop long work on many jobs
    Operation(operation::Arguments),
    /// Watch how a service fares: rates, lag, depth, origins, problems, failures
    ///
    /// q or Ctrl-C ends it.
    Top(top::Arguments),
    /// Make, show and revoke API keys
    Key(key::Arguments),
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
    /// Looks at a store and its server: durability, vacuum, indexes, clocks, connections, wake-ups; and at the running service
    /// that --url or REDRIVE_URL names. It changes nothing, and needs no superuser. Ends with 0 when nothing is grave, and
    /// with 1 when something is or the store cannot be reached.
    Doctor(doctor::Arguments),
    /// Measure the engine on this machine, beside raw probes
    Bench(bench::Arguments),
    /// Show what a target sees while clients retry, in simulated time
    #[command(subcommand)]
    Simulate(simulate::Verb),
    /// Print a script that finishes words in a shell
    Completions(completions::Arguments),
}

fn main() -> ExitCode {
    let matches = without_values(Arguments::command()).try_get_matches();
    let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    match arguments {
        Ok(arguments) => exit::end(run(arguments.verb)),
        Err(error) => masked(error).exit(),
    }
}

/// The command with a help that names environment variables and never shows what they hold: an address has a password.
fn without_values(command: clap::Command) -> clap::Command {
    command.mut_args(|argument| argument.hide_env_values(true)).mut_subcommands(without_values)
}

/// The error without the password of an address that is not legal where it was given.
fn masked(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
        let shown = redrive::shown(value);
        error.insert(ContextKind::InvalidValue, ContextValue::String(shown));
    }
    error
}

fn run(verb: Verb) -> anyhow::Result<Exit> {
    match verb {
        Verb::Serve(arguments) => serve::run(arguments)?,
        Verb::Demo(arguments) => demo::run(&arguments)?,
        Verb::Task(arguments) => return wait_for(task::run(arguments)),
        Verb::Job(arguments) => return wait_for(job::run(arguments)),
        Verb::Dead(arguments) => return wait_for(dead::run(arguments)),
        Verb::Policy(arguments) => return wait_for(policy::run(arguments)),
        Verb::Queue(arguments) => return wait_for(queue::run(arguments)),
        Verb::Schedule(arguments) => return wait_for(schedule::run(arguments)),
        Verb::Node(arguments) => return wait_for(node::run(arguments)),
        Verb::Top(arguments) => return wait_for(top::run(arguments)),
        Verb::Operation(arguments) => return wait_for(operation::run(arguments)),
        Verb::Key(arguments) => return wait_for(key::run(arguments)),
        Verb::Migrate(place) => migrate::run(&place)?,
        Verb::Move(arguments) => transfer::run(&arguments)?,
        Verb::Doctor(arguments) => return wait_for(doctor::run(&arguments)),
        Verb::Bench(arguments) => bench::run(&arguments)?,
        Verb::Simulate(verb) => simulate::run(verb)?,
        Verb::Completions(arguments) => return completions::run::<Arguments>(&arguments),
    }
    Ok(Exit::Done)
}

/// Runs what needs a service or a store.
fn wait_for(work: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    serve::runtime()?.block_on(work)
}
