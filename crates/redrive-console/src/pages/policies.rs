//! Policies: the list, with what each does in a sentence.

use askama::Template;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_server::wire::page::Page as Listed;
use redrive_server::wire::policy::{BackoffType, JitterType, RetryPolicy};

use super::Answer;
use crate::api::{query, segment};
use crate::form::Posted;
use crate::frame::{Frame, render};
use crate::visitor::Visitor;
use crate::words;

/// Policies on a page.
const POLICIES_MAX: &str = "200";
/// The policy of tasks that name none: it cannot be removed.
const DEFAULT: &str = "default";

#[derive(Template)]
#[template(path = "policies.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<String>,
    may_change: bool,
}

struct Row {
    name: String,
    version: u32,
    sentence: String,
    link: String,
    removable: bool,
}

/// `GET /console/policies`.
pub(super) async fn list(visitor: Visitor) -> Answer {
    let path = query("/retry-policies", [("limit", POLICIES_MAX), ("cursor", &visitor.query.text("cursor"))]);
    let policies: Listed<RetryPolicy> = visitor.api.get(&path).await?;
    let next = policies.next_cursor.as_deref().map(|cursor| query("/console/policies", [("cursor", cursor)]));
    render(&Page {
        frame: visitor.frame("Policies", "policies"),
        rows: policies.items.iter().map(Row::of).collect(),
        next,
        may_change: visitor.administers_all(),
    })
}

/// `POST /console/policies/remove`.
pub(super) async fn remove(visitor: Visitor, Posted(fields): Posted) -> Answer {
    let path = format!("/retry-policies/{}", segment(&fields.text("policyId")));
    visitor.api.send(Method::DELETE, &path).await?;
    Ok(Redirect::to("/console/policies?done=removed").into_response())
}

impl Row {
    fn of(policy: &RetryPolicy) -> Self {
        let name = policy.policy_id.clone().unwrap_or_default();
        Self {
            link: query("/console/policies/design", [("policy", name.as_str())]),
            removable: name != DEFAULT,
            version: policy.version.unwrap_or(1),
            sentence: sentence(policy),
            name,
        }
    }
}

/// What a policy does.
fn sentence(policy: &RetryPolicy) -> String {
    let span = |ms: Option<u64>| words::span(ms.unwrap_or_default());
    let first = span(policy.initial_delay_ms);
    let waits = match policy.backoff_type {
        Some(BackoffType::Exponential) | None => {
            format!("waits from {first}, times {}", words::decimal(policy.multiplier.unwrap_or(2.0)))
        }
        Some(BackoffType::Linear) => format!("waits from {first}, growing by as much"),
        Some(BackoffType::Fixed) => format!("waits of {first}"),
        Some(BackoffType::Polynomial) => {
            format!("waits from {first}, to the power of {}", words::decimal(policy.exponent.unwrap_or(2.0)))
        }
        Some(BackoffType::Schedule) => {
            let delays = policy.delays_ms.iter().flatten().map(|ms| words::span(*ms)).collect::<Vec<_>>();
            format!("waits of {}", delays.join(", "))
        }
    };
    let spread = match policy.jitter_type {
        Some(JitterType::None) => "not spread".to_owned(),
        Some(JitterType::Full) | None => "spread down to zero".to_owned(),
        Some(JitterType::Equal) => "spread down to half".to_owned(),
        Some(JitterType::Decorrelated) => "decorrelated".to_owned(),
        Some(JitterType::Proportional) => {
            format!("spread by {}", words::per_cent(policy.jitter_fraction.unwrap_or_default()))
        }
        Some(JitterType::Absolute) => format!("spread by {}", span(policy.jitter_ms)),
    };
    let budget = match policy.total_budget_ms.flatten() {
        Some(ms) => format!("within {}", words::span(ms)),
        None => "without an end".to_owned(),
    };
    let attempts = words::counted(policy.max_attempts.unwrap_or(8).into(), "attempt", "attempts");
    format!("{attempts}, {waits} up to {}, {spread}, {budget}", span(policy.max_delay_ms))
}
