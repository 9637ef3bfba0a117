//! `redrive move`: everything from one store to another, with how far it has come.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use redrive::{Error, Move, Moved, Progress};
use serde_json::json;

use crate::config::check_store;
use crate::print;
use crate::serve::runtime;

/// From where to where.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The store to move away from: sqlite:FILE or postgres://USER:PASSWORD@HOST/DATABASE
    #[arg(long, value_name = "ADDRESS", required_unless_present = "lift", requires = "to")]
    from: Option<String>,
    /// The store to move to
    #[arg(long, value_name = "ADDRESS", required_unless_present = "lift", requires = "from")]
    to: Option<String>,
    /// Move into a store that has other jobs already; jobs and records that are there stay
    #[arg(long)]
    merge: bool,
    /// End although some rows cannot be moved; they are named and stay at the source
    #[arg(long)]
    leave_behind: bool,
    /// JSON for programs instead of text for people
    #[arg(long)]
    json: bool,
    /// Let jobs be claimed from a store again that was moved or being filled: for a move that was given up
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["from", "to", "merge", "leave_behind", "json"])]
    lift: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for (option, address) in
        [("--lift", &arguments.lift), ("--from", &arguments.from), ("--to", &arguments.to)]
    {
        address.as_deref().map_or(Ok(()), |address| check_store(option, address))?;
    }
    let runtime = runtime()?;
    match (&arguments.lift, &arguments.from, &arguments.to) {
        (Some(store), _, _) => runtime.block_on(lift(store)),
        (None, Some(from), Some(to)) => runtime.block_on(transfer(arguments, from, to)),
        (None, _, _) => anyhow::bail!("name the stores with --from and --to"),
    }
}

async fn lift(store: &str) -> anyhow::Result<()> {
    let lifted = redrive::lift(store).await.context("the seal cannot be lifted")?;
    let shown = redrive::shown(store);
    if lifted.is_empty() {
        print::line(&format!("{shown} is not sealed"))?;
    }
    for what in lifted {
        print::line(&format!("{shown} is open for work again; before, {what}"))?;
    }
    Ok(())
}

async fn transfer(arguments: &Arguments, from: &str, to: &str) -> anyhow::Result<()> {
    let open = Move::open(from, to).await;
    let mut moving =
        open.context("a store cannot be opened; stop the service that has a SQLite file open")?;
    if arguments.merge {
        moving = moving.merge();
    }
    if arguments.leave_behind {
        moving = moving.leave_behind();
    }
    let mut told = Told::new();
    let moved = moving.run(|progress| told.tell(progress)).await;
    told.end();
    let (from, to) = (redrive::shown(from), redrive::shown(to));
    let moved = moved.map_err(|error| match error {
        // These say what to do.
        Error::Move(_) | Error::Address(_) => anyhow::Error::new(error),
        error => anyhow::Error::new(error).context(format!(
            "the move from {from} to {to} was cut off; nothing is lost and nothing runs twice: run the same command again \
             and it goes on"
        )),
    })?;
    if arguments.json {
        print::line(&serde_json::to_string_pretty(&summary(&from, &to, &moved))?)?;
    } else {
        print::text(&text(&from, &to, &moved))?;
    }
    Ok(())
}

/// A bar on a terminal, a line now and then elsewhere.
struct Told {
    bar: Option<ProgressBar>,
    last: Option<(Instant, &'static str)>,
}

/// Between two lines about the same.
const LINE_EVERY: Duration = Duration::from_secs(2);

impl Told {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:>10} {wide_bar} {human_pos}/{human_len} {eta}");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, last: None }
    }

    fn tell(&mut self, progress: &Progress) {
        let (what, done, total) = match progress {
            Progress::Waiting { running, until, now } => {
                let left = until.map_or(0, |until| (until.as_ms() - now.as_ms()).max(0) / 1000 + 1);
                return self.line(
                    "waiting",
                    &format!("waiting for {running} running jobs to end, {left} s at most unless they go on"),
                );
            }
            Progress::Copying { done, total } => ("copying", *done, *total),
            Progress::Verifying { done, total } => ("verifying", *done, *total),
        };
        match &self.bar {
            Some(bar) => {
                bar.set_message(what);
                bar.set_length(total.max(done));
                bar.set_position(done);
            }
            None => self.line(what, &format!("{what}: {done} of {} jobs", total.max(done))),
        }
    }

    fn line(&mut self, what: &'static str, text: &str) {
        let due = self.last.is_none_or(|(at, before)| before != what || at.elapsed() >= LINE_EVERY);
        if due {
            self.last = Some((Instant::now(), what));
            match &self.bar {
                Some(bar) => bar.println(text),
                None => print::note(text),
            }
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn summary(from: &str, to: &str, moved: &Moved) -> serde_json::Value {
    let counts = moved.counts.iter().map(
        |((queue, state), jobs)| json!({ "queue": queue.as_str(), "state": state.to_string(), "jobs": jobs }),
    );
    let left = moved.left_behind.iter().map(|left| json!({ "id": left.id.to_string(), "why": left.why }));
    json!({
        "from": from,
        "to": to,
        "again": moved.again,
        "jobs": moved.jobs,
        "counts": counts.collect::<Vec<_>>(),
        "records": moved.records,
        "recordsKept": moved.records_kept,
        "ahead": moved.ahead.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "leftBehind": left.collect::<Vec<_>>(),
    })
}

fn text(from: &str, to: &str, moved: &Moved) -> String {
    let mut text = String::new();
    for ((queue, state), jobs) in &moved.counts {
        text += &format!("{jobs:>10} {state:<10} {queue}\n");
    }
    for left in &moved.left_behind {
        text += &format!("left behind: job {}: {}\n", left.id, left.why);
    }
    for id in &moved.ahead {
        text += &format!("left alone: job {id} has run at the target since\n");
    }
    for record in &moved.records_kept {
        text += &format!("kept as the target has it: record {record}\n");
    }
    text + &if moved.again {
        format!("{} jobs that were enqueued at {from} since were brought to {to}\n", moved.jobs)
    } else {
        format!(
            "{} jobs and {} records were moved from {from} to {to}, which is open for work\n\
             {from} stays sealed: point services and workers at {to}, then run the same command once more for what was \
             enqueued meanwhile\n",
            moved.jobs, moved.records
        )
    }
}
