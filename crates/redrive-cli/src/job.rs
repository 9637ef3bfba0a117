//! `redrive job`: jobs of every kind, those of the library beside the tasks.

use redrive_server::wire::content::Content;
use redrive_server::wire::job::{Job, JobAttempt, JobStep, SignalRequest};
use redrive_server::wire::why::JobWhy;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::{Answer, Query, Reach, Service};
use crate::exit::{self, Exit};
use crate::filter::{self, query};
use crate::list::{self, Columns, Pages, Paging};
use crate::print::{self, Look};
use crate::table::{Cell, Sheet, word};
use crate::when;

/// What to do with jobs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List jobs of every kind, newest first
    List(ListArguments),
    /// Show a job, and why it is not running now
    Get(One),
    /// Show the attempts in a job's log, oldest first
    Attempts(One),
    /// Show the steps that a job remembers
    Steps(One),
    /// Cancel jobs, with everything below them
    Cancel(Several),
    /// Give dead jobs a fresh run
    Redrive(Redrive),
    /// Skip the wait of jobs
    RunNow(Several),
    /// Make no further attempt at these jobs until they are resumed
    Pause(Several),
    /// Let paused jobs go on
    Resume(Several),
    /// Tell a job what it waits for, or will wait for
    Signal(Signal),
}

#[derive(clap::Args)]
struct One {
    /// The job
    #[arg(value_name = "JOB")]
    id: String,
}

#[derive(clap::Args)]
struct Several {
    /// The jobs
    #[arg(value_name = "JOB", required = true)]
    ids: Vec<String>,
}

#[derive(clap::Args)]
struct Redrive {
    #[command(flatten)]
    jobs: Several,
    /// Run every step again instead of going on from those it remembers
    #[arg(long)]
    forget_steps: bool,
}

#[derive(clap::Args)]
struct Signal {
    #[command(flatten)]
    job: One,
    /// The signal's name
    name: String,
    /// What it says, as JSON [default: null]
    value: Option<String>,
    /// Makes it repeatable: the first signal of a job under this key counts
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

#[derive(clap::Args)]
struct ListArguments {
    #[command(flatten)]
    filter: filter::Jobs,
    #[command(flatten)]
    paging: Paging,
}

const JOBS: &str = "jobs";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let reach = arguments.reach;
    let service = reach.service()?;
    let plain = |verb, words| Act { verb, words, body: None };
    match arguments.verb {
        Verb::List(ListArguments { filter, paging }) => {
            list::show(&reach, Pages::new(&service, &[JOBS], query(&filter), &paging), &COLUMNS).await
        }
        Verb::Get(One { id }) => get(&reach, &service, &id).await,
        Verb::Attempts(One { id }) => {
            let pages = Pages::new(&service, &[JOBS, &id, "attempts"], Query::new(), &Paging::all());
            list::show(&reach, pages, &ATTEMPTS).await
        }
        Verb::Steps(One { id }) => {
            let pages = Pages::new(&service, &[JOBS, &id, "steps"], Query::new(), &Paging::all());
            list::show(&reach, pages.of_at_most(STEPS_ITEMS_MAX), &STEPS).await
        }
        Verb::Cancel(Several { ids }) => plain("cancel", "is cancelled").on(&reach, &service, &ids).await,
        Verb::Redrive(Redrive { jobs, forget_steps }) => {
            let body = Some(json!({"steps": if forget_steps { "forget" } else { "keep" }}));
            Act { body, ..plain("redrive", "runs again") }.on(&reach, &service, &jobs.ids).await
        }
        Verb::RunNow(Several { ids }) => plain("run-now", "is due now").on(&reach, &service, &ids).await,
        Verb::Pause(Several { ids }) => plain("pause", "is paused").on(&reach, &service, &ids).await,
        Verb::Resume(Several { ids }) => plain("resume", "goes on").on(&reach, &service, &ids).await,
        Verb::Signal(signal) => send(&reach, service, signal).await,
    }
}

/// Steps on a page of the service: they are shown whole.
const STEPS_ITEMS_MAX: usize = redrive_server::wire::listing::STEPS_ITEMS_MAX;

/// How jobs are listed.
pub(crate) const COLUMNS: Columns<Job> = Columns {
    heads: &["JOB", "KIND", "QUEUE", "STATE", "ATTEMPTS", "CREATED", "NEXT", "ABOUT", "LAST ERROR"],
    spare: &["QUEUE", "CREATED", "NEXT", "ATTEMPTS", "ABOUT"],
    row: |job, look| {
        vec![
            Cell::whole(&job.job_id),
            Cell::text(&job.kind),
            Cell::text(&job.queue),
            Cell::state(&word(&job.state)),
            Cell::text(attempts_of(job)),
            Cell::age(Some(job.created_at), look),
            Cell::age(job.next_run_at, look),
            Cell::maybe(job.subject.as_deref()),
            Cell::maybe(job.last_error.as_deref()),
        ]
    },
    none: "there are no such jobs",
};

const ATTEMPTS: Columns<JobAttempt> = Columns {
    heads: &["RUN", "ATTEMPT", "STARTED", "TOOK", "OUTCOME", "LED TO", "WAIT AFTER", "ERROR"],
    spare: &["RUN", "LED TO"],
    row: |attempt, look| {
        vec![
            Cell::number(attempt.run),
            Cell::number(attempt.attempt),
            Cell::age(Some(attempt.started_at), look),
            Cell::span(Some(attempt.duration_ms)),
            Cell::state(&attempt.outcome),
            Cell::state(&word(&attempt.led_to)),
            Cell::span(attempt.wait_ms),
            Cell::maybe(attempt.error.as_deref()),
        ]
    },
    none: "no attempt is in its log",
};

const STEPS: Columns<JobStep> = Columns {
    heads: &["PLACE", "NAME", "KIND", "VALUE"],
    spare: &[],
    row: |step, _| {
        vec![
            Cell::number(step.place),
            Cell::text(&step.name),
            Cell::state(&word(&step.kind)),
            Cell::text(content(&step.value)),
        ]
    },
    none: "it remembers no step",
};

fn attempts_of(job: &Job) -> String {
    job.max_attempts.map_or_else(|| job.attempt.to_string(), |most| format!("{} of {most}", job.attempt))
}

fn content(content: &Content) -> String {
    let json = content.json.as_ref().map(|json| json.get().to_owned());
    let shown = json.or_else(|| content.text.clone()).or_else(|| content.base64.clone());
    shown.unwrap_or_else(|| format!("({} bytes, not shown)", content.size_bytes))
}

async fn get(reach: &Reach, service: &Service, id: &str) -> anyhow::Result<Exit> {
    let answer = service.get(&[JOBS, id], &Query::new()).await?;
    if reach.json {
        print::text(&print::one_line(&answer.raw()))?;
        return Ok(Exit::Done);
    }
    let job: Job = answer.read()?;
    let mut sheet = sheet(&job, answer.look());
    if job.finished_at.is_none() {
        let why: JobWhy = service.get(&[JOBS, id, "why"], &Query::new()).await?.read()?;
        sheet.line("why", why.hold.detail);
    }
    print::text(&sheet.show())?;
    Ok(Exit::Done)
}

fn sheet(job: &Job, look: Look) -> Sheet {
    let mut sheet = Sheet::new(look);
    sheet.line("job", &job.job_id);
    sheet.state("state", &word(&job.state));
    sheet.maybe("reason", job.reason.as_deref());
    sheet.line("kind", &job.kind);
    sheet.line("queue", &job.queue);
    sheet.maybe("about", job.subject.as_deref());
    sheet.line("policy", format!("{}, version {}", job.policy_id, job.policy_version));
    sheet.line("run", job.run.to_string());
    sheet.line("attempts", attempts_of(job));
    sheet.maybe("key", job.idempotency_key.as_deref());
    sheet.maybe("tenant", job.tenant.as_deref());
    sheet.line("priority", job.priority.to_string());
    sheet.maybe("parent", job.parent.as_ref().map(|parent| parent.job_id.as_str()));
    sheet.maybe("partition", job.partition.as_ref().map(|partition| partition.key.as_str()));
    sheet.instant("created", Some(job.created_at));
    sheet.instant("next", job.next_run_at);
    sheet.instant("started", job.started_at);
    sheet.instant("finished", job.finished_at);
    sheet.maybe("timeout", job.timeout_ms.map(when::span));
    sheet.maybe("worker", job.worker.as_deref());
    sheet.maybe("last error", job.last_error.as_deref());
    sheet.maybe("metadata", job.metadata.as_ref().map(content));
    sheet.line("payload", content(&job.payload));
    sheet.maybe("output", job.output.as_ref().map(content));
    sheet
}

/// What is done to several jobs, one after the other.
struct Act {
    verb: &'static str,
    words: &'static str,
    body: Option<Value>,
}

impl Act {
    /// Goes through all of them, whatever becomes of one; the first failure says how the command ends.
    async fn on(&self, reach: &Reach, service: &Service, ids: &[String]) -> anyhow::Result<Exit> {
        let mut ended = Exit::Done;
        for id in ids {
            let answer = match &self.body {
                Some(body) => service.post(&[JOBS, id, self.verb], body).await,
                None => service.act(&[JOBS, id, self.verb]).await.map_err(anyhow::Error::new),
            };
            if let Err(error) = self.told(reach, answer) {
                let exit = exit::say(&error.context(id.clone()));
                ended = if ended == Exit::Done { exit } else { ended };
            }
        }
        Ok(ended)
    }

    fn told(&self, reach: &Reach, answer: anyhow::Result<Answer>) -> anyhow::Result<()> {
        let answer = answer?;
        if reach.json {
            return Ok(print::text(&print::one_line(&answer.raw()))?);
        }
        let job: Job = answer.read()?;
        let asked = answer.status == http::StatusCode::ACCEPTED;
        let words = if asked { "is running and was asked to end" } else { self.words };
        Ok(print::line(&format!("{} {words}", job.job_id))?)
    }
}

async fn send(reach: &Reach, service: Service, signal: Signal) -> anyhow::Result<Exit> {
    let value = signal.value.map(RawValue::from_string).transpose();
    let wrong =
        |error| Exit::Usage.because(format!("the value is no JSON ({error}); text needs quotes: '\"yes\"'"));
    let body = SignalRequest { name: signal.name, value: value.map_err(wrong)? };
    let service = match &signal.key {
        Some(key) => service.with_header("idempotency-key", key)?,
        None => service,
    };
    let answer = service.post(&[JOBS, &signal.job.id, "signals"], &body).await?;
    if reach.json {
        print::text(&print::one_line(&answer.raw()))?;
    } else {
        print::line(&format!("{} gets the signal when it comes to it", signal.job.id))?;
    }
    Ok(Exit::Done)
}
