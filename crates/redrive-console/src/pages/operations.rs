//! Long operations: how far they are, and how to stop them.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_server::wire::filter::JobFilter;
use redrive_server::wire::operation::{Operation, OperationKind, OperationState};
use redrive_server::wire::page::Page as Listed;

use super::Answer;
use crate::api::{query, segment};
use crate::form::Posted;
use crate::frame::{Frame, render};
use crate::visitor::Visitor;
use crate::words::{self, Moment, now_ms};

/// Operations on a page; they are kept for a week.
const OPERATIONS_MAX: &str = "200";

#[derive(Template)]
#[template(path = "operations.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    any_running: bool,
}

#[derive(Template)]
#[template(path = "operation.html")]
struct One {
    frame: Frame,
    row: Row,
    may_stop: bool,
}

/// An operation as it is shown.
struct Row {
    id: String,
    verb: &'static str,
    about: String,
    state: &'static str,
    class: &'static str,
    running: bool,
    matched: Option<u64>,
    done: u64,
    failed: u64,
    gone: u64,
    progress: String,
    terms: String,
    began: Moment,
    ended: Option<Moment>,
}

/// `GET /console/operations`.
pub(super) async fn list(visitor: Visitor) -> Answer {
    let path = query("/operations", [("limit", OPERATIONS_MAX)]);
    let page: Listed<Operation> = visitor.api.get(&path).await?;
    let now = now_ms();
    let mut rows: Vec<Row> = page.items.iter().map(|operation| Row::of(operation, now)).collect();
    rows.reverse();
    let any_running = rows.iter().any(|row| row.running);
    render(&Page { frame: visitor.frame("Operations", "operations"), rows, any_running })
}

/// `GET /console/operations/{id}`.
pub(super) async fn show(visitor: Visitor, Path(id): Path<String>) -> Answer {
    let operation: Operation = visitor.api.get(&format!("/operations/{}", segment(&id))).await?;
    let row = Row::of(&operation, now_ms());
    let may_stop = visitor.administers() && row.running;
    render(&One { frame: visitor.frame(format!("{}: operation", row.verb), "operations"), row, may_stop })
}

/// `POST /console/operations/{id}/stop`.
pub(super) async fn stop(visitor: Visitor, Path(id): Path<String>, _: Posted) -> Answer {
    visitor.api.send(Method::DELETE, &format!("/operations/{}", segment(&id))).await?;
    let page = format!("/console/operations/{}?done=stopped", segment(&id));
    Ok(Redirect::to(&page).into_response())
}

impl Row {
    fn of(operation: &Operation, now: i64) -> Self {
        let running = operation.state == OperationState::Running;
        let gone = operation.done + operation.failed;
        let progress = match operation.matched {
            Some(matched) => format!("{} of {}", words::count(gone), words::count(matched.max(gone))),
            None => format!("{} so far", words::count(gone)),
        };
        let rate = operation.rate_per_second.map(|rate| format!("at most {} a second", words::decimal(rate)));
        let canary = operation.canary.map(|first| format!("{first} first, the rest if they succeed"));
        let terms: Vec<String> = [rate, canary].into_iter().flatten().collect();
        let (state, class) = match operation.state {
            OperationState::Running => ("running", "info"),
            OperationState::Done => ("done", "good"),
            OperationState::CanaryFailed => ("stopped: one of the first did not succeed", "bad"),
            OperationState::Stopped => ("stopped", "warn"),
        };
        Self {
            id: operation.operation_id.clone(),
            verb: verb(operation.kind),
            about: about(&operation.filter),
            state,
            class,
            running,
            matched: operation.matched.map(|matched| matched.max(gone)),
            done: operation.done,
            failed: operation.failed,
            gone,
            progress,
            terms: terms.join(", "),
            began: Moment::seen(operation.created_at, now),
            ended: operation.finished_at.map(|at| Moment::seen(at, now)),
        }
    }
}

/// What an operation is about, field by field.
fn about(filter: &JobFilter) -> String {
    let fields = serde_json::to_value(filter).unwrap_or_default();
    let field = |(name, value): (&String, &serde_json::Value)| match (value.as_str(), value.as_i64()) {
        (Some(text), _) => format!("{name} {text}"),
        (None, Some(at)) => format!("{name} {} UTC", words::utc(at)),
        (None, None) => format!("{name} {value}"),
    };
    match fields.as_object().into_iter().flatten().map(field).collect::<Vec<_>>().join(", ") {
        text if text.is_empty() => "everything".to_owned(),
        text => text,
    }
}

fn verb(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Redrive => "Redrive",
        OperationKind::Discard => "Discard",
        OperationKind::Cancel => "Cancel",
        OperationKind::RunNow => "Run now",
    }
}
