//! `redrive operation`: actions on every job that matches a filter. They run in the service.

pub(crate) mod start;

use std::time::Duration;

use redrive::shutdown_signal;
use redrive_wire::operation::{Operation, OperationState};

use crate::client::{Answer, Client, OutageTolerance, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::filter::query;
use crate::output::list::{self, Columns, Pages, Paging};
use crate::output::progress::Bar;
use crate::output::table::{Cell, FieldList, StateColour, coloured};
use crate::output::{self, OutputStyle, enum_name};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: OperationCommand,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum OperationCommand {
    /// Start an action on every job that matches a filter
    ///
    /// It takes the same filter options as `job list`. The operation continues in the service if this command is
    /// interrupted. Before a cancel or discard it asks on a terminal; otherwise it needs --yes.
    Start(Box<start::Arguments>),
    /// List the operations of the last week
    List(Paging),
    /// Show an operation
    Get(OperationId),
    /// Show the progress of an operation until it ends
    ///
    /// The exit code is 0 if the operation is done, and 6 if it was cancelled or its canary failed.
    Watch(OperationId),
    /// Cancel an operation; jobs that it has already changed stay changed
    Cancel(OperationId),
}

#[derive(clap::Args)]
struct OperationId {
    /// The id of the operation
    #[arg(value_name = "OPERATION")]
    id: String,
}

/// The path of operations in the API.
const OPERATIONS: &str = "operations";
const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let options = arguments.options;
    let client = options.client()?;
    match arguments.command {
        OperationCommand::Start(arguments) => start::run(&options, &client, &arguments).await,
        OperationCommand::List(paging) => {
            list::show(&options, Pages::new(&client, &[OPERATIONS], Query::new(), &paging), &COLUMNS).await
        }
        OperationCommand::Get(OperationId { id }) => {
            show(&options, &client.get(&[OPERATIONS, &id], &Query::new()).await?)
        }
        OperationCommand::Watch(OperationId { id }) => watch(&options, &client, &id).await,
        OperationCommand::Cancel(OperationId { id }) => {
            show(&options, &client.post_empty(&[OPERATIONS, &id, "cancel"]).await?)
        }
    }
}

const COLUMNS: Columns<Operation> = Columns {
    headers: &["OPERATION", "KIND", "STATE", "DONE", "MATCHED", "FAILED", "STARTED", "FILTER"],
    optional: &["FAILED", "STARTED"],
    row: |operation, style| {
        vec![
            Cell::id(&operation.operation_id),
            Cell::text(enum_name(&operation.kind)),
            Cell::state(&enum_name(&operation.state)),
            Cell::number(operation.done),
            Cell::optional(operation.matched.map(|matched| matched.to_string())),
            Cell::number(operation.failed),
            Cell::age(Some(operation.created_at), style),
            Cell::text(filter_text(operation)),
        ]
    },
    empty: "there was no operation in the last week",
};

fn filter_text(operation: &Operation) -> String {
    let fields = query(&operation.filter);
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if fields.is_empty() { "all jobs".to_owned() } else { fields.join(" ") }
}

fn show(options: &ServiceOptions, answer: &Answer) -> anyhow::Result<ExitStatus> {
    if options.json {
        output::text(&output::one_line(&answer.raw()))?;
    } else {
        output::text(&fields(&answer.read()?, answer.style()).render())?;
    }
    Ok(ExitStatus::Success)
}

fn fields(operation: &Operation, style: OutputStyle) -> FieldList {
    let mut fields = FieldList::new(style);
    fields.add("operation", &operation.operation_id);
    fields.add("kind", enum_name(&operation.kind));
    fields.add_state("state", &enum_name(&operation.state));
    fields.add("filter", filter_text(operation));
    fields.add_optional("matched", operation.matched.map(|matched| matched.to_string()));
    fields.add("done", operation.done.to_string());
    fields.add("failed", operation.failed.to_string());
    fields.add_optional("rate", operation.rate_per_second.map(|rate| format!("at most {rate} per second")));
    fields.add_optional("canary", operation.canary.map(|canary| canary.to_string()));
    fields.add_instant("started", Some(operation.created_at));
    fields.add_instant("finished", operation.finished_at);
    fields
}

/// Shows the progress of an operation until it ends. Ctrl-C ends the command, not the operation.
pub(crate) async fn watch(options: &ServiceOptions, client: &Client, id: &str) -> anyhow::Result<ExitStatus> {
    let bar = Bar::new("done");
    let ended = tokio::select! {
        ended = wait_for_end(client, id, &bar) => Some(ended?),
        () = shutdown_signal() => None,
    };
    bar.clear();
    let Some(answer) = ended else {
        output::note(&format!(
            "the operation continues; `redrive operation watch {id}` watches it again, `redrive operation cancel {id}` \
             cancels it"
        ));
        return Ok(ExitStatus::Interrupted);
    };
    show_end(options, &answer)
}

async fn wait_for_end(client: &Client, id: &str, bar: &Bar) -> anyhow::Result<Answer> {
    let mut tolerance = OutageTolerance::default();
    loop {
        match poll(client, id, bar).await {
            Ok(Some(ended)) => return Ok(ended),
            Ok(None) => tolerance.answered(),
            Err(error) => tolerance.tolerate(error)?,
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Updates the bar. Returns the operation once it has ended.
async fn poll(client: &Client, id: &str, bar: &Bar) -> anyhow::Result<Option<Answer>> {
    let answer = client.get(&[OPERATIONS, id], &Query::new()).await?;
    let operation: Operation = answer.read()?;
    bar.set(operation.done + operation.failed, operation.matched.unwrap_or(0));
    Ok((operation.state != OperationState::Running).then_some(answer))
}

fn show_end(options: &ServiceOptions, answer: &Answer) -> anyhow::Result<ExitStatus> {
    let operation: Operation = answer.read()?;
    if options.json {
        output::text(&output::one_line(&answer.raw()))?;
    } else {
        let state = enum_name(&operation.state);
        let state = coloured(&state, StateColour::of(&state), &answer.style());
        let changed = match operation.failed {
            0 => String::new(),
            failed => format!(", {failed} had changed meanwhile"),
        };
        let matched = operation.matched.unwrap_or(operation.done + operation.failed);
        let (kind, done) = (enum_name(&operation.kind), operation.done);
        output::line(&format!("{kind} {state}: {done} of {matched}{changed}"))?;
    }
    Ok(match operation.state {
        OperationState::Running | OperationState::Done => ExitStatus::Success,
        OperationState::CanaryFailed | OperationState::Cancelled => ExitStatus::Unsuccessful,
    })
}
