//! The `redrive` command.

mod client;
mod dead;
mod demo;
mod doctor;
mod exit;
mod filter;
mod job;
mod key;
mod node;
mod operation;
mod options;
mod output;
mod policy;
mod queue;
mod schedule;
mod serve;
mod simulate;
mod stores;
mod task;
mod top;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::client::ServiceOptions;
use crate::exit::ExitStatus;

/// Requests, attempts and settlements make many small allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A durable retry service and job engine: delivers calls under a retry policy and records every attempt
#[derive(Parser)]
#[command(name = "redrive", version, arg_required_else_help = true, after_help = exit::EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: RedriveCommand,
    /// The same options are accepted before the command. Each command reads its own copy.
    #[command(flatten)]
    _options: ServiceOptions,
}

#[derive(Subcommand)]
enum RedriveCommand {
    /// Run the service: accept tasks over HTTP and deliver them
    Serve(serve::Arguments),
    /// Run a service with a flaky target and a stream of tasks, to see how it works
    Demo(demo::Arguments),
    /// Create, show, list, watch, cancel and redrive tasks
    Task(task::Arguments),
    /// Show, list, cancel and redrive jobs of every kind
    Job(job::Arguments),
    /// List, redrive, discard and export dead letters
    Dead(dead::Arguments),
    /// Create, show, list and preview retry policies
    Policy(policy::Arguments),
    /// List, pause, resume and limit queues
    Queue(queue::Arguments),
    /// List, pause, resume and run schedules
    Schedule(schedule::Arguments),
    /// List the nodes of the store
    Node(node::Arguments),
    /// Start, show, watch and cancel operations on many jobs
    Operation(operation::Arguments),
    /// Show rates, start lag, jobs, origins, problems and failures, and refresh them
    ///
    /// Press q or Ctrl-C to quit.
    Top(top::Arguments),
    /// Create, list and revoke API keys
    Key(key::Arguments),
    /// Create or update the tables of a store
    ///
    /// A service does this when it starts. Run it separately if the database role of the service may not change tables, or
    /// before you start many nodes at once.
    Migrate(serve::config::StoreOption),
    /// Move everything from one store to another
    ///
    /// While a move runs, no job is claimed from either store; jobs that are running may end. If a move is interrupted, run
    /// the same command again to continue it. Afterwards the target is in use and the source stays sealed. Run the command
    /// once more to move the jobs that were enqueued at the source meanwhile.
    Move(stores::Arguments),
    /// Check a store and its service for problems
    ///
    /// Checks durability, vacuum, indexes, clocks, connections and wake-ups of the store, and the running service if --url or
    /// REDRIVE_URL is set. It changes nothing and needs no superuser. The exit code is 0 if no finding is critical, and 1 if
    /// one is or the store cannot be reached.
    Doctor(doctor::Arguments),
    /// Simulate the load on a target while clients retry
    #[command(subcommand)]
    Simulate(simulate::SimulateCommand),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| {
        let arguments = Arguments::from_arg_matches(&matches)?;
        Ok((matches, arguments))
    });
    match parsed {
        Ok((matches, arguments)) => {
            exit::exit_code(reject_unused_options(&matches).and_then(|()| run(arguments.command)))
        }
        Err(error) => without_password(error).exit(),
    }
}

fn run(command: RedriveCommand) -> anyhow::Result<ExitStatus> {
    use RedriveCommand as C;
    match command {
        C::Serve(arguments) => serve::run(arguments)?,
        C::Demo(arguments) => demo::run(&arguments)?,
        C::Task(arguments) => return block_on(task::run(arguments)),
        C::Job(arguments) => return block_on(job::run(arguments)),
        C::Dead(arguments) => return block_on(dead::run(arguments)),
        C::Policy(arguments) => return block_on(policy::run(arguments)),
        C::Queue(arguments) => return block_on(queue::run(arguments)),
        C::Schedule(arguments) => return block_on(schedule::run(arguments)),
        C::Node(arguments) => return block_on(node::run(arguments)),
        C::Top(arguments) => return block_on(top::run(arguments)),
        C::Operation(arguments) => return block_on(operation::run(arguments)),
        C::Key(arguments) => return block_on(key::run(arguments)),
        C::Migrate(store) => stores::migrate(&store)?,
        C::Move(arguments) => stores::run_move(&arguments)?,
        C::Doctor(arguments) => return block_on(doctor::run(&arguments)),
        C::Simulate(command) => simulate::run(command)?,
        C::Completions { shell } => print_completions(shell)?,
    }
    Ok(ExitStatus::Success)
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitStatus>>) -> anyhow::Result<ExitStatus> {
    serve::runtime()?.block_on(work)
}

fn print_completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "redrive", &mut script);
    output::text(&String::from_utf8(script)?)?;
    Ok(())
}

/// The shared options that a command does not use, because it calls no service or prints no JSON.
const UNUSED_OPTIONS: [(&str, &[&str]); 7] = [
    ("serve", &["url", "api_key_file", "json"]),
    ("demo", &["url", "api_key_file", "json"]),
    ("migrate", &["url", "api_key_file", "json"]),
    ("completions", &["url", "api_key_file", "json"]),
    ("move", &["url", "api_key_file"]),
    ("simulate", &["url", "api_key_file"]),
    ("policy preview", &["url", "api_key_file"]),
];

/// The whole tree of commands. The help of each command shows only the options that it uses.
fn command() -> Command {
    let mut command = hide_env_values(Arguments::command());
    // Copies the shared options to the subcommands, so that they can be hidden there.
    command.build();
    UNUSED_OPTIONS.iter().fold(command, |command, (path, unused)| {
        let path: Vec<&str> = path.split(' ').collect();
        hide_options(command, &path, unused)
    })
}

/// Removes the values of environment variables from the help: the address of a store contains a password.
fn hide_env_values(command: Command) -> Command {
    command.mut_args(|argument| argument.hide_env_values(true)).mut_subcommands(hide_env_values)
}

/// Hides options of the subcommand at `path` and of its own subcommands.
fn hide_options(command: Command, path: &[&str], unused: &[&str]) -> Command {
    if let [next, rest @ ..] = path {
        return command.mut_subcommand(next, |subcommand| hide_options(subcommand, rest, unused));
    }
    let names: Vec<String> = command.get_subcommands().map(|part| part.get_name().to_owned()).collect();
    let command =
        command.mut_args(|arg| if unused.contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg });
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |subcommand| hide_options(subcommand, &[], unused))
    })
}

/// Fails if the command line has an option that the command would ignore.
fn reject_unused_options(matches: &ArgMatches) -> anyhow::Result<()> {
    let mut names = Vec::new();
    let mut part = matches;
    while let Some((name, subcommand)) = part.subcommand() {
        names.push(name);
        part = subcommand;
    }
    let was_given = |path: &str| path.split(' ').zip(&names).all(|(one, other)| one == *other);
    for (path, unused) in UNUSED_OPTIONS.iter().filter(|(path, _)| was_given(path)) {
        let is_explicit = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        if let Some(id) = unused.iter().find(is_explicit) {
            let option = id.replace('_', "-");
            let text = format!(
                "`redrive {path}` has no option --{option}: `redrive {path} --help` lists its options"
            );
            return Err(ExitStatus::Usage.error(text));
        }
    }
    Ok(())
}

/// Masks the password of an invalid address in an error of clap.
fn without_password(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
        let shown = redrive::mask_password(value);
        error.insert(ContextKind::InvalidValue, ContextValue::String(shown));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_valid_and_hides_unused_options() {
        command().debug_assert();
        for (name, unused) in UNUSED_OPTIONS {
            let command = command();
            let subcommand = |part: &Command, name: &str| part.find_subcommand(name).cloned();
            let part = name.split(' ').try_fold(command, |part, name| subcommand(&part, name));
            let part = part.unwrap_or_else(|| panic!("there is no command {name}"));
            for id in unused {
                let option = part.get_arguments().find(|option| option.get_id() == id);
                assert!(option.is_some_and(clap::Arg::is_hide_set), "{name} shows --{id}");
            }
        }
    }
}
