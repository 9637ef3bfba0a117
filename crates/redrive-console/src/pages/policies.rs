//! The list of policies, with a description of each.

use askama::Template;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_wire::page::Page as Listed;
use redrive_wire::policy::{BackoffType, JitterType, RetryPolicy};

use super::Answer;
use crate::api::{query, segment};
use crate::context::PageContext;
use crate::form::VerifiedForm;
use crate::layout::{Layout, render};
use crate::text;

/// The number of policies on a page.
const POLICIES_MAX: &str = "200";
/// The policy of tasks that name none. It cannot be removed.
const DEFAULT: &str = "default";

#[derive(Template)]
#[template(path = "policies.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
    next: Option<String>,
    may_change: bool,
}

struct Row {
    name: String,
    version: u32,
    description: String,
    link: String,
    removable: bool,
}

/// `GET /console/policies`.
pub(super) async fn list(context: PageContext) -> Answer {
    let path = query("/policies", [("limit", POLICIES_MAX), ("cursor", &context.query.text("cursor"))]);
    let policies: Listed<RetryPolicy> = context.api.get(&path).await?;
    let next = policies.next_cursor.as_deref().map(|cursor| query("/console/policies", [("cursor", cursor)]));
    render(&Page {
        layout: context.layout("Policies", "policies"),
        rows: policies.items.iter().map(Row::of).collect(),
        next,
        may_change: context.is_global_admin(),
    })
}

/// `POST /console/policies/remove`.
pub(super) async fn remove(context: PageContext, VerifiedForm(fields): VerifiedForm) -> Answer {
    let path = format!("/policies/{}", segment(&fields.text("policyId")));
    context.api.send(Method::DELETE, &path).await?;
    Ok(Redirect::to("/console/policies?done=removed").into_response())
}

impl Row {
    fn of(policy: &RetryPolicy) -> Self {
        let name = policy.policy_id.clone().unwrap_or_default();
        Self {
            link: query("/console/policies/design", [("policy", name.as_str())]),
            removable: name != DEFAULT,
            version: policy.version.unwrap_or(1),
            description: description(policy),
            name,
        }
    }
}

/// Describes a policy in one line.
fn description(policy: &RetryPolicy) -> String {
    let span = |ms: Option<u64>| text::duration(ms.unwrap_or_default());
    let first = span(policy.initial_delay_ms);
    let waits = match policy.backoff_type {
        Some(BackoffType::Exponential) | None => {
            format!("waits from {first}, multiplied by {}", text::decimal(policy.multiplier.unwrap_or(2.0)))
        }
        Some(BackoffType::Linear) => format!("waits from {first}, growing by {first}"),
        Some(BackoffType::Fixed) => format!("waits of {first}"),
        Some(BackoffType::Polynomial) => {
            format!(
                "waits from {first}, growing with exponent {}",
                text::decimal(policy.exponent.unwrap_or(2.0))
            )
        }
        Some(BackoffType::Schedule) => {
            let delays = policy.delays_ms.iter().flatten().map(|ms| text::duration(*ms)).collect::<Vec<_>>();
            format!("waits of {}", delays.join(", "))
        }
    };
    let jitter = match policy.jitter_type {
        Some(JitterType::None) => "no jitter".to_owned(),
        Some(JitterType::Full) | None => "full jitter".to_owned(),
        Some(JitterType::Equal) => "equal jitter".to_owned(),
        Some(JitterType::Decorrelated) => "decorrelated jitter".to_owned(),
        Some(JitterType::Proportional) => {
            format!("{} jitter", text::percent(policy.jitter_fraction.unwrap_or_default()))
        }
        Some(JitterType::Absolute) => format!("{} jitter", span(policy.jitter_ms)),
    };
    let budget = match policy.total_budget_ms.flatten() {
        Some(ms) => format!("time budget {}", text::duration(ms)),
        None => "no time budget".to_owned(),
    };
    let attempts = text::count_of(policy.max_attempts.unwrap_or(8).into(), "attempt", "attempts");
    format!("{attempts}, {waits} up to {}, {jitter}, {budget}", span(policy.max_delay_ms))
}
