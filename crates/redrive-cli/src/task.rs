//! `redrive task`: calls that a service delivers.

mod create;
pub(crate) mod watch;

use redrive_server::wire::status::Status;
use redrive_server::wire::task::{Task, TaskAttempt};
use redrive_server::wire::why::Why;

use crate::call::{Answer, Query, Reach, Service};
use crate::exit::{self, Exit};
use crate::filter::{self, query};
use crate::list::{self, Columns, Pages, Paging};
use crate::print::{self, Look};
use crate::table::{Cell, Sheet};
use crate::when;

/// What to do with tasks.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Hand the service a call to deliver; prints the task's id
    Create(Box<create::Arguments>),
    /// Show a task, and why it is not running now
    Get(One),
    /// List tasks, newest first
    List(Box<ListArguments>),
    /// Follow a task to its end, attempt by attempt
    ///
    /// Ends with 0 when it succeeds and with 6 when it does not.
    Watch(One),
    /// Cancel tasks
    Cancel(Several),
    /// Give exhausted tasks a fresh run
    Redrive(Several),
    /// Skip the wait of tasks
    RunNow(Several),
    /// Show the attempts of a task, oldest first
    Attempts(One),
}

#[derive(clap::Args)]
struct One {
    /// The task
    #[arg(value_name = "TASK")]
    id: String,
}

#[derive(clap::Args)]
struct Several {
    /// The tasks
    #[arg(value_name = "TASK", required = true)]
    ids: Vec<String>,
}

#[derive(clap::Args)]
struct ListArguments {
    #[command(flatten)]
    filter: filter::Tasks,
    #[command(flatten)]
    paging: Paging,
}

/// Where tasks are.
pub(crate) const TASKS: &str = "retry-tasks";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let reach = arguments.reach;
    let service = reach.service()?;
    match arguments.verb {
        Verb::Create(create) => create::run(&reach, service, *create).await,
        Verb::Get(One { id }) => get(&reach, &service, &id).await,
        Verb::List(list) => {
            let ListArguments { filter, paging } = *list;
            let pages = Pages::new(&service, &[TASKS], query(&filter), &paging);
            list::show(&reach, pages, &COLUMNS).await
        }
        Verb::Watch(One { id }) => watch::follow(&reach, &service, &id).await,
        Verb::Cancel(Several { ids }) => act(&reach, &service, &ids, Act::Cancel).await,
        Verb::Redrive(Several { ids }) => act(&reach, &service, &ids, Act::Redrive).await,
        Verb::RunNow(Several { ids }) => act(&reach, &service, &ids, Act::RunNow).await,
        Verb::Attempts(One { id }) => {
            let pages = Pages::new(&service, &[TASKS, &id, "attempts"], Query::new(), &Paging::all());
            list::show(&reach, pages, &ATTEMPTS).await
        }
    }
}

/// How tasks are listed.
pub(crate) const COLUMNS: Columns<Task> = Columns {
    heads: &["TASK", "STATUS", "ATTEMPTS", "CREATED", "NEXT", "POLICY", "TARGET", "LAST ERROR"],
    spare: &["POLICY", "CREATED", "NEXT", "ATTEMPTS"],
    row: |task, look| {
        vec![
            Cell::whole(&task.task_id),
            Cell::state(task.status.map_or("?", Status::name)),
            Cell::text(attempts_of(task)),
            Cell::age(Some(task.created_at), look),
            Cell::age(task.next_attempt_at, look),
            Cell::text(&task.policy_id),
            Cell::text(&task.target_url),
            Cell::text(trouble(task)),
        ]
    },
    none: "there are no such tasks",
};

const ATTEMPTS: Columns<TaskAttempt> = Columns {
    heads: &["RUN", "ATTEMPT", "STARTED", "TOOK", "OUTCOME", "ANSWER", "WAIT AFTER", "ERROR"],
    spare: &["RUN", "WAIT AFTER"],
    row: |attempt, look| {
        vec![
            Cell::number(attempt.run),
            Cell::number(attempt.attempt_number),
            Cell::age(Some(attempt.started_at), look),
            Cell::span(Some(attempt.duration_ms)),
            Cell::state(&attempt.outcome),
            Cell::maybe(answer(attempt)),
            Cell::span(attempt.wait_ms),
            Cell::maybe(said(attempt)),
        ]
    },
    none: "no attempt was made yet",
};

/// The HTTP status of an answer, or the name of its gRPC code.
pub(crate) fn answer(attempt: &TaskAttempt) -> Option<String> {
    attempt.grpc_status.clone().or_else(|| attempt.response_status.map(|status| status.to_string()))
}

/// What went wrong, and how the answer began.
fn said(attempt: &TaskAttempt) -> Option<String> {
    match (attempt.error_message.as_ref().or(attempt.note.as_ref()), &attempt.response_excerpt) {
        (Some(error), Some(excerpt)) if !excerpt.trim().is_empty() => Some(format!("{error}: {excerpt}")),
        (error, _) => error.cloned(),
    }
}

async fn get(reach: &Reach, service: &Service, id: &str) -> anyhow::Result<Exit> {
    let answer = service.get(&[TASKS, id], &Query::new()).await?;
    if reach.json {
        print::text(&print::one_line(&answer.raw()))?;
        return Ok(Exit::Done);
    }
    let task: Task = answer.read()?;
    let mut sheet = sheet(&task, answer.look());
    if !task.status.is_some_and(has_ended) {
        let why: Why = service.get(&[TASKS, id, "why"], &Query::new()).await?.read()?;
        sheet.line("why", why.hold.detail);
    }
    print::text(&sheet.show())?;
    Ok(Exit::Done)
}

/// Whether nothing follows a status by itself.
pub(crate) fn has_ended(status: Status) -> bool {
    match status {
        Status::Pending | Status::InFlight => false,
        Status::Succeeded | Status::Exhausted | Status::Cancelled => true,
    }
}

fn sheet(task: &Task, look: Look) -> Sheet {
    let mut sheet = Sheet::new(look);
    sheet.line("task", &task.task_id);
    sheet.state("status", task.status.map_or("?", Status::name));
    sheet.maybe("reason", task.reason.as_deref());
    sheet.line("call", format!("{} {}", task.method, task.target_url));
    for (name, value) in &task.headers {
        sheet.line("header", format!("{name}: {value}"));
    }
    sheet.maybe("body", task.body_ref.as_deref());
    sheet.line("policy", format!("{}, version {}", task.policy_id, task.policy_version));
    sheet.line("attempts", attempts_of(task));
    sheet.line("key", &task.idempotency_key);
    sheet.maybe("tenant", task.tenant.as_deref());
    sheet.line("priority", task.priority.to_string());
    sheet.instant("created", Some(task.created_at));
    sheet.instant("next", task.next_attempt_at);
    sheet.instant("finished", task.finished_at);
    sheet.maybe("timeout", task.timeout_ms.map(when::span));
    sheet.maybe("on success", task.on_success_url.as_deref());
    sheet.maybe("on exhausted", task.on_exhausted_url.as_deref());
    sheet.maybe("signed with", task.signing_secret.as_deref());
    sheet.maybe("last answer", task.last_response_status.map(|status| status.to_string()));
    sheet.maybe("last error", task.last_error.as_deref());
    if task.cancel_requested {
        sheet.line("cancel", "asked for; the attempt under way may still end");
    }
    sheet
}

fn attempts_of(task: &Task) -> String {
    match task.max_attempts {
        Some(most) => format!("{} of {most}", task.attempt_number),
        None => task.attempt_number.to_string(),
    }
}

/// What last went wrong, or why it is exhausted.
fn trouble(task: &Task) -> String {
    let text = match (&task.reason, &task.last_error) {
        (Some(reason), Some(error)) => format!("{reason}: {error}"),
        (Some(one), None) | (None, Some(one)) => one.clone(),
        (None, None) => "-".to_owned(),
    };
    if task.status == Some(Status::Succeeded) { "-".to_owned() } else { text }
}

#[derive(Clone, Copy)]
enum Act {
    Cancel,
    Redrive,
    RunNow,
}

/// Goes through all of them, whatever becomes of one; the first failure says how the command ends.
async fn act(reach: &Reach, service: &Service, ids: &[String], act: Act) -> anyhow::Result<Exit> {
    let mut ended = Exit::Done;
    for id in ids {
        let answer = match act {
            Act::Cancel => service.delete(&[TASKS, id]).await,
            Act::Redrive => service.act(&[TASKS, id, "redrive"]).await,
            Act::RunNow => service.act(&[TASKS, id, "run-now"]).await,
        };
        let told = answer.map_err(anyhow::Error::new).and_then(|answer| told(reach, &answer, act));
        if let Err(error) = told {
            let exit = exit::say(&error.context(id.clone()));
            ended = if ended == Exit::Done { exit } else { ended };
        }
    }
    Ok(ended)
}

fn told(reach: &Reach, answer: &Answer, act: Act) -> anyhow::Result<()> {
    if reach.json {
        return Ok(print::text(&print::one_line(&answer.raw()))?);
    }
    let task: Task = answer.read()?;
    let words = match act {
        Act::Cancel if answer.status == http::StatusCode::ACCEPTED => "is in flight and was asked to end",
        Act::Cancel => "is cancelled",
        Act::Redrive => "runs again",
        Act::RunNow => "is due now",
    };
    Ok(print::line(&format!("{} {words}", task.task_id))?)
}
