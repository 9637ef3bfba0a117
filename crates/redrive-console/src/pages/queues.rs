//! Queues: what each holds, whether it is paused, and what bounds it.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_server::wire::queue::{QueueBounds, QueueQuota, QueueRate, QueueStatus, Queues};
use serde_json::json;

use super::Answer;
use crate::api::segment;
use crate::filter::{Filter, STATES};
use crate::form::{Fields, Posted};
use crate::frame::{Frame, render};
use crate::trouble::Trouble;
use crate::visitor::Visitor;
use crate::words;

#[derive(Template)]
#[template(path = "queues.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    all_paused: bool,
    may_change: bool,
}

struct Row {
    name: String,
    paused: bool,
    counts: Vec<(&'static str, String, String)>,
    quota: String,
    bounds: QueueQuota,
}

/// `GET /console/queues`.
pub(super) async fn list(visitor: Visitor) -> Answer {
    let queues: Queues = visitor.api.get("/queues").await?;
    render(&Page {
        frame: visitor.frame("Queues", "queues"),
        all_paused: queues.all_paused,
        rows: queues.items.iter().map(Row::of).collect(),
        may_change: visitor.administers_all(),
    })
}

/// `POST /console/queues/{verb}`.
pub(super) async fn act(visitor: Visitor, Path(verb): Path<String>, Posted(fields): Posted) -> Answer {
    let done = match verb.as_str() {
        "pause" => "queue-paused",
        "resume" => "queue-resumed",
        _ => return Err(Trouble::NoPage),
    };
    let path = format!("/queues/{}/{verb}", segment(&fields.text("queue")));
    visitor.api.send_json(Method::POST, &path, &json!({})).await?;
    Ok(Redirect::to(&format!("/console/queues?done={done}")).into_response())
}

/// `POST /console/queues/quota`.
pub(super) async fn limit(visitor: Visitor, Posted(fields): Posted) -> Answer {
    let path = format!("/queues/{}/quota", segment(&fields.text("queue")));
    let quota = quota(&fields)?;
    if quota == QueueQuota::default() {
        visitor.api.send(Method::DELETE, &path).await?;
        return Ok(Redirect::to("/console/queues?done=unlimited").into_response());
    }
    visitor.api.send_json(Method::PUT, &path, &quota).await?;
    Ok(Redirect::to("/console/queues?done=limited").into_response())
}

fn quota(fields: &Fields) -> Result<QueueQuota, Trouble> {
    let rate = |count: &str, seconds: &str| -> Result<Option<QueueRate>, Trouble> {
        let Some(count) = fields.number(count)? else { return Ok(None) };
        let per_ms = fields.number::<u64>(seconds)?.unwrap_or(1).saturating_mul(1000);
        Ok(Some(QueueRate { count, per_ms }))
    };
    Ok(QueueQuota {
        concurrency: fields.number("concurrency")?,
        rate: rate("rateCount", "rateSeconds")?,
        per_key: QueueBounds {
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
            Some((*state, words::count(number), link(state)))
        });
        Self {
            name: queue.name.clone(),
            paused: queue.paused,
            counts: counts.collect(),
            quota: queue.quota.as_ref().map(in_words).unwrap_or_default(),
            bounds: queue.quota.unwrap_or_default(),
        }
    }
}

fn in_words(quota: &QueueQuota) -> String {
    let rate = |rate: QueueRate| {
        format!("{} starts per {}", words::count(rate.count.into()), words::span(rate.per_ms))
    };
    let parts = [
        quota.concurrency.map(|most| format!("{most} at once")),
        quota.rate.map(rate),
        quota.per_key.concurrency.map(|most| format!("{most} at once for each key")),
        quota.per_key.rate.map(|each| format!("{} for each key", rate(each))),
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
