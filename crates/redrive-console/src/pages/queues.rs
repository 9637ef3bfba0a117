//! Queues: their jobs by state, pauses and limits.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_wire::queue::{KeyLimits, QueueLimits, QueueRate, QueueStatus, Queues};
use serde_json::json;

use super::Answer;
use crate::api::segment;
use crate::context::PageContext;
use crate::error::PageError;
use crate::filter::{Filter, STATES};
use crate::form::{FormFields, VerifiedForm};
use crate::layout::{Layout, render};
use crate::text;

#[derive(Template)]
#[template(path = "queues.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
    all_paused: bool,
    may_change: bool,
}

struct Row {
    name: String,
    paused: bool,
    counts: Vec<(&'static str, String, String)>,
    limits_text: String,
    limits: QueueLimits,
}

/// `GET /console/queues`.
pub(super) async fn list(context: PageContext) -> Answer {
    let queues: Queues = context.api.get_all("/queues").await?;
    render(&Page {
        layout: context.layout("Queues", "queues"),
        all_paused: queues.all_paused,
        rows: queues.items.iter().map(Row::of).collect(),
        may_change: context.is_global_admin(),
    })
}

/// `POST /console/queues/{action}`.
pub(super) async fn act(
    context: PageContext,
    Path(action): Path<String>,
    VerifiedForm(fields): VerifiedForm,
) -> Answer {
    let done = match action.as_str() {
        "pause" => "queue-paused",
        "resume" => "queue-resumed",
        _ => return Err(PageError::NotFound),
    };
    let path = format!("/queues/{}/{action}", segment(&fields.text("queue")));
    context.api.send_json(Method::POST, &path, &json!({})).await?;
    Ok(Redirect::to(&format!("/console/queues?done={done}")).into_response())
}

/// `POST /console/queues/limits`.
pub(super) async fn set_limits(context: PageContext, VerifiedForm(fields): VerifiedForm) -> Answer {
    let path = format!("/queues/{}/limits", segment(&fields.text("queue")));
    let limits = read_limits(&fields)?;
    if limits == QueueLimits::default() {
        context.api.send(Method::DELETE, &path).await?;
        return Ok(Redirect::to("/console/queues?done=unlimited").into_response());
    }
    context.api.send_json(Method::PUT, &path, &limits).await?;
    Ok(Redirect::to("/console/queues?done=limited").into_response())
}

fn read_limits(fields: &FormFields) -> Result<QueueLimits, PageError> {
    let rate = |count: &str, seconds: &str| -> Result<Option<QueueRate>, PageError> {
        let Some(count) = fields.number(count)? else { return Ok(None) };
        let per_ms = fields.number::<u64>(seconds)?.unwrap_or(1).saturating_mul(1000);
        Ok(Some(QueueRate { count, per_ms }))
    };
    Ok(QueueLimits {
        concurrency: fields.number("concurrency")?,
        rate: rate("rateCount", "rateSeconds")?,
        per_key: KeyLimits {
            concurrency: fields.number("keyConcurrency")?,
            rate: rate("keyRateCount", "keyRateSeconds")?,
        },
    })
}

impl Row {
    fn of(queue: &QueueStatus) -> Self {
        let link = |state: &str| {
            let filter = Filter { state: state.to_owned(), queue: queue.name.clone(), ..Filter::default() };
            filter.link("/console/jobs", &[])
        };
        let counts = STATES.iter().filter_map(|state| {
            let number = queue.jobs.get(*state).copied().filter(|number| *number > 0)?;
            Some((*state, text::count(number), link(state)))
        });
        Self {
            name: queue.name.clone(),
            paused: queue.paused,
            counts: counts.collect(),
            limits_text: queue.limits.as_ref().map(limits_text).unwrap_or_default(),
            limits: queue.limits.unwrap_or_default(),
        }
    }
}

fn limits_text(limits: &QueueLimits) -> String {
    let rate = |rate: QueueRate| {
        format!("{} starts per {}", text::count(rate.count.into()), text::duration(rate.per_ms))
    };
    let parts = [
        limits.concurrency.map(|max| format!("{max} at once")),
        limits.rate.map(rate),
        limits.per_key.concurrency.map(|max| format!("{max} at once per key")),
        limits.per_key.rate.map(|each| format!("{} per key", rate(each))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

impl Row {
    fn number(number: &Option<u32>) -> String {
        number.map(|number| number.to_string()).unwrap_or_default()
    }

    fn rate(rate: &Option<QueueRate>) -> (String, String) {
        rate.map(|rate| (rate.count.to_string(), (rate.per_ms / 1000).max(1).to_string())).unwrap_or_default()
    }
}
