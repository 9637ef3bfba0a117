//! `redrive migrate` updates the tables of a store. `redrive move` moves everything to another store.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use redrive::{Error, MoveProgress, MoveResult, StoreMove};
use serde_json::json;

use crate::output;
use crate::output::progress::Bar;
use crate::serve::config::{StoreOption, check_store};
use crate::serve::runtime;

/// Creates or updates the tables of a store.
pub(crate) fn migrate(store: &StoreOption) -> anyhow::Result<()> {
    let migrated = runtime()?.block_on(redrive::migrate(store.checked()?));
    let schema = migrated.context("cannot update the tables")?;
    output::line(&format!("{} is at schema {schema}", redrive::mask_password(&store.store)))?;
    Ok(())
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The store to move from: sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE or
    /// redis://USER:PASSWORD@HOST
    #[arg(long, value_name = "ADDRESS", required_unless_present = "lift", requires = "to")]
    from: Option<String>,
    /// The store to move to
    #[arg(long, value_name = "ADDRESS", required_unless_present = "lift", requires = "from")]
    to: Option<String>,
    /// Move into a store that already has other jobs; its jobs and records stay
    #[arg(long)]
    merge: bool,
    /// Finish although some rows cannot be moved; they are listed and stay at the source
    #[arg(long)]
    leave_behind: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Remove the seal from a store, to abandon a move; jobs can be claimed from it again
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["from", "to", "merge", "leave_behind", "json"])]
    lift: Option<String>,
}

/// Moves everything from one store to another, or removes a seal.
pub(crate) fn run_move(arguments: &Arguments) -> anyhow::Result<()> {
    for (option, address) in
        [("--lift", &arguments.lift), ("--from", &arguments.from), ("--to", &arguments.to)]
    {
        address.as_deref().map_or(Ok(()), |address| check_store(option, address))?;
    }
    let runtime = runtime()?;
    match (&arguments.lift, &arguments.from, &arguments.to) {
        (Some(store), _, _) => runtime.block_on(lift_seal(store)),
        (None, Some(from), Some(to)) => runtime.block_on(move_store(arguments, from, to)),
        (None, _, _) => anyhow::bail!("name the stores with --from and --to"),
    }
}

async fn lift_seal(store: &str) -> anyhow::Result<()> {
    let lifted = redrive::lift_seals(store).await.context("cannot remove the seal")?;
    let shown = redrive::mask_password(store);
    if lifted.is_empty() {
        output::line(&format!("{shown} is not sealed"))?;
    }
    for reason in lifted {
        output::line(&format!("{shown} is no longer sealed; before, {reason}"))?;
    }
    Ok(())
}

async fn move_store(arguments: &Arguments, from: &str, to: &str) -> anyhow::Result<()> {
    let open = StoreMove::open(from, to).await;
    let mut moving = open.context("cannot open both stores: stop the service that has a SQLite file open")?;
    if arguments.merge {
        moving = moving.merge();
    }
    if arguments.leave_behind {
        moving = moving.leave_behind();
    }
    let mut progress = ProgressDisplay::new();
    let moved = moving.run(|step| progress.show(step)).await;
    progress.bar.clear();
    let (from, to) = (redrive::mask_password(from), redrive::mask_password(to));
    let moved = moved.map_err(|error| match error {
        // These messages already say what to do.
        Error::Move(_) | Error::Address(_) => anyhow::Error::new(error),
        error => anyhow::Error::new(error).context(format!(
            "the move from {from} to {to} was interrupted; nothing is lost and nothing runs twice: run the same command \
             again to continue"
        )),
    })?;
    if arguments.json {
        output::line(&serde_json::to_string_pretty(&summary(&from, &to, &moved))?)?;
    } else {
        output::text(&text(&from, &to, &moved))?;
    }
    Ok(())
}

/// Shows the progress of a move: a bar on a terminal, otherwise a line every few seconds.
struct ProgressDisplay {
    bar: Bar,
    last_line: Option<(Instant, &'static str)>,
}

/// The time between two lines about the same phase.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

impl ProgressDisplay {
    fn new() -> Self {
        Self { bar: Bar::new(""), last_line: None }
    }

    fn show(&mut self, progress: &MoveProgress) {
        let (phase, done, total) = match progress {
            MoveProgress::Waiting { running, until, now } => {
                let seconds = until.map_or(0, |until| (until.as_ms() - now.as_ms()).max(0) / 1000 + 1);
                let text = format!(
                    "waiting for {running} running jobs to end; without a heartbeat they end within {seconds} s"
                );
                return self.print_line("waiting", &text);
            }
            MoveProgress::Copying { done, total } => ("copying", *done, *total),
            MoveProgress::Verifying { done, total } => ("verifying", *done, *total),
        };
        if self.bar.is_visible() {
            self.bar.set_message(phase);
            self.bar.set(done, total);
        } else {
            self.print_line(phase, &format!("{phase}: {done} of {} jobs", total.max(done)));
        }
    }

    fn print_line(&mut self, phase: &'static str, text: &str) {
        let due = self.last_line.is_none_or(|(at, before)| before != phase || at.elapsed() >= LINE_INTERVAL);
        if due {
            self.last_line = Some((Instant::now(), phase));
            self.bar.print_line(text);
        }
    }
}

fn summary(from: &str, to: &str, moved: &MoveResult) -> serde_json::Value {
    let counts = moved.counts.iter().map(
        |((queue, state), jobs)| json!({ "queue": queue.as_str(), "state": state.to_string(), "jobs": jobs }),
    );
    let left = moved.left_behind.iter().map(|left| json!({ "id": left.id.to_string(), "why": left.why }));
    json!({
        "from": from,
        "to": to,
        "repeated": moved.repeated,
        "jobs": moved.jobs,
        "counts": counts.collect::<Vec<_>>(),
        "records": moved.records,
        "recordsKept": moved.records_kept,
        "ahead": moved.ahead.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "leftBehind": left.collect::<Vec<_>>(),
    })
}

fn text(from: &str, to: &str, moved: &MoveResult) -> String {
    let mut text = String::new();
    for ((queue, state), jobs) in &moved.counts {
        text += &format!("{jobs:>10} {state:<10} {queue}\n");
    }
    for left in &moved.left_behind {
        text += &format!("left behind: job {}: {}\n", left.id, left.why);
    }
    for id in &moved.ahead {
        text += &format!("not changed: job {id} has run at the target since it was moved\n");
    }
    for record in &moved.records_kept {
        text += &format!("not changed: record {record} of the target\n");
    }
    text + &if moved.repeated {
        format!("{} jobs that were enqueued at {from} meanwhile were moved to {to}\n", moved.jobs)
    } else {
        format!(
            "{} jobs and {} records were moved from {from} to {to}, which is now in use\n\
             {from} stays sealed: point services and workers at {to}, then run the same command once more to move the jobs \
             that were enqueued meanwhile\n",
            moved.jobs, moved.records
        )
    }
}
