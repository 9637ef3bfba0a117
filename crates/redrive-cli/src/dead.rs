//! `redrive dead`: dead letters.

mod export;

use std::cmp::Reverse;

use redrive_wire::group::DeadLetterGroup;
use redrive_wire::operation::{OperationKind, OperationRequest};
use redrive_wire::state::JobState;
use redrive_wire::task::TASK_KIND;
use serde_json::value::RawValue;

use crate::client::{Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::filter::{FilterOptions, query};
use crate::operation::start::{BulkRequest, StartOptions};
use crate::options::integer;
use crate::output::list::{self, Columns, Pages, Paging};
use crate::output::table::Cell;
use crate::{job, task};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: DeadCommand,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum DeadCommand {
    /// List dead tasks, or dead jobs of another kind, newest first
    List(ListArguments),
    /// Count dead letters by reason and target, the largest group first, with an example of each
    Groups(FilterOptions),
    /// Redrive all dead letters that match a filter
    ///
    /// The operation continues in the service if this command is interrupted.
    Redrive(RedriveArguments),
    /// Remove all dead letters that match a filter
    ///
    /// On a terminal it asks first; otherwise it needs --yes.
    Discard(DiscardArguments),
    /// Write dead letters as JSON, one per line, newest first
    ///
    /// With --output, run the same command again to continue an interrupted export.
    Export(export::Arguments),
}

#[derive(clap::Args)]
struct ListArguments {
    #[command(flatten)]
    filter: FilterOptions,
    #[command(flatten)]
    paging: Paging,
}

#[derive(clap::Args)]
struct BulkArguments {
    #[command(flatten)]
    filter: FilterOptions,
    #[command(flatten)]
    start: StartOptions,
}

#[derive(clap::Args)]
struct RedriveArguments {
    #[command(flatten)]
    bulk: BulkArguments,
    /// Redrive this many first, and continue only if all of them succeed
    #[arg(long, value_name = "N", value_parser = integer::<usize>(1.., 3))]
    canary: Option<usize>,
}

#[derive(clap::Args)]
struct DiscardArguments {
    #[command(flatten)]
    bulk: BulkArguments,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

const DEAD: &str = "dead-letters";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let options = arguments.options;
    let client = options.client()?;
    let bulk = |request| BulkRequest { options: &options, client: &client, request, noun: dead_letters };
    match arguments.command {
        DeadCommand::List(ListArguments { filter, paging }) => {
            let (path, query) = list_of(&filter);
            let pages = Pages::new(&client, &[path], query, &paging);
            let empty = "no dead letter matches";
            match filter.kind {
                None => list::show(&options, pages, &Columns { empty, ..task::COLUMNS }).await,
                Some(_) => list::show(&options, pages, &Columns { empty, ..job::COLUMNS }).await,
            }
        }
        DeadCommand::Groups(filter) => {
            let path = [DEAD, "groups"];
            let pages = Pages::new(&client, &path, query(&filter.filter()), &Paging::all());
            let mut groups = pages.read_all().await?;
            groups.items.sort_by_cached_key(|group| Reverse(count_of(group)));
            list::show_whole(&options, &groups, &GROUPS)
        }
        DeadCommand::Redrive(redrive) => {
            let request = redrive.bulk.request(OperationKind::Redrive, redrive.canary);
            bulk(request).start(&redrive.bulk.start).await
        }
        DeadCommand::Discard(discard) => {
            let request = discard.bulk.request(OperationKind::Discard, None);
            bulk(request).confirm_and_start(&discard.bulk.start, "discard", discard.yes).await
        }
        DeadCommand::Export(arguments) => export::run(&client, &arguments).await,
    }
}

/// The path and the query of a list of dead letters: of tasks, or of jobs of another kind.
fn list_of(filter: &FilterOptions) -> (&'static str, Query) {
    let mut filter = filter.filter();
    filter.state = Some(JobState::Dead);
    let path = if filter.kind.is_none() { DEAD } else { "jobs" };
    (path, query(&filter))
}

impl BulkArguments {
    fn request(&self, kind: OperationKind, canary: Option<usize>) -> OperationRequest {
        let mut filter = self.filter.filter();
        filter.state = Some(JobState::Dead);
        filter.kind = filter.kind.or_else(|| Some(TASK_KIND.to_owned()));
        OperationRequest { kind, filter, dry_run: false, rate_per_second: self.start.rate, canary }
    }
}

fn dead_letters(count: u64) -> String {
    redrive_core::text::count_of(count, "dead letter")
}

/// The number of dead letters in a group. The largest group is shown first.
fn count_of(group: &RawValue) -> u64 {
    serde_json::from_str::<DeadLetterGroup>(group.get()).map_or(0, |group| group.count)
}

const GROUPS: Columns<DeadLetterGroup> = Columns {
    headers: &["COUNT", "REASON", "KIND", "TARGET", "NEWEST", "OLDEST", "EXAMPLE", "ERROR"],
    optional: &["KIND", "OLDEST", "NEWEST"],
    row: |group, style| {
        vec![
            Cell::text(format!("{}{}", group.count, if group.at_least { "+" } else { "" })),
            Cell::text(group.reason.name()),
            Cell::text(&group.kind),
            Cell::text(&group.target),
            Cell::age(Some(group.newest_at), style),
            Cell::age(Some(group.oldest_at), style),
            Cell::id(&group.example.job_id),
            Cell::optional(group.example.error.as_deref()),
        ]
    },
    empty: "no dead letter matches",
};
