//! `redrive operation`: long work on many jobs, which goes on whether or not someone looks.

pub(crate) mod begin;

use std::time::Duration;

use redrive::shutdown_signal;
use redrive_server::wire::operation::{Operation, OperationState};
use serde_json::Value;

use crate::call::{Answer, Query, Reach, Service};
use crate::exit::Exit;
use crate::list::{self, Columns, Pages, Paging};
use crate::patience::Patience;
use crate::print::{self, Look};
use crate::progress::Bar;
use crate::table::{Cell, Sheet, painted, tone_of, word};

/// What to do with operations.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Do something to all jobs that match, in the service
    ///
    /// Takes what `job list` takes. It goes on when this command is interrupted. A cancel or discard asks first on a terminal;
    /// elsewhere it needs --yes.
    Begin(Box<begin::Arguments>),
    /// List the operations of the last week, oldest first
    List(Paging),
    /// Show how far an operation is
    Get(One),
    /// Follow an operation to its end
    ///
    /// Ends with 0 when it went through all that matched, and with 6 when it was stopped or its canary failed.
    Watch(One),
    /// Stop an operation; what it has done stays done
    Stop(One),
}

#[derive(clap::Args)]
struct One {
    /// The operation
    #[arg(value_name = "OPERATION")]
    id: String,
}

const OPERATIONS: &str = "operations";
/// How often to look how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let reach = arguments.reach;
    let service = reach.service()?;
    match arguments.verb {
        Verb::Begin(arguments) => begin::run(&reach, &service, &arguments).await,
        Verb::List(paging) => {
            list::show(&reach, Pages::new(&service, &[OPERATIONS], Query::new(), &paging), &COLUMNS).await
        }
        Verb::Get(One { id }) => show(&reach, &service.get(&[OPERATIONS, &id], &Query::new()).await?),
        Verb::Watch(One { id }) => follow(&reach, &service, &id).await,
        Verb::Stop(One { id }) => show(&reach, &service.delete(&[OPERATIONS, &id]).await?),
    }
}

const COLUMNS: Columns<Operation> = Columns {
    heads: &["OPERATION", "KIND", "STATE", "DONE", "MATCHED", "FAILED", "BEGAN", "ABOUT"],
    spare: &["FAILED", "BEGAN"],
    row: |operation, look| {
        vec![
            Cell::whole(&operation.operation_id),
            Cell::text(word(&operation.kind)),
            Cell::state(&word(&operation.state)),
            Cell::number(operation.done),
            Cell::maybe(operation.matched.map(|matched| matched.to_string())),
            Cell::number(operation.failed),
            Cell::age(Some(operation.created_at), look),
            Cell::text(about(operation)),
        ]
    },
    none: "there was no operation in the last week",
};

/// What it is about: the fields of its filter that narrow.
fn about(operation: &Operation) -> String {
    let filter = serde_json::to_value(&operation.filter).unwrap_or_default();
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let stated = filter.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let fields: Vec<String> = stated.map(|(name, value)| format!("{name}={}", plain(value))).collect();
    if fields.is_empty() { "everything".to_owned() } else { fields.join(" ") }
}

fn show(reach: &Reach, answer: &Answer) -> anyhow::Result<Exit> {
    if reach.json {
        print::text(&print::one_line(&answer.raw()))?;
    } else {
        print::text(&sheet(&answer.read()?, answer.look()).show())?;
    }
    Ok(Exit::Done)
}

fn sheet(operation: &Operation, look: Look) -> Sheet {
    let mut sheet = Sheet::new(look);
    sheet.line("operation", &operation.operation_id);
    sheet.line("kind", word(&operation.kind));
    sheet.state("state", &word(&operation.state));
    sheet.line("about", about(operation));
    sheet.maybe("matched", operation.matched.map(|matched| matched.to_string()));
    sheet.line("done", operation.done.to_string());
    sheet.line("failed", operation.failed.to_string());
    sheet.maybe("rate", operation.rate_per_second.map(|rate| format!("{rate} a second at most")));
    sheet.maybe("canary", operation.canary.map(|canary| canary.to_string()));
    sheet.instant("began", Some(operation.created_at));
    sheet.instant("finished", operation.finished_at);
    sheet
}

/// Follows an operation to its end; Ctrl-C leaves it running.
pub(crate) async fn follow(reach: &Reach, service: &Service, id: &str) -> anyhow::Result<Exit> {
    let bar = Bar::new("done");
    let ended = tokio::select! {
        ended = end(service, id, &bar) => Some(ended?),
        () = shutdown_signal() => None,
    };
    bar.end();
    let Some(answer) = ended else {
        print::note(&format!(
            "the operation goes on; `redrive operation watch {id}` follows it again, `redrive operation stop {id}` stops it"
        ));
        return Ok(Exit::Interrupted);
    };
    tell(reach, &answer)
}

async fn end(service: &Service, id: &str, bar: &Bar) -> anyhow::Result<Answer> {
    let mut patience = Patience::default();
    loop {
        match look(service, id, bar).await {
            Ok(Some(ended)) => return Ok(ended),
            Ok(None) => patience.answered(),
            Err(error) => patience.bear(error)?,
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The operation once it has ended.
async fn look(service: &Service, id: &str, bar: &Bar) -> anyhow::Result<Option<Answer>> {
    let answer = service.get(&[OPERATIONS, id], &Query::new()).await?;
    let operation: Operation = answer.read()?;
    bar.at(operation.done + operation.failed, operation.matched.unwrap_or(0));
    Ok((operation.state != OperationState::Running).then_some(answer))
}

fn tell(reach: &Reach, answer: &Answer) -> anyhow::Result<Exit> {
    let operation: Operation = answer.read()?;
    if reach.json {
        print::text(&print::one_line(&answer.raw()))?;
    } else {
        let state = word(&operation.state);
        let state = painted(&state, tone_of(&state), &answer.look());
        let changed = match operation.failed {
            0 => String::new(),
            failed => format!(", {failed} had changed meanwhile"),
        };
        let matched = operation.matched.unwrap_or(operation.done + operation.failed);
        print::line(&format!("{} {state}: {} of {matched}{changed}", word(&operation.kind), operation.done))?;
    }
    Ok(match operation.state {
        OperationState::Running | OperationState::Done => Exit::Done,
        OperationState::CanaryFailed | OperationState::Stopped => Exit::Unsuccessful,
    })
}
