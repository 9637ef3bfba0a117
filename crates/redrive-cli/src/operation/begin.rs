//! Begins work on all jobs that match: counts first, asks before what cannot be undone, then follows it.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use redrive_server::wire::operation::{DryRun, Operation};
use serde_json::{Value, json};

use super::{OPERATIONS, follow};
use crate::call::{Answer, Reach, Service};
use crate::exit::Exit;
use crate::filter;
use crate::print;
use crate::values::{parse_number, whole};
use crate::when::parse_past;

/// What to do, and to which jobs.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// What to do to each
    what: What,
    #[command(flatten)]
    filter: filter::Jobs,
    /// Ended after this instant
    #[arg(long, value_name = "WHEN", value_parser = parse_past)]
    finished_since: Option<i64>,
    /// Ended before this instant
    #[arg(long, value_name = "WHEN", value_parser = parse_past)]
    finished_before: Option<i64>,
    /// Begin with this many, and go on only if all of them succeed; for redrive and run-now
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1.., 3))]
    canary: Option<usize>,
    /// Do not ask before a cancel or discard
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    pace: Pace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Drive dead jobs again
    Redrive,
    /// Remove dead jobs for good
    Discard,
    /// End jobs, with everything below them
    Cancel,
    /// Skip the wait of jobs
    RunNow,
}

/// How fast, and whether at all.
#[derive(clap::Args)]
pub(crate) struct Pace {
    /// Only count those that match
    #[arg(long)]
    dry_run: bool,
    /// At most this many a second
    #[arg(long, value_name = "N", value_parser = parse_number)]
    pub(crate) rate: Option<f64>,
    /// Begin and do not wait for the end; prints the operation's id
    #[arg(long)]
    detach: bool,
}

pub(super) async fn run(reach: &Reach, service: &Service, arguments: &Arguments) -> anyhow::Result<Exit> {
    let many = Many { reach, service, path: &[OPERATIONS], request: arguments.request()?, named: jobs };
    match arguments.what {
        What::Discard => many.begin_if_sure(&arguments.pace, "remove", arguments.yes).await,
        What::Cancel => many.begin_if_sure(&arguments.pace, "end", arguments.yes).await,
        What::Redrive | What::RunNow => many.begin(&arguments.pace).await,
    }
}

impl Arguments {
    fn request(&self) -> anyhow::Result<Value> {
        let kind = match self.what {
            What::Redrive => "REDRIVE",
            What::Discard => "DISCARD",
            What::Cancel => "CANCEL",
            What::RunNow => "RUN_NOW",
        };
        let mut filter = serde_json::to_value(&self.filter)?;
        filter["finishedAfter"] = json!(self.finished_since);
        filter["finishedBefore"] = json!(self.finished_before);
        Ok(json!({"kind": kind, "filter": filter, "ratePerSecond": self.pace.rate, "canary": self.canary}))
    }
}

fn jobs(count: u64) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// An operation on all that match.
pub(crate) struct Many<'a> {
    pub(crate) reach: &'a Reach,
    pub(crate) service: &'a Service,
    /// Where it is asked for.
    pub(crate) path: &'a [&'a str],
    /// What is asked for.
    pub(crate) request: Value,
    /// So many of them, in words.
    pub(crate) named: fn(u64) -> String,
}

impl Many<'_> {
    /// Begins it, once whoever sits at the terminal has agreed.
    pub(crate) async fn begin_if_sure(&self, pace: &Pace, verb: &str, yes: bool) -> anyhow::Result<Exit> {
        if !yes && !pace.dry_run {
            let (counted, _) = self.count().await?;
            if counted.matched == 0 {
                print::note("nothing matches");
                return Ok(Exit::Done);
            }
            agreed(verb, &self.in_words(&counted))?;
        }
        self.begin(pace).await
    }

    /// Begins it, and follows it to its end.
    pub(crate) async fn begin(&self, pace: &Pace) -> anyhow::Result<Exit> {
        if pace.dry_run {
            return self.show_count().await;
        }
        let answer = self.service.post(self.path, &self.request).await?;
        let begun: Operation = answer.read()?;
        if !pace.detach {
            return follow(self.reach, self.service, &begun.operation_id).await;
        }
        if self.reach.json {
            print::text(&print::one_line(&answer.raw()))?;
        } else {
            print::line(&begun.operation_id)?;
            print::note(&format!("`redrive operation watch {}` follows it", begun.operation_id));
        }
        Ok(Exit::Done)
    }

    async fn show_count(&self) -> anyhow::Result<Exit> {
        let (counted, answer) = self.count().await?;
        if self.reach.json {
            print::text(&print::one_line(&answer.raw()))?;
        } else {
            let verb = if counted.matched == 1 { "matches" } else { "match" };
            print::line(&format!("{} {verb}; nothing was changed", self.in_words(&counted)))?;
        }
        Ok(Exit::Done)
    }

    async fn count(&self) -> anyhow::Result<(DryRun, Answer)> {
        let mut request = self.request.clone();
        request["dryRun"] = json!(true);
        let answer = self.service.post(self.path, &request).await?;
        Ok((answer.read()?, answer))
    }

    fn in_words(&self, counted: &DryRun) -> String {
        let more = if counted.at_least { "at least " } else { "" };
        format!("{more}{}", (self.named)(counted.matched))
    }
}

/// Asks whoever sits at the terminal.
fn agreed(verb: &str, many: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let text = format!("this would {verb} {many} for good: add --yes, or look first with --dry-run");
        return Err(Exit::Refused.because(text));
    }
    write!(io::stderr(), "{verb} {many} for good? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(Exit::Refused.because("nothing was changed"))
}
