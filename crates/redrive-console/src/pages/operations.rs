//! Operations: their progress, and how to cancel them.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_wire::filter::JobFilter;
use redrive_wire::operation::{Operation, OperationKind, OperationState};
use redrive_wire::page::Page as Listed;

use super::Answer;
use crate::api::segment;
use crate::context::PageContext;
use crate::form::VerifiedForm;
use crate::layout::{Layout, render};
use crate::text::{self, RelativeTime, now_ms};

#[derive(Template)]
#[template(path = "operations.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
    any_running: bool,
}

#[derive(Template)]
#[template(path = "operation.html")]
struct OperationPage {
    layout: Layout,
    row: Row,
    may_cancel: bool,
}

/// An operation as it is shown.
struct Row {
    id: String,
    action: &'static str,
    filter: String,
    state: &'static str,
    class: &'static str,
    running: bool,
    matched: Option<u64>,
    done: u64,
    failed: u64,
    processed: u64,
    progress: String,
    conditions: String,
    started: RelativeTime,
    ended: Option<RelativeTime>,
}

/// `GET /console/operations`.
pub(super) async fn list(context: PageContext) -> Answer {
    let page: Listed<Operation> = context.api.get_all("/operations").await?;
    let now = now_ms();
    let rows: Vec<Row> = page.items.iter().map(|operation| Row::of(operation, now)).collect();
    let any_running = rows.iter().any(|row| row.running);
    render(&Page { layout: context.layout("Operations", "operations"), rows, any_running })
}

/// `GET /console/operations/{id}`.
pub(super) async fn show(context: PageContext, Path(id): Path<String>) -> Answer {
    let operation: Operation = context.api.get(&format!("/operations/{}", segment(&id))).await?;
    let row = Row::of(&operation, now_ms());
    let may_cancel = context.is_admin() && row.running;
    render(&OperationPage {
        layout: context.layout(format!("{}: operation", row.action), "operations"),
        row,
        may_cancel,
    })
}

/// `POST /console/operations/{id}/cancel`.
pub(super) async fn cancel(context: PageContext, Path(id): Path<String>, _: VerifiedForm) -> Answer {
    context.api.send(Method::POST, &format!("/operations/{}/cancel", segment(&id))).await?;
    let page = format!("/console/operations/{}?done=operation-cancelled", segment(&id));
    Ok(Redirect::to(&page).into_response())
}

impl Row {
    fn of(operation: &Operation, now: i64) -> Self {
        let running = operation.state == OperationState::Running;
        let processed = operation.done + operation.failed;
        let progress = match operation.matched {
            Some(matched) => format!("{} of {}", text::count(processed), text::count(matched.max(processed))),
            None => format!("{} so far", text::count(processed)),
        };
        let rate =
            operation.rate_per_second.map(|rate| format!("at most {} per second", text::decimal(rate)));
        let canary = operation.canary.map(|first| format!("canary of {first}"));
        let conditions: Vec<String> = [rate, canary].into_iter().flatten().collect();
        let (state, class) = match operation.state {
            OperationState::Running => ("running", "info"),
            OperationState::Done => ("done", "good"),
            OperationState::CanaryFailed => ("canary failed", "bad"),
            OperationState::Cancelled => ("cancelled", "warn"),
        };
        Self {
            id: operation.operation_id.clone(),
            action: action_title(operation.kind),
            filter: filter_text(&operation.filter),
            state,
            class,
            running,
            matched: operation.matched.map(|matched| matched.max(processed)),
            done: operation.done,
            failed: operation.failed,
            processed,
            progress,
            conditions: conditions.join(", "),
            started: RelativeTime::new(operation.created_at, now),
            ended: operation.finished_at.map(|at| RelativeTime::new(at, now)),
        }
    }
}

/// The fields of the filter of an operation.
fn filter_text(filter: &JobFilter) -> String {
    let fields = serde_json::to_value(filter).unwrap_or_default();
    let field = |(name, value): (&String, &serde_json::Value)| match (value.as_str(), value.as_i64()) {
        (Some(text), _) => format!("{name} {text}"),
        (None, Some(at)) => format!("{name} {} UTC", text::utc(at)),
        (None, None) => format!("{name} {value}"),
    };
    match fields.as_object().into_iter().flatten().map(field).collect::<Vec<_>>().join(", ") {
        text if text.is_empty() => "all jobs".to_owned(),
        text => text,
    }
}

fn action_title(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Redrive => "Redrive",
        OperationKind::Discard => "Discard",
        OperationKind::Cancel => "Cancel",
        OperationKind::RunNow => "Run now",
    }
}
