//! Actions on all jobs that match a filter: shows their number first, then starts an operation.

use askama::Template;
use axum::response::{IntoResponse, Redirect};
use futures_util::future::try_join_all;
use redrive_wire::count::JobCount;
use redrive_wire::operation::Operation;
use serde_json::{Value, json};

use super::Answer;
use crate::api::segment;
use crate::context::PageContext;
use crate::error::PageError;
use crate::filter::Filter;
use crate::form::{FormFields, VerifiedForm};
use crate::layout::{Layout, render};
use crate::text::{self, now_ms};

#[derive(Template)]
#[template(path = "bulk_action.html")]
struct Page {
    layout: Layout,
    action: BulkAction,
    filter: Filter,
    description: String,
    matched: u64,
    count: String,
    list: String,
    rate: String,
    canary: String,
}

/// An action on all jobs that match a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BulkAction {
    Redrive,
    Discard,
    Cancel,
    RunNow,
}

impl BulkAction {
    fn read(name: Option<&str>) -> Result<Self, PageError> {
        match name {
            Some("redrive") => Ok(Self::Redrive),
            Some("discard") => Ok(Self::Discard),
            Some("cancel") => Ok(Self::Cancel),
            Some("run_now") => Ok(Self::RunNow),
            _ => Err(PageError::NotFound),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
            Self::Cancel => "cancel",
            Self::RunNow => "run_now",
        }
    }

    /// The states of the jobs that the action changes.
    fn states(self) -> &'static [&'static str] {
        match self {
            Self::Redrive | Self::Discard => &["dead"],
            Self::Cancel => &["pending", "retrying", "running", "waiting"],
            Self::RunNow => &["pending", "retrying"],
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Redrive => "Redrive",
            Self::Discard => "Discard",
            Self::Cancel => "Cancel",
            Self::RunNow => "Run now",
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Self::Redrive => {
                "Each job gets a new run: attempts and time budget start again. The jobs are due at once, or at the rate limit below. They continue after their stored steps."
            }
            Self::Discard => "The jobs and their attempt logs are removed. This cannot be undone.",
            Self::Cancel => {
                "The jobs and their children end. A running job is asked to end; if its attempt succeeds first, it counts as succeeded."
            }
            Self::RunNow => {
                "The jobs are due at once, or at the rate limit below. Gates still hold calls to origins that fail."
            }
        }
    }

    /// Whether the action starts attempts. Only then is a canary possible.
    fn starts_attempts(self) -> bool {
        matches!(self, Self::Redrive | Self::RunNow)
    }

    /// Whether the action cannot be undone.
    fn is_irreversible(self) -> bool {
        matches!(self, Self::Discard | Self::Cancel)
    }
}

/// `GET /console/bulk`.
pub(super) async fn confirm(context: PageContext) -> Answer {
    let action = BulkAction::read(context.query.get("action"))?;
    if !context.is_admin() {
        return Err(PageError::Forbidden("actions on all matching jobs need a key of scope admin"));
    }
    let filter = Filter::read(&context.query);
    let JobCount { count: matched, at_least } = count(&context, action, &filter).await?;
    let title = format!("{} all matching jobs", action.title());
    render(&Page {
        layout: context.layout(title, "operations"),
        description: filter.description(),
        matched,
        count: text::count_at_least(matched, at_least),
        list: filter.link("/console/jobs", &[]),
        rate: context.query.text("rate"),
        canary: context.query.text("canary"),
        action,
        filter,
    })
}

/// Counts the matching jobs in the states that the action changes. The states are counted concurrently, which is faster than
/// a dry run of the operation.
async fn count(context: &PageContext, action: BulkAction, filter: &Filter) -> Result<JobCount, PageError> {
    let is_included = |state: &&&str| filter.state.is_empty() || filter.state == **state;
    let now = now_ms();
    let counts = action.states().iter().filter(is_included).map(|state| {
        let of_state = Filter { state: (*state).to_owned(), ..filter.clone() };
        context.api.get::<JobCount>(&of_state.api("/jobs/count", now, &[]))
    });
    let mut sum = JobCount { count: 0, at_least: false };
    for counted in try_join_all(counts).await? {
        sum.count += counted.count;
        sum.at_least |= counted.at_least;
    }
    Ok(sum)
}

/// `POST /console/bulk`.
pub(super) async fn start(context: PageContext, VerifiedForm(fields): VerifiedForm) -> Answer {
    let action = BulkAction::read(fields.get("action"))?;
    if action.is_irreversible() && fields.get("sure").is_none() {
        let text = "this cannot be undone: confirm it first";
        return Err(PageError::InvalidInput(text.to_owned()));
    }
    let request = request(action, &Filter::read(&fields), &fields)?;
    let operation: Operation = context.api.post("/operations", &request).await?;
    let page = format!("/console/operations/{}", segment(&operation.operation_id));
    Ok(Redirect::to(&page).into_response())
}

fn request(action: BulkAction, filter: &Filter, fields: &FormFields) -> Result<Value, PageError> {
    let mut request = json!({"kind": action.name(), "filter": filter.operation(now_ms())});
    if let Some(rate) = fields.number::<f64>("rate")? {
        request["ratePerSecond"] = json!(rate);
    }
    if let Some(canary) = fields.number::<u32>("canary")?
        && action.starts_attempts()
    {
        request["canary"] = json!(canary);
    }
    Ok(request)
}
