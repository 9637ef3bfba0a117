//! `redrive task`: the tasks of a service.

mod create;
pub(crate) mod watch;

use redrive_wire::state::{DeadReason, JobState};
use redrive_wire::task::{Task, TaskAttempt};
use redrive_wire::why::Why;

use crate::client::{Client, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::filter::{FilterOptions, query};
use crate::job::{JobAction, next_cell};
use crate::output::list::{self, Columns, Pages, Paging};
use crate::output::table::{Cell, FieldList};
use crate::output::{self, OutputStyle, time};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: TaskCommand,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum TaskCommand {
    /// Create a task, and print its id
    Create(Box<create::Arguments>),
    /// Show a task, and why it is not running
    Get(TaskId),
    /// List tasks, newest first
    List(Box<ListArguments>),
    /// Print each attempt of a task until the task ends
    ///
    /// The exit code is 0 if the task succeeds, and 6 otherwise.
    Watch(TaskId),
    /// Cancel tasks
    Cancel(TaskIds),
    /// Give dead tasks a new run
    Redrive(TaskIds),
    /// Make pending and retrying tasks due now
    RunNow(TaskIds),
    /// List the attempts of a task, oldest first
    Attempts(TaskId),
}

#[derive(clap::Args)]
struct TaskId {
    /// The id of the task
    #[arg(value_name = "TASK")]
    id: String,
}

#[derive(clap::Args)]
struct TaskIds {
    /// The ids of the tasks
    #[arg(value_name = "TASK", required = true)]
    ids: Vec<String>,
}

#[derive(clap::Args)]
struct ListArguments {
    #[command(flatten)]
    filter: FilterOptions,
    #[command(flatten)]
    paging: Paging,
}

/// The path of tasks in the API.
pub(crate) const TASKS: &str = "tasks";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let options = arguments.options;
    let client = options.client()?;
    let act = async |action, done, ids: &[String]| {
        JobAction::new(TASKS, action, done).apply(&options, &client, ids).await
    };
    match arguments.command {
        TaskCommand::Create(create) => create::run(&options, client.clone(), *create).await,
        TaskCommand::Get(TaskId { id }) => get(&options, &client, &id).await,
        TaskCommand::List(list) => {
            let ListArguments { filter, paging } = *list;
            let pages = Pages::new(&client, &[TASKS], query(&filter.filter()), &paging);
            list::show(&options, pages, &COLUMNS).await
        }
        TaskCommand::Watch(TaskId { id }) => watch::watch(&options, &client, &id).await,
        TaskCommand::Cancel(TaskIds { ids }) => act("cancel", "is cancelled", &ids).await,
        TaskCommand::Redrive(TaskIds { ids }) => act("redrive", "has a new run", &ids).await,
        TaskCommand::RunNow(TaskIds { ids }) => act("run-now", "is due now", &ids).await,
        TaskCommand::Attempts(TaskId { id }) => {
            let pages = Pages::new(&client, &[TASKS, &id, "attempts"], Query::new(), &Paging::all());
            list::show_whole(&options, &pages.read_all().await?.reversed(), &ATTEMPTS)
        }
    }
}

/// The columns of a list of tasks.
pub(crate) const COLUMNS: Columns<Task> = Columns {
    headers: &["TASK", "STATE", "ATTEMPTS", "CREATED", "NEXT", "POLICY", "TARGET", "LAST ERROR"],
    optional: &["POLICY", "CREATED", "NEXT", "ATTEMPTS"],
    row: |task, style| {
        vec![
            Cell::id(&task.task_id),
            Cell::state(task.state.name()),
            Cell::text(attempts_of(task)),
            Cell::age(Some(task.created_at), style),
            next_cell(task.next_attempt_at, task.waiting_for.as_ref(), style),
            Cell::text(&task.policy_id),
            Cell::text(&task.target),
            Cell::text(error_text(task)),
        ]
    },
    empty: "no task matches",
};

const ATTEMPTS: Columns<TaskAttempt> = Columns {
    headers: &["RUN", "ATTEMPT", "STARTED", "TOOK", "OUTCOME", "ANSWER", "WAIT AFTER", "ERROR"],
    optional: &["RUN", "WAIT AFTER"],
    row: |attempt, style| {
        vec![
            Cell::number(attempt.run),
            Cell::number(attempt.attempt_number),
            Cell::age(Some(attempt.started_at), style),
            Cell::duration(Some(attempt.duration_ms)),
            Cell::state(&attempt.outcome),
            Cell::optional(answer(attempt)),
            Cell::duration(attempt.wait_ms),
            Cell::optional(error_with_excerpt(attempt)),
        ]
    },
    empty: "no attempt has ended yet",
};

/// The HTTP status of the answer, or the name of its gRPC code.
pub(crate) fn answer(attempt: &TaskAttempt) -> Option<String> {
    attempt.grpc_status.clone().or_else(|| attempt.response_status.map(|status| status.to_string()))
}

/// The error of an attempt, with the beginning of the answer.
fn error_with_excerpt(attempt: &TaskAttempt) -> Option<String> {
    match (attempt.error_message.as_ref().or(attempt.note.as_ref()), &attempt.response_excerpt) {
        (Some(error), Some(excerpt)) if !excerpt.trim().is_empty() => Some(format!("{error}: {excerpt}")),
        (error, _) => error.cloned(),
    }
}

async fn get(options: &ServiceOptions, client: &Client, id: &str) -> anyhow::Result<ExitStatus> {
    let answer = client.get(&[TASKS, id], &Query::new()).await?;
    if options.json {
        output::text(&output::one_line(&answer.raw()))?;
        return Ok(ExitStatus::Success);
    }
    let task: Task = answer.read()?;
    let mut fields = fields(&task, answer.style());
    if !task.state.is_final() {
        let why: Why = client.get(&[TASKS, id, "why"], &Query::new()).await?.read()?;
        fields.add("why", why.explanation.detail);
    }
    output::text(&fields.render())?;
    Ok(ExitStatus::Success)
}

fn fields(task: &Task, style: OutputStyle) -> FieldList {
    let mut fields = FieldList::new(style);
    fields.add("task", &task.task_id);
    fields.add_state("state", task.state.name());
    fields.add_optional("reason", task.reason.map(DeadReason::name));
    fields.add("request", format!("{} {}", task.method, task.target));
    for (name, value) in &task.headers {
        fields.add("header", format!("{name}: {value}"));
    }
    fields.add_optional("body", task.body_ref.as_deref());
    fields.add("policy", format!("{}, version {}", task.policy_id, task.policy_version));
    fields.add("attempts", attempts_of(task));
    fields.add("key", &task.idempotency_key);
    fields.add_optional("tenant", task.tenant.as_deref());
    fields.add("priority", task.priority.to_string());
    fields.add_instant("created", Some(task.created_at));
    fields.add_instant("next", task.next_attempt_at);
    fields.add_instant("finished", task.finished_at);
    fields.add_optional("timeout", task.timeout_ms.map(time::duration));
    fields.add_optional("on success", task.on_success_url.as_deref());
    fields.add_optional("on failure", task.on_failure_url.as_deref());
    fields.add_optional("signed with", task.signing_secret.as_deref());
    fields.add_optional("last answer", task.last_response_status.map(|status| status.to_string()));
    fields.add_optional("last error", task.last_error.as_deref());
    if task.cancel_requested {
        fields.add("cancel", "requested; the running attempt may still succeed");
    }
    fields
}

fn attempts_of(task: &Task) -> String {
    match task.max_attempts {
        Some(max) => format!("{} of {max}", task.attempt_number),
        None => task.attempt_number.to_string(),
    }
}

/// The last error, with the reason if the task is dead.
fn error_text(task: &Task) -> String {
    match (task.reason.map(DeadReason::name), &task.last_error) {
        _ if task.state == JobState::Succeeded => "-".to_owned(),
        (Some(reason), Some(error)) => format!("{reason}: {error}"),
        (Some(reason), None) => reason.to_owned(),
        (None, Some(error)) => error.clone(),
        (None, None) => "-".to_owned(),
    }
}
