//! Dead letters, grouped by reason and target, with an example of each group.

use std::cmp::Reverse;

use askama::Template;
use redrive_wire::group::{DeadLetterGroup, DeadLetterGroups};

use super::Answer;
use super::list::{short, truncate};
use crate::context::PageContext;
use crate::filter::{DELIVERY, Filter};
use crate::layout::{Layout, render};
use crate::mask;
use crate::text::{self, RelativeTime, now_ms};

/// The largest length of the error of an example.
const ERROR_CHARACTERS_MAX: usize = 300;

#[derive(Template)]
#[template(path = "dead.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
    examined: String,
    complete: bool,
    may_operate: bool,
    all: String,
    narrowed: bool,
}

/// Dead letters with the same reason and target.
struct Row {
    reason: String,
    kind: String,
    is_task: bool,
    target: String,
    count: String,
    newest: RelativeTime,
    oldest: RelativeTime,
    example: String,
    example_short: String,
    error: Option<String>,
    list: String,
    filter: Filter,
}

/// `GET /console/dead`.
pub(super) async fn show(context: PageContext) -> Answer {
    let (filter, now) = (Filter::read(&context.query), now_ms());
    let mut groups: DeadLetterGroups =
        context.api.get_all(&filter.api("/dead-letters/groups", now, &[])).await?;
    // The largest group comes first.
    groups.items.sort_by_key(|group| Reverse(group.count));
    let dead = Filter { state: "dead".to_owned(), ..Filter::default() };
    render(&Page {
        layout: context.layout("Dead letters", "dead"),
        rows: groups.items.iter().map(|group| Row::of(group, now)).collect(),
        examined: text::count(groups.examined),
        complete: groups.complete,
        may_operate: context.is_admin(),
        narrowed: filter != Filter::default(),
        all: dead.link("/console/jobs", &[]),
    })
}

impl Row {
    fn of(group: &DeadLetterGroup, now: i64) -> Self {
        let is_task = group.kind == DELIVERY;
        let filter = Filter {
            state: "dead".to_owned(),
            kind: group.kind.clone(),
            reason: group.reason.name().to_owned(),
            // A group of jobs without a target has their kind as its target.
            target: if is_task || group.target != group.kind { group.target.clone() } else { String::new() },
            ..Filter::default()
        };
        let list = if is_task { "/console/tasks" } else { "/console/jobs" };
        Self {
            reason: text::words(group.reason.name()),
            kind: group.kind.clone(),
            is_task,
            target: mask::address(&group.target),
            count: text::count_at_least(group.count, group.at_least),
            newest: RelativeTime::new(group.newest_at, now),
            oldest: RelativeTime::new(group.oldest_at, now),
            example: group.example.job_id.clone(),
            example_short: short(&group.example.job_id),
            error: group.example.error.as_deref().map(|error| truncate(error, ERROR_CHARACTERS_MAX)),
            list: filter.link(list, &[]),
            filter,
        }
    }
}
