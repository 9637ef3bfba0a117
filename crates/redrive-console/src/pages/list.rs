//! Lists of tasks and jobs: filters, pages, and actions on the selected jobs or on every matching job.

use askama::Template;
use futures_util::future::join;
use redrive_wire::count::JobCount;
use redrive_wire::job::Job;
use redrive_wire::page::Page as Listed;
use redrive_wire::state::JobState;

use super::Answer;
use crate::context::PageContext;
use crate::filter::{Filter, PAGE_ITEMS, REASONS, SINCE, STATES};
use crate::layout::{Layout, render};
use crate::mask;
use crate::text::{self, RelativeTime, now_ms};

/// The largest length of an error in a list. The page of the job has all of it.
const ERROR_CHARACTERS_MAX: usize = 160;

#[derive(Template)]
#[template(path = "list.html")]
struct Page {
    layout: Layout,
    list_kind: ListKind,
    filter: Filter,
    rows: Vec<Row>,
    count: String,
    examined: Option<String>,
    next: Option<String>,
    first: Option<String>,
    here: String,
    may_write: bool,
    may_bulk: bool,
    sees_tenants: bool,
    bulk: Vec<(&'static str, &'static str, String)>,
}

/// What the page lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListKind {
    Tasks,
    Jobs,
}

/// A job in a list.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) short: String,
    pub(super) state: &'static str,
    pub(super) paused: bool,
    pub(super) title: String,
    pub(super) target: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) queue: String,
    pub(super) policy: String,
    pub(super) attempts: String,
    pub(super) when: &'static str,
    pub(super) moment: Option<RelativeTime>,
    pub(super) error: Option<String>,
    pub(super) reason: Option<String>,
}

/// `GET /console/tasks`.
pub(super) async fn tasks(context: PageContext) -> Answer {
    let filter = Filter::read(&context.query).for_tasks();
    show(context, ListKind::Tasks, filter).await
}

/// `GET /console/jobs`.
pub(super) async fn jobs(context: PageContext) -> Answer {
    let filter = Filter::read(&context.query);
    show(context, ListKind::Jobs, filter).await
}

async fn show(context: PageContext, list_kind: ListKind, filter: Filter) -> Answer {
    let now = now_ms();
    let cursor = context.query.text("cursor");
    let list = filter.api("/jobs", now, &[("limit", PAGE_ITEMS), ("cursor", &cursor)]);
    let count = filter.api("/jobs/count", now, &[]);
    let (found, count) =
        join(context.api.get::<Listed<Job>>(&list), context.api.get::<JobCount>(&count)).await;
    let (found, count) = (found?, count?);
    let next = found.next_cursor.as_deref().map(|next| filter.link(list_kind.path(), &[("cursor", next)]));
    let first = (!cursor.is_empty()).then(|| filter.link(list_kind.path(), &[]));
    let (name, page) = list_kind.title_and_page();
    render(&Page {
        rows: found.items.iter().map(|job| Row::of(job, list_kind, now)).collect(),
        count: text::count_at_least(count.count, count.at_least),
        examined: found.examined.map(text::count),
        next,
        first,
        here: context.path.clone(),
        may_write: context.can_write(),
        may_bulk: context.is_admin(),
        sees_tenants: context.me.tenant.is_none(),
        bulk: if context.is_admin() { bulk_actions(&filter) } else { Vec::new() },
        layout: context.layout(name, page),
        list_kind,
        filter,
    })
}

/// The actions on every job that matches the filter. They depend on the state that the filter selects.
fn bulk_actions(filter: &Filter) -> Vec<(&'static str, &'static str, String)> {
    let actions: &[(&str, &str)] = match filter.state.as_str() {
        "pending" | "retrying" => {
            &[("cancel", "Cancel all matching jobs…"), ("run_now", "Run all matching jobs now…")]
        }
        "running" | "waiting" => &[("cancel", "Cancel all matching jobs…")],
        "dead" => &[("redrive", "Redrive all matching jobs…"), ("discard", "Discard all matching jobs…")],
        "" => &[
            ("cancel", "Cancel all matching jobs that have not ended…"),
            ("redrive", "Redrive all matching dead jobs…"),
        ],
        _ => &[],
    };
    actions
        .iter()
        .map(|(action, text)| (*action, *text, filter.link("/console/bulk", &[("action", action)])))
        .collect()
}

impl ListKind {
    fn path(self) -> &'static str {
        match self {
            Self::Tasks => "/console/tasks",
            Self::Jobs => "/console/jobs",
        }
    }

    fn title_and_page(self) -> (&'static str, &'static str) {
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
        REASONS.iter().map(|reason| (*reason, text::words(reason))).collect()
    }

    fn since(&self) -> [(&'static str, &'static str, i64); 4] {
        SINCE
    }
}

impl Row {
    fn of(job: &Job, list_kind: ListKind, now: i64) -> Self {
        let (when, at) = main_time(job);
        let target = job.target.as_deref().map(mask::address);
        let (title, target) = match list_kind {
            ListKind::Tasks => (target.unwrap_or_else(|| "unreadable task".to_owned()), None),
            ListKind::Jobs => (job.kind.clone(), target),
        };
        Self {
            short: short(&job.job_id),
            id: job.job_id.clone(),
            state: job.state.name(),
            paused: job.paused,
            title,
            target,
            tenant: job.tenant.clone(),
            queue: job.queue.clone(),
            policy: policy_name(job).map_or_else(|| "own policy".to_owned(), |name| format!("policy {name}")),
            attempts: attempts(job),
            when,
            moment: at.map(|at| RelativeTime::new(at, now)),
            error: job.last_error.as_deref().map(|error| truncate(error, ERROR_CHARACTERS_MAX)),
            reason: job.reason.map(|reason| text::words(reason.name())),
        }
    }
}

/// The last characters of an id. The ids of jobs that were created together start with the same characters.
pub(super) fn short(id: &str) -> String {
    format!("…{}", &id[id.len().saturating_sub(8)..])
}

pub(super) fn attempts(job: &Job) -> String {
    match job.max_attempts {
        Some(most) => format!("{} of {most}", job.attempt),
        None => job.attempt.to_string(),
    }
}

/// The name of the policy. `None` if the policy is only for this job.
pub(super) fn policy_name(job: &Job) -> Option<&str> {
    Some(job.policy_id.as_str()).filter(|name| !name.starts_with("inline:"))
}

/// The most important time of a job in its state.
fn main_time(job: &Job) -> (&'static str, Option<i64>) {
    match job.state {
        JobState::Pending | JobState::Retrying => ("due", job.next_run_at),
        JobState::Running => ("started", job.started_at),
        JobState::Waiting => ("enqueued", Some(job.created_at)),
        JobState::Succeeded | JobState::Dead | JobState::Cancelled => ("ended", job.finished_at),
    }
}

/// Shortens a text to this many characters, and marks the cut with an ellipsis.
pub(super) fn truncate(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
