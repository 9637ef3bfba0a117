//! `redrive job`: jobs of every kind, tasks included.

use redrive_wire::content::Content;
use redrive_wire::job::{Job, JobAttempt, JobStep, SignalRequest};
use redrive_wire::state::{DeadReason, WaitingFor, WaitingForKind};
use redrive_wire::why::JobWhy;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::{Answer, Client, Query, ServiceOptions};
use crate::exit::{self, ExitStatus};
use crate::filter::{FilterOptions, query};
use crate::operation::start::confirm;
use crate::output::list::{self, Columns, Pages, Paging};
use crate::output::table::{Cell, FieldList};
use crate::output::{self, OutputStyle, enum_name, time};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: JobCommand,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum JobCommand {
    /// List jobs of every kind, newest first
    List(Box<ListArguments>),
    /// Show a job, and why it is not running
    Get(JobId),
    /// List the attempts in the log of a job, oldest first
    Attempts(JobId),
    /// List the stored steps of a job
    Steps(JobId),
    /// Cancel jobs and their children
    Cancel(JobIds),
    /// Give dead jobs a new run
    Redrive(RedriveArguments),
    /// Make pending and retrying jobs due now
    RunNow(JobIds),
    /// Pause jobs: no further attempt starts until they are resumed
    Pause(JobIds),
    /// Resume paused jobs
    Resume(JobIds),
    /// Remove dead jobs
    ///
    /// On a terminal it asks first; otherwise it needs --yes.
    Discard(DiscardArguments),
    /// Send a signal to a job
    Signal(SignalArguments),
}

#[derive(clap::Args)]
struct JobId {
    /// The id of the job
    #[arg(value_name = "JOB")]
    id: String,
}

#[derive(clap::Args)]
struct JobIds {
    /// The ids of the jobs
    #[arg(value_name = "JOB", required = true)]
    ids: Vec<String>,
}

#[derive(clap::Args)]
struct RedriveArguments {
    #[command(flatten)]
    jobs: JobIds,
    /// Run all steps again instead of continuing after the stored ones
    #[arg(long)]
    forget_steps: bool,
}

#[derive(clap::Args)]
struct DiscardArguments {
    #[command(flatten)]
    jobs: JobIds,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(clap::Args)]
struct SignalArguments {
    #[command(flatten)]
    job: JobId,
    /// The name of the signal
    name: String,
    /// The value of the signal, as JSON [default: null]
    value: Option<String>,
    /// An idempotency key: a repeated signal with the same key is ignored
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

#[derive(clap::Args)]
struct ListArguments {
    #[command(flatten)]
    filter: FilterOptions,
    #[command(flatten)]
    paging: Paging,
}

/// The path of jobs in the API.
const JOBS: &str = "jobs";
/// The largest page of steps, which are returned with their whole values.
const STEPS_ITEMS_MAX: usize = redrive_wire::page::STEPS_ITEMS_MAX;

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let options = arguments.options;
    let client = options.client()?;
    let act = async |action, done, ids: &[String]| {
        JobAction::new(JOBS, action, done).apply(&options, &client, ids).await
    };
    match arguments.command {
        JobCommand::List(list) => {
            let ListArguments { filter, paging } = *list;
            list::show(&options, Pages::new(&client, &[JOBS], query(&filter.filter()), &paging), &COLUMNS)
                .await
        }
        JobCommand::Get(JobId { id }) => get(&options, &client, &id).await,
        JobCommand::Attempts(JobId { id }) => {
            let pages = Pages::new(&client, &[JOBS, &id, "attempts"], Query::new(), &Paging::all());
            list::show_whole(&options, &pages.read_all().await?.reversed(), &ATTEMPTS)
        }
        JobCommand::Steps(JobId { id }) => {
            let pages = Pages::new(&client, &[JOBS, &id, "steps"], Query::new(), &Paging::all());
            list::show(&options, pages.with_page_items_max(STEPS_ITEMS_MAX), &STEPS).await
        }
        JobCommand::Cancel(JobIds { ids }) => act("cancel", "is cancelled", &ids).await,
        JobCommand::Redrive(RedriveArguments { jobs, forget_steps }) => {
            let steps = if forget_steps { "forget" } else { "keep" };
            let action = JobAction::new(JOBS, "redrive", "has a new run").with_body(json!({"steps": steps}));
            action.apply(&options, &client, &jobs.ids).await
        }
        JobCommand::RunNow(JobIds { ids }) => act("run-now", "is due now", &ids).await,
        JobCommand::Pause(JobIds { ids }) => act("pause", "is paused", &ids).await,
        JobCommand::Resume(JobIds { ids }) => act("resume", "is resumed", &ids).await,
        JobCommand::Discard(DiscardArguments { jobs, yes }) => {
            if !yes {
                let count = jobs.ids.len();
                confirm("discard", &if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") })?;
            }
            act("discard", "is discarded", &jobs.ids).await
        }
        JobCommand::Signal(signal) => send_signal(&options, client, signal).await,
    }
}

/// The columns of a list of jobs.
pub(crate) const COLUMNS: Columns<Job> = Columns {
    headers: &["JOB", "KIND", "QUEUE", "STATE", "ATTEMPTS", "CREATED", "NEXT", "TARGET", "LAST ERROR"],
    optional: &["QUEUE", "CREATED", "NEXT", "ATTEMPTS", "TARGET"],
    row: |job, style| {
        vec![
            Cell::id(&job.job_id),
            Cell::text(&job.kind),
            Cell::text(&job.queue),
            Cell::state(job.state.name()),
            Cell::text(attempts_of(job)),
            Cell::age(Some(job.created_at), style),
            next_cell(job.next_run_at, job.waiting_for.as_ref(), style),
            Cell::optional(job.target.as_deref()),
            Cell::optional(job.last_error.as_deref()),
        ]
    },
    empty: "no job matches",
};

const ATTEMPTS: Columns<JobAttempt> = Columns {
    headers: &["RUN", "ATTEMPT", "STARTED", "TOOK", "OUTCOME", "LED TO", "WAIT AFTER", "ERROR"],
    optional: &["RUN", "LED TO"],
    row: |attempt, style| {
        vec![
            Cell::number(attempt.run),
            Cell::number(attempt.attempt),
            Cell::age(Some(attempt.started_at), style),
            Cell::duration(Some(attempt.duration_ms)),
            Cell::state(&attempt.outcome),
            Cell::state(attempt.led_to.name()),
            Cell::duration(attempt.wait_ms),
            Cell::optional(attempt.error.as_deref()),
        ]
    },
    empty: "the log has no attempts",
};

const STEPS: Columns<JobStep> = Columns {
    headers: &["STEP", "NAME", "KIND", "VALUE"],
    optional: &[],
    row: |step, _| {
        vec![
            Cell::number(step.place),
            Cell::text(&step.name),
            Cell::state(&enum_name(&step.kind)),
            Cell::text(content_text(&step.value)),
        ]
    },
    empty: "the job has no steps",
};

/// When the next attempt starts, or what the job waits for.
pub(crate) fn next_cell(at: Option<i64>, waiting_for: Option<&WaitingFor>, style: &OutputStyle) -> Cell {
    let Some(waiting) = waiting_for else { return Cell::age(at, style) };
    Cell::text(match waiting.kind {
        WaitingForKind::Signal => format!("waiting for signal {}", waiting.signals.join(", ")),
        WaitingForKind::Any => format!("waiting for the first of {}", waiting.signals.join(", ")),
        WaitingForKind::Children => "waiting for its children".to_owned(),
        WaitingForKind::Slot => "waiting for a free slot".to_owned(),
        WaitingForKind::Unpause => "paused".to_owned(),
        WaitingForKind::Timer => match waiting.until {
            Some(until) => format!("sleeping until {}", time::utc(until)),
            None => "sleeping".to_owned(),
        },
    })
}

fn attempts_of(job: &Job) -> String {
    job.max_attempts.map_or_else(|| job.attempt.to_string(), |max| format!("{} of {max}", job.attempt))
}

fn content_text(content: &Content) -> String {
    let json = content.json.as_ref().map(|json| json.get().to_owned());
    let shown = json.or_else(|| content.text.clone()).or_else(|| content.base64.clone());
    shown.unwrap_or_else(|| format!("({} bytes, not shown)", content.size_bytes))
}

async fn get(options: &ServiceOptions, client: &Client, id: &str) -> anyhow::Result<ExitStatus> {
    let answer = client.get(&[JOBS, id], &Query::new()).await?;
    if options.json {
        output::text(&output::one_line(&answer.raw()))?;
        return Ok(ExitStatus::Success);
    }
    let job: Job = answer.read()?;
    let mut fields = fields(&job, answer.style());
    if job.finished_at.is_none() {
        let why: JobWhy = client.get(&[JOBS, id, "why"], &Query::new()).await?.read()?;
        fields.add("why", why.explanation.detail);
    }
    output::text(&fields.render())?;
    Ok(ExitStatus::Success)
}

fn fields(job: &Job, style: OutputStyle) -> FieldList {
    let mut fields = FieldList::new(style);
    fields.add("job", &job.job_id);
    fields.add_state("state", job.state.name());
    fields.add_optional("reason", job.reason.map(DeadReason::name));
    fields.add("kind", &job.kind);
    fields.add("queue", &job.queue);
    fields.add_optional("target", job.target.as_deref());
    fields.add("policy", format!("{}, version {}", job.policy_id, job.policy_version));
    fields.add("run", job.run.to_string());
    fields.add("attempts", attempts_of(job));
    fields.add_optional("key", job.idempotency_key.as_deref());
    fields.add_optional("tenant", job.tenant.as_deref());
    fields.add("priority", job.priority.to_string());
    fields.add_optional("parent", job.parent.as_ref().map(|parent| parent.job_id.as_str()));
    fields.add_optional("partition", job.partition.as_ref().map(|partition| partition.key.as_str()));
    fields.add_instant("created", Some(job.created_at));
    fields.add_instant("next", job.next_run_at);
    fields.add_instant("started", job.started_at);
    fields.add_instant("finished", job.finished_at);
    fields.add_optional("timeout", job.timeout_ms.map(time::duration));
    fields.add_optional("worker", job.worker.as_deref());
    fields.add_optional("last error", job.last_error.as_deref());
    fields.add_optional("metadata", job.metadata.as_ref().map(content_text));
    fields.add("payload", content_text(&job.payload));
    fields.add_optional("output", job.output.as_ref().map(content_text));
    fields
}

/// An action on several jobs or tasks, one after the other.
pub(crate) struct JobAction {
    /// The path of the jobs or tasks in the API.
    resource: &'static str,
    action: &'static str,
    /// What is printed after the id.
    done: &'static str,
    body: Option<Value>,
}

impl JobAction {
    pub(crate) fn new(resource: &'static str, action: &'static str, done: &'static str) -> Self {
        Self { resource, action, done, body: None }
    }

    fn with_body(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    /// Continues after a failure. The first failure decides the exit status.
    pub(crate) async fn apply(
        &self,
        options: &ServiceOptions,
        client: &Client,
        ids: &[String],
    ) -> anyhow::Result<ExitStatus> {
        let mut status = ExitStatus::Success;
        for id in ids {
            let path = [self.resource, id, self.action];
            let answer = match &self.body {
                Some(body) => client.post(&path, body).await,
                None => client.post_empty(&path).await.map_err(anyhow::Error::new),
            };
            if let Err(error) = answer.and_then(|answer| self.print(options, id, &answer)) {
                let failure = exit::report(&error.context(id.clone()));
                status = if status == ExitStatus::Success { failure } else { status };
            }
        }
        Ok(status)
    }

    fn print(&self, options: &ServiceOptions, id: &str, answer: &Answer) -> anyhow::Result<()> {
        if options.json {
            return Ok(output::text(&output::one_line(&answer.raw()))?);
        }
        let requested = answer.status == http::StatusCode::ACCEPTED;
        let done = if requested { "is running; its cancellation is requested" } else { self.done };
        Ok(output::line(&format!("{id} {done}"))?)
    }
}

async fn send_signal(
    options: &ServiceOptions,
    client: Client,
    signal: SignalArguments,
) -> anyhow::Result<ExitStatus> {
    let value = signal.value.map(RawValue::from_string).transpose();
    let invalid = |error| {
        ExitStatus::Usage
            .error(format!("the value is not JSON ({error}): text needs quotes, for example '\"yes\"'"))
    };
    let body = SignalRequest { name: signal.name, value: value.map_err(invalid)? };
    let client = match &signal.key {
        Some(key) => client.with_header("idempotency-key", key)?,
        None => client,
    };
    let answer = client.post(&[JOBS, &signal.job.id, "signals"], &body).await?;
    if options.json {
        output::text(&output::one_line(&answer.raw()))?;
    } else {
        output::line(&format!("the signal is stored for {}", signal.job.id))?;
    }
    Ok(ExitStatus::Success)
}
