//! One task or job: where it is, why it is not running now, what has happened, and what can be done with it.

use askama::Template;
use axum::extract::Path;
use futures_util::future::{join, join3};
use redrive_server::wire::job::{Job, JobAttempt, JobState};
use redrive_server::wire::page::Page as Listed;
use redrive_server::wire::task::{Task, TaskAttempt};
use redrive_server::wire::why::{Because, JobWhy};

use super::Answer;
use super::list::{attempts, policy_name, short, state_name};
use super::tree::{self, Branch};
use crate::api::{Caller, query, segment};
use crate::chart::timeline::{self, End, Stretch, Timeline};
use crate::filter::DELIVERY;
use crate::frame::{Frame, render};
use crate::mask;
use crate::trouble::Trouble;
use crate::visitor::Visitor;
use crate::words::{self, Moment, now_ms};

/// Attempts shown of one job; those before are in the API.
const ATTEMPTS_MAX: &str = "300";
/// Runs drawn of one job, the last ones.
const RUNS_DRAWN_MAX: usize = 4;

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    frame: Frame,
    id: String,
    what: String,
    is_task: bool,
    state: &'static str,
    held: bool,
    cancel_requested: bool,
    why: String,
    why_until: Option<Moment>,
    why_class: &'static str,
    facts: Vec<Fact>,
    lines: Vec<Timeline>,
    log: Vec<Logged>,
    more_attempts: bool,
    request: Option<Call>,
    contents: Vec<(&'static str, String)>,
    tree: Vec<Branch>,
    can: Can,
    signal: Option<String>,
}

/// A line about a job.
struct Fact {
    name: &'static str,
    text: String,
    moment: Option<Moment>,
    link: Option<String>,
}

/// An attempt in the table.
struct Logged {
    run: u32,
    number: u32,
    started: Moment,
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
    /// When it was started, and how many ms it took.
    span: (i64, u64),
}

/// The call that a task makes.
struct Call {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: String,
    key: String,
    signed_by: Option<String>,
    on_success: Option<String>,
    on_exhausted: Option<String>,
}

/// What can be done with it, by this visitor, in its state.
#[derive(Default)]
struct Can {
    cancel: bool,
    run_now: bool,
    redrive: bool,
    afresh: bool,
    pause: bool,
    resume: bool,
    discard: bool,
}

/// `GET /console/jobs/{id}`.
pub(super) async fn show(visitor: Visitor, Path(id): Path<String>) -> Answer {
    let path = format!("/jobs/{}", segment(&id));
    let (job, why) =
        join(visitor.api.get::<Job>(&path), visitor.api.get::<JobWhy>(&format!("{path}/why"))).await;
    let (job, why) = (job?, why?);
    let is_task = job.kind == DELIVERY;
    let now = now_ms();
    let (log, task, tree) = join3(
        attempts_of(&visitor.api, &job, is_task, now),
        task_of(&visitor.api, &job, is_task),
        tree::of(&visitor.api, &job),
    )
    .await;
    let (Log { rows, stretches, more }, task, tree) = (log?, task?, tree?);
    let what = job.subject.as_deref().map_or_else(|| job.kind.clone(), mask::address);
    let title = format!("{} {}", if is_task { "Task" } else { "Job" }, short(&job.job_id));
    render(&Page {
        frame: visitor.frame(title, if is_task { "tasks" } else { "jobs" }),
        is_task,
        state: state_name(job.state),
        held: job.held,
        cancel_requested: job.cancel_requested,
        why_until: why.hold.until.filter(|_| !job.state_is_final()).map(|at| Moment::seen(at, now)),
        why_class: class_of(why.hold.because, job.state),
        why: why.hold.detail,
        facts: facts(&job, now),
        lines: drawn(&job, &stretches, now),
        log: rows,
        more_attempts: more,
        request: task.map(|task| Call::of(&task, &job)),
        contents: contents(&job, is_task),
        tree,
        can: Can::of(&visitor, &job),
        signal: job.awaits.as_ref().and_then(|awaits| awaits.signal.clone()).filter(|_| visitor.writes()),
        id: job.job_id,
        what,
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

/// What is known of the attempts of a job.
struct Log {
    rows: Vec<Logged>,
    /// The same to draw, with the run of each.
    stretches: Vec<(u32, Stretch)>,
    more: bool,
}

async fn attempts_of(api: &Caller, job: &Job, is_task: bool, now: i64) -> Result<Log, Trouble> {
    let path = |noun: &str| format!("/{noun}/{}/attempts?limit={ATTEMPTS_MAX}", segment(&job.job_id));
    let (rows, more): (Vec<Logged>, bool) = if is_task {
        let page: Listed<TaskAttempt> = api.get(&path("retry-tasks")).await?;
        (
            page.items.into_iter().map(|attempt| Logged::of_task(attempt, now)).collect(),
            page.next_cursor.is_some(),
        )
    } else {
        let page: Listed<JobAttempt> = api.get(&path("jobs")).await?;
        (
            page.items.into_iter().map(|attempt| Logged::of_job(attempt, now)).collect(),
            page.next_cursor.is_some(),
        )
    };
    let stretches = rows.iter().map(|row| (row.run, row.stretch())).collect();
    Ok(Log { rows, stretches, more })
}

async fn task_of(api: &Caller, job: &Job, is_task: bool) -> Result<Option<Task>, Trouble> {
    if !is_task {
        return Ok(None);
    }
    api.get(&format!("/retry-tasks/{}", segment(&job.job_id))).await.map(Some)
}

/// Each run by itself: between two runs may lie days.
fn drawn(job: &Job, stretches: &[(u32, Stretch)], now: i64) -> Vec<Timeline> {
    let mut runs: Vec<u32> = stretches.iter().map(|(run, _)| *run).chain([job.run]).collect();
    runs.sort_unstable();
    runs.dedup();
    let draw = |run: &u32| {
        let mut own: Vec<Stretch> =
            stretches.iter().filter(|(of, _)| of == run).map(|(_, stretch)| stretch.clone()).collect();
        let current = *run == job.run;
        if current && let Some(running) = under_way(job, now) {
            own.push(running);
        }
        let begin = if *run == 1 { job.created_at } else { own.first().map_or(now, |first| first.from) };
        let end = if current { end_of(job, now) } else { End::Last };
        timeline::draw(*run, begin, &own, end)
    };
    let last = runs.len().saturating_sub(RUNS_DRAWN_MAX);
    runs[last..].iter().rev().map(draw).collect()
}

/// Where the line of the current run ends.
fn end_of(job: &Job, now: i64) -> End {
    match job.state {
        JobState::Pending | JobState::Retrying => job.next_run_at.map_or(End::Last, End::Planned),
        JobState::Waiting => End::At(now),
        JobState::Running => End::Last,
        JobState::Succeeded | JobState::Dead | JobState::Cancelled => {
            job.finished_at.map_or(End::Last, End::At)
        }
    }
}

fn under_way(job: &Job, now: i64) -> Option<Stretch> {
    let from = job.started_at.filter(|_| job.state == JobState::Running)?;
    let words = format!("attempt {}: running", job.attempt);
    Some(Stretch { number: job.attempt, from, to: now.max(from), class: "info", words })
}

fn class_of(because: Because, state: JobState) -> &'static str {
    match because {
        Because::Ended if state == JobState::Dead => "bad",
        Because::Ended if state == JobState::Succeeded => "good",
        Because::GateHolds | Because::QueuePaused | Because::QuotaReached | Because::Held => "warn",
        Because::Waiting
        | Because::Due
        | Because::AwaitsSignal
        | Because::AwaitsChildren
        | Because::AwaitsAny
        | Because::AwaitsTurn
        | Because::Leased
        | Because::Ended => "info",
    }
}

fn facts(job: &Job, now: i64) -> Vec<Fact> {
    let mut facts = course(job, now);
    facts.extend(nature(job));
    facts
}

/// What has become of a job so far.
fn course(job: &Job, now: i64) -> Vec<Fact> {
    let at = |name, at: Option<i64>| Some(Fact::at(name, Moment::seen(at?, now)));
    let again = (job.run > 1).then(|| {
        let times = match job.run - 1 {
            1 => "once".to_owned(),
            more => format!("{more} times"),
        };
        Fact::new("run", format!("{}: driven again {times}", job.run))
    });
    let facts = [
        Some(Fact::new("attempts", attempts(job))),
        again,
        at("enqueued", Some(job.created_at)),
        at("next attempt", job.next_run_at),
        at("started", job.started_at),
        at("leased until", job.lease_until),
        at("ended", job.finished_at),
        job.reason.as_deref().map(|reason| Fact::new("dead because", words::plain(reason))),
        job.last_error.clone().map(|error| Fact::new("last error", error)),
        job.last_status.map(|status| Fact::new("last answer", status.to_string())),
        job.worker.clone().map(|worker| Fact::new("worker", worker)),
    ];
    facts.into_iter().flatten().collect()
}

/// What a job is, whatever becomes of it.
fn nature(job: &Job) -> Vec<Fact> {
    let policy = match policy_name(job) {
        Some(name) => Fact {
            link: Some(query("/console/policies/design", [("policy", name)])),
            ..Fact::new("policy", format!("{name}, version {}", job.policy_version))
        },
        None => Fact::new("policy", "its own".to_owned()),
    };
    let parent = job.parent.as_ref().map(|parent| Fact {
        link: Some(format!("/console/jobs/{}", segment(&parent.job_id))),
        ..Fact::new("child of", short(&parent.job_id))
    });
    let shared =
        job.partition.as_ref().map(|partition| format!("{}, order {}", partition.key, partition.order));
    let facts = [
        Some(Fact::new("kind", job.kind.clone())),
        Some(Fact::new("queue", job.queue.clone())),
        Some(policy),
        Some(Fact::new("priority", job.priority.to_string())),
        job.tenant.clone().map(|tenant| Fact::new("tenant", tenant)),
        parent,
        shared.map(|with| Fact::new("shares limits with", with)),
        job.idempotency_key.clone().map(|key| Fact::new("idempotency key", key)),
        job.timeout_ms.map(|ms| Fact::new("one attempt takes at most", words::span(ms))),
        Some(Fact::new("id", job.job_id.clone())),
    ];
    facts.into_iter().flatten().collect()
}

impl Fact {
    fn new(name: &'static str, text: String) -> Self {
        Self { name, text, moment: None, link: None }
    }

    fn at(name: &'static str, moment: Moment) -> Self {
        Self { moment: Some(moment), ..Self::new(name, String::new()) }
    }
}

fn contents(job: &Job, is_task: bool) -> Vec<(&'static str, String)> {
    let payload = (!is_task).then_some(("Payload", &job.payload));
    let rest = [("Output", job.output.as_ref()), ("Metadata", job.metadata.as_ref())];
    let rest = rest.into_iter().filter_map(|(name, content)| Some((name, content?)));
    payload.into_iter().chain(rest).map(|(name, content)| (name, mask::content(content))).collect()
}

impl Can {
    fn of(visitor: &Visitor, job: &Job) -> Self {
        if !visitor.writes() {
            return Self::default();
        }
        let (ended, dead) = (job.state_is_final(), job.state == JobState::Dead);
        let waits = matches!(job.state, JobState::Pending | JobState::Retrying);
        Self {
            cancel: !ended && !job.cancel_requested,
            run_now: waits && !job.held,
            redrive: dead,
            afresh: dead && job.kind != DELIVERY,
            pause: !ended && !job.held,
            resume: !ended && job.held,
            discard: dead && visitor.administers(),
        }
    }

    fn anything(&self) -> bool {
        self.cancel || self.redrive || self.pause || self.resume
    }
}

impl Call {
    fn of(task: &Task, job: &Job) -> Self {
        let header = |(name, value): (&String, &String)| (name.clone(), mask::header(name, value));
        let body = match &task.body_ref {
            Some(name) => format!("in the object store as {name}"),
            None => format!(
                "within a call of {}; not shown, since it may carry secrets",
                words::bytes(job.payload.size_bytes)
            ),
        };
        Self {
            method: task.method.clone(),
            url: mask::address(&task.target_url),
            headers: task.headers.iter().map(header).collect(),
            body,
            key: task.idempotency_key.clone(),
            signed_by: task.signing_secret.clone(),
            on_success: task.on_success_url.as_deref().map(mask::address),
            on_exhausted: task.on_exhausted_url.as_deref().map(mask::address),
        }
    }
}

impl Logged {
    fn of_task(attempt: TaskAttempt, now: i64) -> Self {
        Self {
            run: attempt.run,
            number: attempt.attempt_number,
            started: Moment::seen(attempt.started_at, now),
            took: words::span(attempt.duration_ms),
            class: outcome_class(&attempt.outcome),
            outcome: words::plain(&attempt.outcome),
            status: attempt.grpc_status.or(attempt.response_status.map(|status| status.to_string())),
            phase: attempt.phase.as_deref().map(words::plain),
            error: attempt.error_message.or(attempt.note),
            excerpt: if attempt.body_hidden {
                Some(mask::HIDDEN.to_owned())
            } else {
                attempt.response_excerpt.filter(|excerpt| !excerpt.is_empty())
            },
            wait: attempt.wait_ms.map(words::span).unwrap_or_default(),
            worker: attempt.worker,
            address: attempt.address,
            span: (attempt.started_at, attempt.duration_ms),
        }
    }

    fn of_job(attempt: JobAttempt, now: i64) -> Self {
        Self {
            run: attempt.run,
            number: attempt.attempt,
            started: Moment::seen(attempt.started_at, now),
            took: words::span(attempt.duration_ms),
            class: outcome_class(&attempt.outcome),
            outcome: words::plain(&attempt.outcome),
            status: None,
            phase: None,
            error: attempt.error,
            excerpt: attempt.detail.as_ref().map(mask::content),
            wait: attempt.wait_ms.map(words::span).unwrap_or_default(),
            worker: attempt.worker,
            address: None,
            span: (attempt.started_at, attempt.duration_ms),
        }
    }

    fn stretch(&self) -> Stretch {
        let (from, took) = self.span;
        Stretch {
            number: self.number,
            from,
            to: from.saturating_add_unsigned(took),
            class: self.class,
            words: format!("attempt {}: {} after {}", self.number, self.outcome, self.took),
        }
    }
}

fn outcome_class(outcome: &str) -> &'static str {
    match outcome {
        "succeeded" | "done" => "good",
        "failed" | "timeout" | "panic" | "rejected" | "lease_expired" => "bad",
        _ => "calm",
    }
}
