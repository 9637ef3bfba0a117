//! Tasks and jobs: filtered, page by page, with what can be done with those selected or with all that match.

use askama::Template;
use futures_util::future::join;
use redrive_server::wire::count::JobCount;
use redrive_server::wire::job::{Job, JobState};
use redrive_server::wire::page::Page as Listed;

use super::Answer;
use crate::filter::{Filter, PAGE_ITEMS, REASONS, SINCE, STATES};
use crate::frame::{Frame, render};
use crate::mask;
use crate::visitor::Visitor;
use crate::words::{self, Moment, now_ms};

/// Characters of an error in a list; all of it is with its job.
const ERROR_CHARACTERS_MAX: usize = 160;

#[derive(Template)]
#[template(path = "list.html")]
struct Page {
    frame: Frame,
    face: Face,
    filter: Filter,
    rows: Vec<Row>,
    count: String,
    looked_at: Option<String>,
    next: Option<String>,
    first: Option<String>,
    here: String,
    may_write: bool,
    may_bulk: bool,
    sees_tenants: bool,
    bulk: Vec<(&'static str, &'static str, String)>,
}

/// Whether the page is about calls or about jobs of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Face {
    Tasks,
    Jobs,
}

/// A job in a list.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) short: String,
    pub(super) state: &'static str,
    pub(super) held: bool,
    pub(super) what: String,
    pub(super) about: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) queue: String,
    pub(super) policy: String,
    pub(super) attempts: String,
    pub(super) when: &'static str,
    pub(super) moment: Option<Moment>,
    pub(super) error: Option<String>,
    pub(super) reason: Option<String>,
}

/// `GET /console/tasks`.
pub(super) async fn tasks(visitor: Visitor) -> Answer {
    let filter = Filter::read(&visitor.query).of_tasks();
    show(visitor, Face::Tasks, filter).await
}

/// `GET /console/jobs`.
pub(super) async fn jobs(visitor: Visitor) -> Answer {
    let filter = Filter::read(&visitor.query);
    show(visitor, Face::Jobs, filter).await
}

async fn show(visitor: Visitor, face: Face, filter: Filter) -> Answer {
    let now = now_ms();
    let cursor = visitor.query.text("cursor");
    let list = filter.api("/jobs", now, &[("limit", PAGE_ITEMS), ("cursor", &cursor)]);
    let count = filter.api("/jobs/count", now, &[]);
    let (found, count) =
        join(visitor.api.get::<Listed<Job>>(&list), visitor.api.get::<JobCount>(&count)).await;
    let (found, count) = (found?, count?);
    let next = found.next_cursor.as_deref().map(|next| filter.link(face.path(), &[("cursor", next)]));
    let first = (!cursor.is_empty()).then(|| filter.link(face.path(), &[]));
    let (name, page) = face.named();
    render(&Page {
        rows: found.items.iter().map(|job| Row::of(job, face, now)).collect(),
        count: words::about(count.count, count.at_least),
        looked_at: found.looked_at.map(words::count),
        next,
        first,
        here: visitor.path.clone(),
        may_write: visitor.writes(),
        may_bulk: visitor.administers(),
        sees_tenants: visitor.me.tenant.is_none(),
        bulk: if visitor.administers() { in_bulk(&filter) } else { Vec::new() },
        frame: visitor.frame(name, page),
        face,
        filter,
    })
}

/// What can be done with all that match, given the state they are in.
fn in_bulk(filter: &Filter) -> Vec<(&'static str, &'static str, String)> {
    let verbs: &[(&str, &str)] = match filter.state.as_str() {
        "pending" | "retrying" => {
            &[("CANCEL", "Cancel all that match…"), ("RUN_NOW", "Run all that match now…")]
        }
        "running" | "waiting" => &[("CANCEL", "Cancel all that match…")],
        "dead" => &[("REDRIVE", "Redrive all that match…"), ("DISCARD", "Discard all that match…")],
        "" => &[
            ("CANCEL", "Cancel all that match and have not ended…"),
            ("REDRIVE", "Redrive all dead that match…"),
        ],
        _ => &[],
    };
    verbs.iter().map(|(verb, text)| (*verb, *text, filter.link("/console/bulk", &[("verb", verb)]))).collect()
}

impl Face {
    fn path(self) -> &'static str {
        match self {
            Self::Tasks => "/console/tasks",
            Self::Jobs => "/console/jobs",
        }
    }

    fn named(self) -> (&'static str, &'static str) {
        match self {
            Self::Tasks => ("Tasks", "tasks"),
            Self::Jobs => ("Jobs", "jobs"),
        }
    }

    fn is_tasks(self) -> bool {
        self == Self::Tasks
    }
}

impl Page {
    fn states(&self) -> [&'static str; 7] {
        STATES
    }

    fn reasons(&self) -> Vec<(&'static str, String)> {
        REASONS.iter().map(|reason| (*reason, words::plain(reason))).collect()
    }

    fn since(&self) -> [(&'static str, &'static str, i64); 4] {
        SINCE
    }
}

impl Row {
    fn of(job: &Job, face: Face, now: i64) -> Self {
        let (when, at) = when(job);
        let subject = job.subject.as_deref().map(mask::address);
        let (what, about) = match face {
            Face::Tasks => (subject.unwrap_or_else(|| "a call that cannot be read".to_owned()), None),
            Face::Jobs => (job.kind.clone(), subject),
        };
        Self {
            short: short(&job.job_id),
            id: job.job_id.clone(),
            state: state_name(job.state),
            held: job.held,
            what,
            about,
            tenant: job.tenant.clone(),
            queue: job.queue.clone(),
            policy: policy_name(job)
                .map_or_else(|| "its own policy".to_owned(), |name| format!("policy {name}")),
            attempts: attempts(job),
            when,
            moment: at.map(|at| Moment::seen(at, now)),
            error: job.last_error.as_deref().map(|error| cut(error, ERROR_CHARACTERS_MAX)),
            reason: job.reason.as_deref().map(words::plain),
        }
    }
}

/// The end of an id: jobs that were made together begin alike.
pub(super) fn short(id: &str) -> String {
    format!("…{}", &id[id.len().saturating_sub(8)..])
}

pub(super) fn attempts(job: &Job) -> String {
    match job.max_attempts {
        Some(most) => format!("{} of {most}", job.attempt),
        None => job.attempt.to_string(),
    }
}

/// The name of a job's policy; none where it was made for this job alone.
pub(super) fn policy_name(job: &Job) -> Option<&str> {
    Some(job.policy_id.as_str()).filter(|name| !name.starts_with("inline:"))
}

/// The instant that matters most about a job in its state.
fn when(job: &Job) -> (&'static str, Option<i64>) {
    match job.state {
        JobState::Pending | JobState::Retrying => ("due", job.next_run_at),
        JobState::Running => ("started", job.started_at),
        JobState::Waiting => ("enqueued", Some(job.created_at)),
        JobState::Succeeded | JobState::Dead | JobState::Cancelled => ("ended", job.finished_at),
    }
}

/// A state by the name it has everywhere.
pub(super) fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::Pending => "pending",
        JobState::Retrying => "retrying",
        JobState::Running => "running",
        JobState::Waiting => "waiting",
        JobState::Succeeded => "succeeded",
        JobState::Dead => "dead",
        JobState::Cancelled => "cancelled",
    }
}

/// The beginning of a text.
pub(super) fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
