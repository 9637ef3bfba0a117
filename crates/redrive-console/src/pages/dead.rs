//! Dead letters, grouped by why and where, with one example each.

use askama::Template;
use redrive_server::wire::group::{DeadLetterGroup, DeadLetterGroups};

use super::Answer;
use super::list::{cut, short};
use crate::filter::{DELIVERY, Filter, reason_name};
use crate::frame::{Frame, render};
use crate::mask;
use crate::visitor::Visitor;
use crate::words::{self, Moment, now_ms};

/// Characters of an example's error.
const ERROR_CHARACTERS_MAX: usize = 300;

#[derive(Template)]
#[template(path = "dead.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    looked_at: String,
    complete: bool,
    may_operate: bool,
    all: String,
    narrowed: bool,
}

/// Dead letters that have why and where in common.
struct Row {
    reason: String,
    kind: String,
    is_task: bool,
    target: String,
    count: String,
    newest: Moment,
    oldest: Moment,
    example: String,
    example_short: String,
    error: Option<String>,
    list: String,
    filter: Filter,
}

/// `GET /console/dead`.
pub(super) async fn show(visitor: Visitor) -> Answer {
    let groups: DeadLetterGroups = visitor.api.get("/dead-letters/groups").await?;
    let now = now_ms();
    let wanted = Filter::read(&visitor.query);
    let fits = |group: &&DeadLetterGroup| {
        let same = |asked: &str, found: &str| asked.is_empty() || asked == found;
        same(&wanted.reason, reason_name(group.reason))
            && same(&wanted.kind, &group.kind)
            && (wanted.subject.is_empty() || group.target.starts_with(&wanted.subject))
    };
    let dead = Filter { state: "dead".to_owned(), ..Filter::default() };
    render(&Page {
        frame: visitor.frame("Dead letters", "dead"),
        rows: groups.items.iter().filter(fits).map(|group| Row::of(group, now)).collect(),
        looked_at: words::count(groups.looked_at),
        complete: groups.complete,
        may_operate: visitor.administers(),
        narrowed: wanted != Filter::default(),
        all: dead.link("/console/jobs", &[]),
    })
}

impl Row {
    fn of(group: &DeadLetterGroup, now: i64) -> Self {
        let is_task = group.kind == DELIVERY;
        let filter = Filter {
            state: "dead".to_owned(),
            kind: group.kind.clone(),
            reason: reason_name(group.reason).to_owned(),
            // Of other jobs the target may be no more than their kind.
            subject: if is_task || group.target != group.kind { group.target.clone() } else { String::new() },
            ..Filter::default()
        };
        let list = if is_task { "/console/tasks" } else { "/console/jobs" };
        Self {
            reason: words::plain(reason_name(group.reason)),
            kind: group.kind.clone(),
            is_task,
            target: mask::address(&group.target),
            count: words::about(group.count, group.at_least),
            newest: Moment::seen(group.newest_at, now),
            oldest: Moment::seen(group.oldest_at, now),
            example: group.example.job_id.clone(),
            example_short: short(&group.example.job_id),
            error: group.example.error.as_deref().map(|error| cut(error, ERROR_CHARACTERS_MAX)),
            list: filter.link(list, &[]),
            filter,
        }
    }
}
