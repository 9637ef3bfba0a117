//! `redrive dead`: what is beyond help until someone drives it again.

mod export;
mod groups;

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use redrive_server::wire::operation::{DryRun, Operation};
use serde_json::{Value, json};

use crate::call::{Answer, Reach, Service};
use crate::exit::Exit;
use crate::filter::DeadLetters;
use crate::list::{self, Columns, Pages, Paging};
use crate::{job, operation, print, task};

/// What to do with dead letters.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List exhausted tasks, or dead jobs of another kind, newest first
    List(ListArguments),
    /// Count dead letters by reason and target, with one example each
    Groups,
    /// Drive dead letters again, all that match
    ///
    /// It goes on in the service when this command is interrupted.
    Redrive(Redrive),
    /// Remove dead letters for good, all that match
    ///
    /// Asks first on a terminal; elsewhere it needs --yes.
    Discard(Discard),
    /// Write dead letters as JSON, one a line, newest first
    ///
    /// With --output it can be cut off and goes on where it stopped when it is run again.
    Export(export::Arguments),
}

#[derive(clap::Args)]
struct ListArguments {
    #[command(flatten)]
    filter: DeadLetters,
    #[command(flatten)]
    paging: Paging,
}

/// Many at once.
#[derive(clap::Args)]
struct Bulk {
    #[command(flatten)]
    filter: DeadLetters,
    /// In this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only count those that match
    #[arg(long)]
    dry_run: bool,
    /// At most this many a second
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Begin and do not wait for the end; prints the operation's id
    #[arg(long)]
    detach: bool,
}

#[derive(clap::Args)]
struct Redrive {
    #[command(flatten)]
    bulk: Bulk,
    /// Drive this many first, and go on only if all of them succeed
    #[arg(long, value_name = "N")]
    canary: Option<usize>,
}

#[derive(clap::Args)]
struct Discard {
    #[command(flatten)]
    bulk: Bulk,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

const DEAD: &str = "dead-letters";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let reach = arguments.reach;
    let service = reach.service()?;
    match arguments.verb {
        Verb::List(ListArguments { filter, paging }) => {
            let (path, query) = filter.listed();
            let pages = Pages::new(&service, &[path], query, &paging);
            let none = "there are no such dead letters";
            match filter.kind {
                None => list::show(&reach, pages, &Columns { none, ..task::COLUMNS }).await,
                Some(_) => list::show(&reach, pages, &Columns { none, ..job::COLUMNS }).await,
            }
        }
        Verb::Groups => groups::run(&reach, &service).await,
        Verb::Redrive(Redrive { bulk, canary }) => {
            let mut request = bulk.request()?;
            request["canary"] = json!(canary);
            let many =
                Many { reach: &reach, service: &service, verb: "redrive", request, detach: bulk.detach };
            if bulk.dry_run { many.show_count().await } else { many.begin().await }
        }
        Verb::Discard(Discard { bulk, yes }) => {
            let request = bulk.request()?;
            let many =
                Many { reach: &reach, service: &service, verb: "discard", request, detach: bulk.detach };
            if bulk.dry_run { many.show_count().await } else { many.begin_if_sure(yes).await }
        }
        Verb::Export(arguments) => export::run(&service, &arguments).await,
    }
}

impl Bulk {
    fn request(&self) -> anyhow::Result<Value> {
        let mut request = serde_json::to_value(&self.filter)?;
        request["queue"] = json!(self.queue);
        request["ratePerSecond"] = json!(self.rate);
        Ok(request)
    }
}

/// An operation on many dead letters.
struct Many<'a> {
    reach: &'a Reach,
    service: &'a Service,
    verb: &'static str,
    request: Value,
    detach: bool,
}

impl Many<'_> {
    async fn count(&self) -> anyhow::Result<(DryRun, Answer)> {
        let mut request = self.request.clone();
        request["dryRun"] = json!(true);
        let answer = self.service.post(&[DEAD, self.verb], &request).await?;
        Ok((answer.read()?, answer))
    }

    async fn show_count(&self) -> anyhow::Result<Exit> {
        let (counted, answer) = self.count().await?;
        if self.reach.json {
            print::text(&print::one_line(&answer.raw()))?;
        } else {
            let verb = if counted.matched == 1 { "matches" } else { "match" };
            print::line(&format!("{} {verb}; nothing was changed", in_words(&counted)))?;
        }
        Ok(Exit::Done)
    }

    async fn begin_if_sure(&self, yes: bool) -> anyhow::Result<Exit> {
        if !yes {
            let (counted, _) = self.count().await?;
            if counted.matched == 0 {
                print::note("no dead letter matches");
                return Ok(Exit::Done);
            }
            sure(&in_words(&counted))?;
        }
        self.begin().await
    }

    async fn begin(&self) -> anyhow::Result<Exit> {
        let answer = self.service.post(&[DEAD, self.verb], &self.request).await?;
        let begun: Operation = answer.read()?;
        if !self.detach {
            return operation::follow(self.reach, self.service, &begun.operation_id).await;
        }
        if self.reach.json {
            print::text(&print::one_line(&answer.raw()))?;
        } else {
            print::line(&begun.operation_id)?;
            print::note(&format!("`redrive operation watch {}` follows it", begun.operation_id));
        }
        Ok(Exit::Done)
    }
}

fn letters(count: u64) -> String {
    if count == 1 { "1 dead letter".to_owned() } else { format!("{count} dead letters") }
}

fn in_words(counted: &DryRun) -> String {
    let more = if counted.at_least { "at least " } else { "" };
    format!("{more}{}", letters(counted.matched))
}

/// Asks whoever sits at the terminal.
fn sure(letters: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let text = format!("{letters} would be removed for good: add --yes, or look first with --dry-run");
        return Err(Exit::Refused.because(text));
    }
    write!(io::stderr(), "remove {letters} for good? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(Exit::Refused.because("nothing was removed"))
}
