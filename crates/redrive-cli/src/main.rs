//! The `redrive` command.

mod bench;
mod call;
mod completions;
mod config;
mod dead;
mod demo;
mod doctor;
mod exit;
mod explicit;
mod file_limit;
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
mod values;
mod when;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::call::Reach;
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
    /// They may stand before the command too; each command reads its own copy.
    #[command(flatten)]
    _reach: Reach,
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
    let parsed = command().try_get_matches().and_then(|matches| {
        let arguments = Arguments::from_arg_matches(&matches)?;
        Ok((matches, arguments))
    });
    match parsed {
        Ok((matches, arguments)) => exit::end(refuse_unused(&matches).and_then(|()| run(arguments.verb))),
        Err(error) => masked(error).exit(),
    }
}

/// The command with a help that names environment variables and never shows what they hold: an address has a password.
fn without_values(command: Command) -> Command {
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

/// The shared options that mean nothing to a command: those that call no service, and those that print no JSON.
const UNUSED: [(&str, &[&str]); 8] = [
    ("serve", &["url", "api_key_file", "json"]),
    ("demo", &["url", "api_key_file", "json"]),
    ("migrate", &["url", "api_key_file", "json"]),
    ("completions", &["url", "api_key_file", "json"]),
    ("move", &["url", "api_key_file"]),
    ("bench", &["url", "api_key_file"]),
    ("simulate", &["url", "api_key_file"]),
    ("policy preview", &["url", "api_key_file"]),
];

/// The command with all that belongs to it; the help of each part shows only what the part uses.
fn command() -> Command {
    let mut command = without_values(Arguments::command());
    // Passes the shared options down, so that they can be hidden there.
    command.build();
    UNUSED.iter().fold(command, |command, (path, unused)| {
        let path: Vec<&str> = path.split(' ').collect();
        hide(command, &path, unused)
    })
}

/// Hides options of the part at `path`, and of all below it.
fn hide(command: Command, path: &[&str], unused: &[&str]) -> Command {
    if let [next, rest @ ..] = path {
        return command.mut_subcommand(next, |part| hide(part, rest, unused));
    }
    let parts: Vec<String> = command.get_subcommands().map(|part| part.get_name().to_owned()).collect();
    let command =
        command.mut_args(|arg| if unused.contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg });
    parts
        .into_iter()
        .fold(command, |command, part| command.mut_subcommand(part, |part| hide(part, &[], unused)))
}

/// An option that would be ignored is refused.
fn refuse_unused(matches: &ArgMatches) -> anyhow::Result<()> {
    let mut used = Vec::new();
    let mut part = matches;
    while let Some((name, below)) = part.subcommand() {
        used.push(name);
        part = below;
    }
    let is_used = |path: &str| path.split(' ').zip(&used).all(|(one, other)| one == *other);
    for (path, unused) in UNUSED.iter().filter(|(path, _)| is_used(path)) {
        let explicit = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        if let Some(id) = unused.iter().find(explicit) {
            let option = id.replace('_', "-");
            let text = format!(
                "`redrive {path}` has no option --{option}: `redrive {path} --help` lists its options"
            );
            return Err(Exit::Usage.because(text));
        }
    }
    Ok(())
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
        Verb::Completions(arguments) => return completions::run(&arguments, command()),
    }
    Ok(Exit::Done)
}

/// Runs what needs a service or a store.
fn wait_for(work: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    serve::runtime()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_commands_is_sound() {
        command().debug_assert();
        for (name, unused) in UNUSED {
            let command = command();
            let below = |part: &Command, name: &str| part.find_subcommand(name).cloned();
            let part = name.split(' ').try_fold(command, |part, name| below(&part, name));
            let part = part.unwrap_or_else(|| panic!("there is no {name}"));
            for id in unused {
                let option = part.get_arguments().find(|option| option.get_id() == id);
                assert!(option.is_some_and(clap::Arg::is_hide_set), "{name} shows --{id}");
            }
        }
    }
}
