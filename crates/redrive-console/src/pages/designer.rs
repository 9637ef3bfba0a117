//! The designer of policies: the fields, what they would do as a drawing, and what last week would have cost with them.

use askama::Template;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_server::wire::policy::RetryPolicy;
use redrive_server::wire::preview::PolicyPreview;
use redrive_server::wire::replay::{Courses, Replay, ReplayRequest};

use super::Answer;
use super::design::Design;
use crate::api::{query, segment};
use crate::chart::Figure;
use crate::chart::schedule::{starts, waits};
use crate::form::Posted;
use crate::frame::{Frame, render};
use crate::trouble::{Trouble, sentence};
use crate::visitor::Visitor;
use crate::words;

/// Days that are driven again on paper.
const REPLAYED_DAYS: u32 = 7;

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
    asked: bool,
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
    // It may take a second, which nobody who only looks should wait: a script asks for it, or the person does.
    page(visitor, fields, !name.is_empty(), Replayed::not_asked()).await
}

/// `POST /console/policies/draw`: a part of the page for scripts, all of it without.
pub(super) async fn draw(visitor: Visitor, Posted(fields): Posted) -> Answer {
    let design = Design::read(&fields);
    match visitor.query.get("part") {
        Some("preview") => render(&drawn(&visitor, &design).await?),
        Some("replay") => render(&replayed(&visitor, &design, fields.get("known").is_some()).await?),
        _ => {
            let known = fields.get("known").is_some();
            let replay = replayed(&visitor, &design, known).await?;
            page(visitor, design, known, replay).await
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

async fn page(visitor: Visitor, fields: Design, known: bool, replay: Replayed) -> Answer {
    let preview = drawn(&visitor, &fields).await?;
    let title = match fields.policy_id.as_str() {
        name if known => format!("Policy {name}"),
        _ => "New policy".to_owned(),
    };
    render(&Page {
        frame: visitor.frame(title, "policies"),
        known,
        may_save: visitor.administers_all(),
        preview,
        replay,
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
        let problem = Some(problem);
        Self { asked: true, problem, tasks: 0, looked_at: String::new(), complete: true, rows: Vec::new() }
    }

    fn not_asked() -> Self {
        Self { asked: false, problem: None, ..Self::unknown(String::new()) }
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
            asked: true,
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
