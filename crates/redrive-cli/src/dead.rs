//! `redrive dead`: what is beyond help until someone drives it again.

mod export;
mod groups;

use serde_json::{Value, json};

use crate::call::Reach;
use crate::exit::Exit;
use crate::filter::DeadLetters;
use crate::list::{self, Columns, Pages, Paging};
use crate::operation::begin::{Many, Pace};
use crate::values::whole;
use crate::{job, task};

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
    #[command(flatten)]
    pace: Pace,
}

#[derive(clap::Args)]
struct Redrive {
    #[command(flatten)]
    bulk: Bulk,
    /// Drive this many first, and go on only if all of them succeed
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1.., 3))]
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
        Verb::Groups => groups::run(&reach).await,
        Verb::Redrive(Redrive { bulk, canary }) => {
            let mut request = bulk.request()?;
            request["canary"] = json!(canary);
            Many { reach: &reach, service: &service, path: &[DEAD, "redrive"], request, named: letters }
                .begin(&bulk.pace)
                .await
        }
        Verb::Discard(Discard { bulk, yes }) => {
            let request = bulk.request()?;
            Many { reach: &reach, service: &service, path: &[DEAD, "discard"], request, named: letters }
                .begin_if_sure(&bulk.pace, "remove", yes)
                .await
        }
        Verb::Export(arguments) => export::run(&service, &arguments).await,
    }
}

impl Bulk {
    fn request(&self) -> anyhow::Result<Value> {
        let mut request = serde_json::to_value(&self.filter)?;
        request["queue"] = json!(self.queue);
        request["ratePerSecond"] = json!(self.pace.rate);
        Ok(request)
    }
}

fn letters(count: u64) -> String {
    if count == 1 { "1 dead letter".to_owned() } else { format!("{count} dead letters") }
}
