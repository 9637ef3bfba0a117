//! The page of one task or job: its state, why it is not running, its attempts, and the actions on it.

use askama::Template;
use axum::extract::Path;
use futures_util::future::{join, join3};
use redrive_wire::job::{Job, JobAttempt};
use redrive_wire::page::Page as Listed;
use redrive_wire::state::JobState;
use redrive_wire::task::{Task, TaskAttempt};
use redrive_wire::why::{ExplanationKind, JobWhy};

use super::Answer;
use super::list::{attempts, policy_name, short};
use super::step_tree::{self, StepBranch};
use crate::api::{ApiClient, query, segment};
use crate::chart::timeline::{self, AttemptBar, Timeline, TimelineEnd};
use crate::context::PageContext;
use crate::error::PageError;
use crate::filter::DELIVERY;
use crate::layout::{Layout, render};
use crate::mask;
use crate::text::{self, RelativeTime, now_ms};

/// The largest number of attempts on the page.
const ATTEMPTS_MAX: &str = "300";
/// The largest number of timelines. Earlier runs have none.
const TIMELINES_MAX: usize = 4;

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    layout: Layout,
    id: String,
    target: String,
    is_task: bool,
    state: &'static str,
    paused: bool,
    cancel_requested: bool,
    why: String,
    why_until: Option<RelativeTime>,
    why_class: &'static str,
    facts: Vec<Fact>,
    lines: Vec<Timeline>,
    log: Vec<AttemptRow>,
    more_attempts: bool,
    request: Option<RequestDetails>,
    contents: Vec<(&'static str, String)>,
    tree: Vec<StepBranch>,
    can: AllowedActions,
    signal: Option<String>,
}

/// A name with its value: a text or an instant, and possibly a link.
struct Fact {
    name: &'static str,
    text: String,
    moment: Option<RelativeTime>,
    link: Option<String>,
}

/// A row of the table of attempts.
struct AttemptRow {
    run: u32,
    number: u32,
    started: RelativeTime,
    took: String,
    outcome: String,
    class: &'static str,
    status: Option<String>,
    phase: Option<String>,
    error: Option<String>,
    excerpt: Option<String>,
    wait: String,
    worker: Option<String>,
    address: Option<String>,
    /// The start, and the duration in ms.
    span: (i64, u64),
}

/// The request of a task.
struct RequestDetails {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: String,
    key: String,
    signed_by: Option<String>,
    on_success: Option<String>,
    on_failure: Option<String>,
}

/// The actions that the user may take in the state of the job.
#[derive(Default)]
struct AllowedActions {
    cancel: bool,
    run_now: bool,
    redrive: bool,
    afresh: bool,
    pause: bool,
    resume: bool,
    discard: bool,
}

/// `GET /console/jobs/{id}`.
pub(super) async fn show(context: PageContext, Path(id): Path<String>) -> Answer {
    let path = format!("/jobs/{}", segment(&id));
    let (job, why) =
        join(context.api.get::<Job>(&path), context.api.get::<JobWhy>(&format!("{path}/why"))).await;
    let (job, why) = (job?, why?);
    let is_task = job.kind == DELIVERY;
    let now = now_ms();
    let (log, task, tree) = join3(
        attempts_of(&context.api, &job, is_task, now),
        task_of(&context.api, &job, is_task),
        step_tree::of(&context.api, &job),
    )
    .await;
    let (AttemptLog { rows, bars, more }, task, tree) = (log?, task?, tree?);
    let target = job.target.as_deref().map_or_else(|| job.kind.clone(), mask::address);
    let title = format!("{} {}", if is_task { "Task" } else { "Job" }, short(&job.job_id));
    render(&Page {
        layout: context.layout(title, if is_task { "tasks" } else { "jobs" }),
        is_task,
        state: job.state.name(),
        paused: job.paused,
        cancel_requested: job.cancel_requested,
        why_until: why
            .explanation
            .until
            .filter(|_| !job.state_is_final())
            .map(|at| RelativeTime::new(at, now)),
        why_class: class_of(why.explanation.because, job.state),
        why: why.explanation.detail,
        facts: facts(&job, now),
        lines: timelines(&job, &bars, now),
        log: rows,
        more_attempts: more,
        request: task.map(|task| RequestDetails::of(&task, &job)),
        contents: contents(&job, is_task),
        tree,
        can: AllowedActions::of(&context, &job),
        signal: job
            .waiting_for
            .as_ref()
            .and_then(|waiting| waiting.signals.first().cloned())
            .filter(|_| context.can_write()),
        id: job.job_id,
        target,
    })
}

/// Whether a job has ended.
trait Ended {
    fn state_is_final(&self) -> bool;
}

impl Ended for Job {
    fn state_is_final(&self) -> bool {
        matches!(self.state, JobState::Succeeded | JobState::Dead | JobState::Cancelled)
    }
}

/// The attempts of a job.
struct AttemptLog {
    rows: Vec<AttemptRow>,
    /// The bars of the timelines, with the run of each.
    bars: Vec<(u32, AttemptBar)>,
    more: bool,
}

/// The last attempts of a job, oldest first.
async fn attempts_of(api: &ApiClient, job: &Job, is_task: bool, now: i64) -> Result<AttemptLog, PageError> {
    let path = |noun: &str| format!("/{noun}/{}/attempts?limit={ATTEMPTS_MAX}", segment(&job.job_id));
    let (rows, more): (Vec<AttemptRow>, bool) = if is_task {
        let page: Listed<TaskAttempt> = api.get(&path("tasks")).await?;
        (
            page.items.into_iter().rev().map(|attempt| AttemptRow::of_task(attempt, now)).collect(),
            page.next_cursor.is_some(),
        )
    } else {
        let page: Listed<JobAttempt> = api.get(&path("jobs")).await?;
        (
            page.items.into_iter().rev().map(|attempt| AttemptRow::of_job(attempt, now)).collect(),
            page.next_cursor.is_some(),
        )
    };
    let bars = rows.iter().map(|row| (row.run, row.bar())).collect();
    Ok(AttemptLog { rows, bars, more })
}

async fn task_of(api: &ApiClient, job: &Job, is_task: bool) -> Result<Option<Task>, PageError> {
    if !is_task {
        return Ok(None);
    }
    api.get(&format!("/tasks/{}", segment(&job.job_id))).await.map(Some)
}

/// Draws a timeline for each run. There may be days between two runs.
fn timelines(job: &Job, bars: &[(u32, AttemptBar)], now: i64) -> Vec<Timeline> {
    let mut runs: Vec<u32> = bars.iter().map(|(run, _)| *run).chain([job.run]).collect();
    runs.sort_unstable();
    runs.dedup();
    let draw = |run: &u32| {
        let mut own: Vec<AttemptBar> =
            bars.iter().filter(|(of, _)| of == run).map(|(_, bar)| bar.clone()).collect();
        let current = *run == job.run;
        if current && let Some(running) = running_attempt(job, now) {
            own.push(running);
        }
        let start = if *run == 1 { job.created_at } else { own.first().map_or(now, |first| first.from) };
        let end = if current { timeline_end(job, now) } else { TimelineEnd::Last };
        timeline::draw(*run, start, &own, end)
    };
    let last = runs.len().saturating_sub(TIMELINES_MAX);
    runs[last..].iter().rev().map(draw).collect()
}

/// The end of the timeline of the current run.
fn timeline_end(job: &Job, now: i64) -> TimelineEnd {
    match job.state {
        JobState::Pending | JobState::Retrying => {
            job.next_run_at.map_or(TimelineEnd::Last, TimelineEnd::Planned)
        }
        JobState::Waiting => TimelineEnd::At(now),
        JobState::Running => TimelineEnd::Last,
        JobState::Succeeded | JobState::Dead | JobState::Cancelled => {
            job.finished_at.map_or(TimelineEnd::Last, TimelineEnd::At)
        }
    }
}

fn running_attempt(job: &Job, now: i64) -> Option<AttemptBar> {
    let from = job.started_at.filter(|_| job.state == JobState::Running)?;
    let description = format!("attempt {}: running", job.attempt);
    Some(AttemptBar { number: job.attempt, from, to: now.max(from), class: "info", description })
}

fn class_of(because: ExplanationKind, state: JobState) -> &'static str {
    match because {
        ExplanationKind::Ended if state == JobState::Dead => "bad",
        ExplanationKind::Ended if state == JobState::Succeeded => "good",
        ExplanationKind::GateHolds
        | ExplanationKind::QueuePaused
        | ExplanationKind::LimitsReached
        | ExplanationKind::Paused => "warn",
        ExplanationKind::Waiting
        | ExplanationKind::Due
        | ExplanationKind::WaitsForSignal
        | ExplanationKind::WaitsForChildren
        | ExplanationKind::WaitsForAny
        | ExplanationKind::WaitsForSlot
        | ExplanationKind::WaitsForTimer
        | ExplanationKind::Running
        | ExplanationKind::Ended => "info",
    }
}

fn facts(job: &Job, now: i64) -> Vec<Fact> {
    let mut facts = progress_facts(job, now);
    facts.extend(fixed_facts(job));
    facts
}

/// Facts about the progress of a job.
fn progress_facts(job: &Job, now: i64) -> Vec<Fact> {
    let at = |name, at: Option<i64>| Some(Fact::at(name, RelativeTime::new(at?, now)));
    let run = (job.run > 1).then(|| {
        let times = match job.run - 1 {
            1 => "once".to_owned(),
            more => format!("{more} times"),
        };
        Fact::new("run", format!("{}, redriven {times}", job.run))
    });
    let facts = [
        Some(Fact::new("attempts", attempts(job))),
        run,
        at("enqueued", Some(job.created_at)),
        at("next attempt", job.next_run_at),
        at("started", job.started_at),
        at("leased until", job.lease_until),
        at("ended", job.finished_at),
        job.reason.map(|reason| Fact::new("reason", text::words(reason.name()))),
        job.last_error.clone().map(|error| Fact::new("last error", error)),
        job.last_status.map(|status| Fact::new("last answer", status.to_string())),
        job.worker.clone().map(|worker| Fact::new("worker", worker)),
    ];
    facts.into_iter().flatten().collect()
}

/// Facts that do not change.
fn fixed_facts(job: &Job) -> Vec<Fact> {
    let policy = match policy_name(job) {
        Some(name) => Fact {
            link: Some(query("/console/policies/design", [("policy", name)])),
            ..Fact::new("policy", format!("{name}, version {}", job.policy_version))
        },
        None => Fact::new("policy", "only for this job".to_owned()),
    };
    let parent = job.parent.as_ref().map(|parent| Fact {
        link: Some(format!("/console/jobs/{}", segment(&parent.job_id))),
        ..Fact::new("child of", short(&parent.job_id))
    });
    let partition =
        job.partition.as_ref().map(|partition| format!("{}, order {}", partition.key, partition.order));
    let facts = [
        Some(Fact::new("kind", job.kind.clone())),
        Some(Fact::new("queue", job.queue.clone())),
        Some(policy),
        Some(Fact::new("priority", job.priority.to_string())),
        job.tenant.clone().map(|tenant| Fact::new("tenant", tenant)),
        parent,
        partition.map(|text| Fact::new("partition key", text)),
        job.idempotency_key.clone().map(|key| Fact::new("idempotency key", key)),
        job.timeout_ms.map(|ms| Fact::new("attempt timeout", text::duration(ms))),
        Some(Fact::new("id", job.job_id.clone())),
    ];
    facts.into_iter().flatten().collect()
}

impl Fact {
    fn new(name: &'static str, text: String) -> Self {
        Self { name, text, moment: None, link: None }
    }

    fn at(name: &'static str, moment: RelativeTime) -> Self {
        Self { moment: Some(moment), ..Self::new(name, String::new()) }
    }
}

fn contents(job: &Job, is_task: bool) -> Vec<(&'static str, String)> {
    let payload = (!is_task).then_some(("Payload", &job.payload));
    let rest = [("Output", job.output.as_ref()), ("Metadata", job.metadata.as_ref())];
    let rest = rest.into_iter().filter_map(|(name, content)| Some((name, content?)));
    payload.into_iter().chain(rest).map(|(name, content)| (name, mask::content(content))).collect()
}

impl AllowedActions {
    fn of(context: &PageContext, job: &Job) -> Self {
        if !context.can_write() {
            return Self::default();
        }
        let (ended, dead) = (job.state_is_final(), job.state == JobState::Dead);
        let waits = matches!(job.state, JobState::Pending | JobState::Retrying);
        Self {
            cancel: !ended && !job.cancel_requested,
            run_now: waits && !job.paused,
            redrive: dead,
            afresh: dead && job.kind != DELIVERY,
            pause: !ended && !job.paused,
            resume: !ended && job.paused,
            discard: dead && context.is_admin(),
        }
    }

    fn any(&self) -> bool {
        self.cancel || self.redrive || self.pause || self.resume
    }
}

impl RequestDetails {
    fn of(task: &Task, job: &Job) -> Self {
        let header = |(name, value): (&String, &String)| (name.clone(), mask::header(name, value));
        let body = match &task.body_ref {
            Some(name) => format!("stored as {name}"),
            None => format!(
                "part of a payload of {}; not shown, because it may contain secrets",
                text::bytes(job.payload.size_bytes)
            ),
        };
        Self {
            method: task.method.clone(),
            url: mask::address(&task.target),
            headers: task.headers.iter().map(header).collect(),
            body,
            key: task.idempotency_key.clone(),
            signed_by: task.signing_secret.clone(),
            on_success: task.on_success_url.as_deref().map(mask::address),
            on_failure: task.on_failure_url.as_deref().map(mask::address),
        }
    }
}

impl AttemptRow {
    fn of_task(attempt: TaskAttempt, now: i64) -> Self {
        Self {
            run: attempt.run,
            number: attempt.attempt_number,
            started: RelativeTime::new(attempt.started_at, now),
            took: text::duration(attempt.duration_ms),
            class: outcome_class(&attempt.outcome),
            outcome: text::words(&attempt.outcome),
            status: attempt.grpc_status.or(attempt.response_status.map(|status| status.to_string())),
            phase: attempt.phase.as_deref().map(text::words),
            error: attempt.error_message.or(attempt.note),
            excerpt: if attempt.body_hidden {
                Some(mask::HIDDEN.to_owned())
            } else {
                attempt.response_excerpt.filter(|excerpt| !excerpt.is_empty())
            },
            wait: attempt.wait_ms.map(text::duration).unwrap_or_default(),
            worker: attempt.worker,
            address: attempt.address,
            span: (attempt.started_at, attempt.duration_ms),
        }
    }

    fn of_job(attempt: JobAttempt, now: i64) -> Self {
        Self {
            run: attempt.run,
            number: attempt.attempt,
            started: RelativeTime::new(attempt.started_at, now),
            took: text::duration(attempt.duration_ms),
            class: outcome_class(&attempt.outcome),
            outcome: text::words(&attempt.outcome),
            status: None,
            phase: None,
            error: attempt.error,
            excerpt: attempt.detail.as_ref().map(mask::content),
            wait: attempt.wait_ms.map(text::duration).unwrap_or_default(),
            worker: attempt.worker,
            address: None,
            span: (attempt.started_at, attempt.duration_ms),
        }
    }

    fn bar(&self) -> AttemptBar {
        let (from, took) = self.span;
        AttemptBar {
            number: self.number,
            from,
            to: from.saturating_add_unsigned(took),
            class: self.class,
            description: format!("attempt {}: {} after {}", self.number, self.outcome, self.took),
        }
    }
}

fn outcome_class(outcome: &str) -> &'static str {
    match outcome {
        "succeeded" => "good",
        "failed" | "timeout" | "panic" | "rejected" | "lease_expired" => "bad",
        _ => "calm",
    }
}
