//! The designer of policies: the fields, what they would do as a drawing, and what last week would have cost with them.

use std::collections::BTreeSet;

use askama::Template;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use futures_util::future::join;
use redrive_server::wire::policy::{BackoffType, JitterType, RetryPolicy};
use redrive_server::wire::preview::PolicyPreview;
use redrive_server::wire::replay::{Courses, Replay, ReplayRequest};

use super::Answer;
use crate::api::{query, segment};
use crate::chart::Figure;
use crate::chart::schedule::{starts, waits};
use crate::form::{Fields, Posted};
use crate::frame::{Frame, render};
use crate::trouble::{Trouble, sentence};
use crate::visitor::Visitor;
use crate::words;

/// Days that are driven again on paper.
const REPLAYED_DAYS: u32 = 7;

const BACKOFFS: [(&str, BackoffType); 5] = [
    ("EXPONENTIAL", BackoffType::Exponential),
    ("LINEAR", BackoffType::Linear),
    ("FIXED", BackoffType::Fixed),
    ("POLYNOMIAL", BackoffType::Polynomial),
    ("SCHEDULE", BackoffType::Schedule),
];
const JITTERS: [(&str, JitterType); 6] = [
    ("NONE", JitterType::None),
    ("FULL", JitterType::Full),
    ("EQUAL", JitterType::Equal),
    ("DECORRELATED", JitterType::Decorrelated),
    ("PROPORTIONAL", JitterType::Proportional),
    ("ABSOLUTE", JitterType::Absolute),
];

#[derive(Template)]
#[template(path = "designer.html")]
struct Page {
    frame: Frame,
    fields: Design,
    known: bool,
    may_save: bool,
    preview: Drawn,
    replay: Replayed,
}

/// The fields as they stand in the form.
#[derive(Debug, Default)]
struct Design {
    policy_id: String,
    max_attempts: String,
    backoff_type: String,
    initial_delay_ms: String,
    multiplier: String,
    exponent: String,
    delays_ms: String,
    max_delay_ms: String,
    total_budget_ms: String,
    jitter_type: String,
    jitter_fraction: String,
    jitter_ms: String,
    retryable_status_codes: String,
    retryable_grpc_codes: String,
    attempt_timeout_ms: String,
    visibility_timeout_ms: String,
    on_success_url: String,
    on_exhausted_url: String,
    signing_secret: String,
}

/// What a policy would do.
#[derive(Template)]
#[template(path = "preview.html")]
struct Drawn {
    problem: Option<String>,
    charts: Vec<Figure>,
    not_shown: u32,
    within: Option<String>,
}

impl askama::filters::HtmlSafe for Drawn {}

/// What the failures of the last days would have cost.
#[derive(Template)]
#[template(path = "replay.html")]
struct Replayed {
    problem: Option<String>,
    tasks: u64,
    looked_at: String,
    complete: bool,
    rows: Vec<(&'static str, String, String, String)>,
}

impl askama::filters::HtmlSafe for Replayed {}

/// `GET /console/policies/design`.
pub(super) async fn show(visitor: Visitor) -> Answer {
    let name = visitor.query.text("policy");
    let policy: RetryPolicy = if name.is_empty() {
        let default: RetryPolicy = visitor.api.get("/retry-policies/default").await?;
        RetryPolicy { policy_id: None, version: None, ..default }
    } else {
        visitor.api.get(&format!("/retry-policies/{}", segment(&name))).await?
    };
    let fields = Design::of(&policy);
    page(visitor, fields, !name.is_empty()).await
}

/// `POST /console/policies/draw`: a part of the page for scripts, all of it without.
pub(super) async fn draw(visitor: Visitor, Posted(fields): Posted) -> Answer {
    let design = Design::read(&fields);
    match visitor.query.get("part") {
        Some("preview") => render(&drawn(&visitor, &design).await?),
        Some("replay") => render(&replayed(&visitor, &design, fields.get("known").is_some()).await?),
        _ => {
            let known = fields.get("known").is_some();
            page(visitor, design, known).await
        }
    }
}

/// `POST /console/policies/save`.
pub(super) async fn save(visitor: Visitor, Posted(fields): Posted) -> Answer {
    let design = Design::read(&fields);
    let policy = design.policy()?;
    let name = design.policy_id.clone();
    if fields.get("known").is_some() {
        let path = format!("/retry-policies/{}", segment(&name));
        let content = RetryPolicy { policy_id: None, ..policy };
        visitor.api.send_json(Method::PUT, &path, &content).await?;
    } else {
        visitor.api.send_json(Method::POST, "/retry-policies", &policy).await?;
    }
    let page = query("/console/policies/design", [("policy", name.as_str()), ("done", "saved")]);
    Ok(Redirect::to(&page).into_response())
}

async fn page(visitor: Visitor, fields: Design, known: bool) -> Answer {
    let (preview, replay) = join(drawn(&visitor, &fields), replayed(&visitor, &fields, known)).await;
    let title = match fields.policy_id.as_str() {
        name if known => format!("Policy {name}"),
        _ => "New policy".to_owned(),
    };
    render(&Page {
        frame: visitor.frame(title, "policies"),
        known,
        may_save: visitor.administers_all(),
        preview: preview?,
        replay: replay?,
        fields,
    })
}

async fn drawn(visitor: &Visitor, design: &Design) -> Result<Drawn, Trouble> {
    let asked = async {
        let policy = RetryPolicy { policy_id: None, ..design.policy()? };
        let preview: PolicyPreview = visitor.api.post("/retry-policies/preview", &policy).await?;
        Ok((policy, preview))
    };
    match asked.await {
        Ok((policy, preview)) => Ok(Drawn::of(&policy, &preview)),
        Err(trouble) => {
            let problem = Some(wrong_field(trouble)?);
            Ok(Drawn { problem, charts: Vec::new(), not_shown: 0, within: None })
        }
    }
}

async fn replayed(visitor: &Visitor, design: &Design, known: bool) -> Result<Replayed, Trouble> {
    let asked = async {
        let policy = RetryPolicy { policy_id: None, ..design.policy()? };
        // A policy that is not there yet has no failures of its own: then those of all tasks count.
        let policy_id = known.then(|| design.policy_id.clone());
        let request = ReplayRequest { policy, policy_id, days: Some(REPLAYED_DAYS) };
        visitor.api.post::<Replay>("/retry-policies/replay", &request).await
    };
    match asked.await {
        Ok(replay) => Ok(Replayed::of(&replay)),
        // The drawing is worth having without it.
        Err(Trouble::Said(said)) => Ok(Replayed::unknown(sentence(&said))),
        Err(trouble) => Ok(Replayed::unknown(wrong_field(trouble)?)),
    }
}

/// A value that does not fit is said beside the drawing, while the person goes on typing; all else is no page.
fn wrong_field(trouble: Trouble) -> Result<String, Trouble> {
    match trouble {
        Trouble::Said(said) if matches!(said.status, 400 | 404 | 422) => Ok(sentence(&said)),
        Trouble::Senseless(what) => Ok(what),
        other => Err(other),
    }
}

impl Drawn {
    fn of(policy: &RetryPolicy, preview: &PolicyPreview) -> Self {
        let budget = policy.total_budget_ms.unwrap_or(Some(3_600_000));
        let last = preview.retries.iter().rfind(|retry| budget.is_none_or(|ms| retry.total.mean_ms <= ms));
        let within = budget.map(|ms| {
            let budget = words::span(ms);
            match (last, preview.retries.last()) {
                (Some(last), Some(all)) if last.attempt_number == all.attempt_number => {
                    format!("With mean waits all attempts fit the budget of {budget}.")
                }
                (Some(last), _) => format!(
                    "With mean waits attempt {} is the last one within the budget of {budget}.",
                    last.attempt_number
                ),
                (None, Some(_)) => format!("With mean waits no retry fits the budget of {budget}."),
                (None, None) => "There is no retry: the first failure is the end.".to_owned(),
            }
        });
        Self {
            problem: None,
            charts: vec![waits(preview), starts(preview, budget)],
            not_shown: preview.not_shown,
            within,
        }
    }
}

impl Replayed {
    fn unknown(problem: String) -> Self {
        Self { problem: Some(problem), tasks: 0, looked_at: String::new(), complete: true, rows: Vec::new() }
    }

    fn of(replay: &Replay) -> Self {
        let number = |of: fn(&Courses) -> u64| {
            let (before, after) = (of(&replay.actual), of(&replay.replayed));
            (words::count(before), words::count(after), change(before, after))
        };
        let (attempts, succeeded, exhausted) =
            (number(|one| one.attempts), number(|one| one.succeeded), number(|one| one.exhausted));
        let time = |one: &Courses| words::span_or_dash(one.mean_ms_to_success);
        Self {
            problem: None,
            tasks: replay.tasks,
            looked_at: words::count(replay.looked_at),
            complete: replay.complete,
            rows: vec![
                ("calls made", attempts.0, attempts.1, attempts.2),
                ("succeeded", succeeded.0, succeeded.1, succeeded.2),
                ("given up", exhausted.0, exhausted.1, exhausted.2),
                ("mean time to success", time(&replay.actual), time(&replay.replayed), String::new()),
            ],
        }
    }
}

fn change(before: u64, after: u64) -> String {
    match after.cmp(&before) {
        std::cmp::Ordering::Equal => "the same".to_owned(),
        std::cmp::Ordering::Greater => format!("{} more", words::count(after - before)),
        std::cmp::Ordering::Less => format!("{} fewer", words::count(before - after)),
    }
}

impl Design {
    fn of(policy: &RetryPolicy) -> Self {
        fn text<T: ToString>(value: &Option<T>) -> String {
            value.as_ref().map(ToString::to_string).unwrap_or_default()
        }
        let list = |codes: &Option<BTreeSet<u16>>| {
            codes.iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let delays: Vec<String> = policy.delays_ms.iter().flatten().map(ToString::to_string).collect();
        let backoff = policy.backoff_type.unwrap_or(BackoffType::Exponential);
        let jitter = policy.jitter_type.unwrap_or(JitterType::Full);
        let budget = policy.total_budget_ms.unwrap_or(Some(3_600_000));
        Self {
            policy_id: policy.policy_id.clone().unwrap_or_default(),
            max_attempts: text(&policy.max_attempts),
            backoff_type: named(&BACKOFFS, backoff),
            initial_delay_ms: text(&policy.initial_delay_ms),
            multiplier: text(&policy.multiplier),
            exponent: text(&policy.exponent),
            delays_ms: delays.join(", "),
            max_delay_ms: text(&policy.max_delay_ms),
            total_budget_ms: text(&budget),
            jitter_type: named(&JITTERS, jitter),
            jitter_fraction: text(&policy.jitter_fraction),
            jitter_ms: text(&policy.jitter_ms),
            retryable_status_codes: list(&policy.retryable_status_codes),
            retryable_grpc_codes: list(&policy.retryable_grpc_codes),
            attempt_timeout_ms: text(&policy.attempt_timeout_ms),
            visibility_timeout_ms: text(&policy.visibility_timeout_ms),
            on_success_url: policy.on_success_url.clone().unwrap_or_default(),
            on_exhausted_url: policy.on_exhausted_url.clone().unwrap_or_default(),
            signing_secret: policy.signing_secret.clone().unwrap_or_default(),
        }
    }

    fn read(fields: &Fields) -> Self {
        Self {
            policy_id: fields.text("policyId"),
            max_attempts: fields.text("maxAttempts"),
            backoff_type: fields.text("backoffType"),
            initial_delay_ms: fields.text("initialDelayMs"),
            multiplier: fields.text("multiplier"),
            exponent: fields.text("exponent"),
            delays_ms: fields.text("delaysMs"),
            max_delay_ms: fields.text("maxDelayMs"),
            total_budget_ms: fields.text("totalBudgetMs"),
            jitter_type: fields.text("jitterType"),
            jitter_fraction: fields.text("jitterFraction"),
            jitter_ms: fields.text("jitterMs"),
            retryable_status_codes: fields.text("retryableStatusCodes"),
            retryable_grpc_codes: fields.text("retryableGrpcCodes"),
            attempt_timeout_ms: fields.text("attemptTimeoutMs"),
            visibility_timeout_ms: fields.text("visibilityTimeoutMs"),
            on_success_url: fields.text("onSuccessUrl"),
            on_exhausted_url: fields.text("onExhaustedUrl"),
            signing_secret: fields.text("signingSecret"),
        }
    }

    /// The policy that the fields state; those that do not belong to its backoff or jitter are left out.
    fn policy(&self) -> Result<RetryPolicy, Trouble> {
        let backoff = chosen("backoffType", &BACKOFFS, &self.backoff_type)?;
        let jitter = chosen("jitterType", &JITTERS, &self.jitter_type)?;
        let (scheduled, owned) =
            (backoff == BackoffType::Schedule, |text: &str| (!text.is_empty()).then(|| text.to_owned()));
        Ok(RetryPolicy {
            policy_id: owned(&self.policy_id),
            version: None,
            max_attempts: number("maxAttempts", &self.max_attempts)?,
            backoff_type: Some(backoff),
            initial_delay_ms: if scheduled {
                None
            } else {
                number("initialDelayMs", &self.initial_delay_ms)?
            },
            multiplier: if backoff == BackoffType::Exponential {
                number("multiplier", &self.multiplier)?
            } else {
                None
            },
            exponent: if backoff == BackoffType::Polynomial {
                number("exponent", &self.exponent)?
            } else {
                None
            },
            delays_ms: if scheduled { Some(numbers("delaysMs", &self.delays_ms)?) } else { None },
            max_delay_ms: number("maxDelayMs", &self.max_delay_ms)?,
            total_budget_ms: Some(number("totalBudgetMs", &self.total_budget_ms)?),
            jitter_type: Some(jitter),
            jitter_fraction: if jitter == JitterType::Proportional {
                number("jitterFraction", &self.jitter_fraction)?
            } else {
                None
            },
            jitter_ms: if jitter == JitterType::Absolute {
                number("jitterMs", &self.jitter_ms)?
            } else {
                None
            },
            retryable_status_codes: Some(
                numbers("retryableStatusCodes", &self.retryable_status_codes)?.into_iter().collect(),
            ),
            retryable_grpc_codes: Some(
                numbers("retryableGrpcCodes", &self.retryable_grpc_codes)?.into_iter().collect(),
            ),
            attempt_timeout_ms: number("attemptTimeoutMs", &self.attempt_timeout_ms)?,
            visibility_timeout_ms: number("visibilityTimeoutMs", &self.visibility_timeout_ms)?,
            on_success_url: owned(&self.on_success_url),
            on_exhausted_url: owned(&self.on_exhausted_url),
            signing_secret: owned(&self.signing_secret),
        })
    }

    fn backoffs(&self) -> Vec<(&'static str, String, bool)> {
        BACKOFFS.iter().map(|(name, _)| (*name, words::plain(name), *name == self.backoff_type)).collect()
    }

    fn jitters(&self) -> Vec<(&'static str, String, bool)> {
        JITTERS.iter().map(|(name, _)| (*name, words::plain(name), *name == self.jitter_type)).collect()
    }
}

fn named<T: Copy + PartialEq>(all: &[(&'static str, T)], one: T) -> String {
    all.iter().find(|(_, value)| *value == one).map_or("", |(name, _)| name).to_owned()
}

fn chosen<T: Copy>(field: &str, all: &[(&'static str, T)], text: &str) -> Result<T, Trouble> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| Trouble::Senseless(format!("{field}: there is no {text:?}")))
}

fn number<T: std::str::FromStr>(field: &str, text: &str) -> Result<Option<T>, Trouble> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| Trouble::Senseless(format!("{field}: {text:?} is not a number that fits here"));
    text.replace(['_', ' '], "").parse().map(Some).map_err(wrong)
}

fn numbers<T: std::str::FromStr>(field: &str, text: &str) -> Result<Vec<T>, Trouble> {
    let parts = text.split([',', ' ', ';']).filter(|part| !part.is_empty());
    parts.filter_map(|part| number(field, part).transpose()).collect()
}
