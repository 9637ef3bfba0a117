//! The policy designer: the fields of a policy, charts of its waits, and a replay of last week's failures.

use askama::Template;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use redrive_wire::policy::RetryPolicy;
use redrive_wire::preview::PolicyPreview;
use redrive_wire::replay::{Replay, ReplayRequest, ReplayTotals};

use super::Answer;
use super::policy_form::PolicyForm;
use crate::api::{query, segment};
use crate::chart::Figure;
use crate::chart::schedule::{starts, waits};
use crate::context::PageContext;
use crate::error::{PageError, problem_text};
use crate::form::VerifiedForm;
use crate::layout::{Layout, render};
use crate::text;

/// The number of days in a replay.
const REPLAY_DAYS: u32 = 7;

#[derive(Template)]
#[template(path = "policy_designer.html")]
struct Page {
    layout: Layout,
    fields: PolicyForm,
    known: bool,
    may_save: bool,
    preview: PreviewPanel,
    replay: ReplayPanel,
}

/// Charts of the waits of a policy.
#[derive(Template)]
#[template(path = "policy_preview.html")]
struct PreviewPanel {
    problem: Option<String>,
    charts: Vec<Figure>,
    /// The number of retries without a place in the charts.
    not_shown: u32,
    /// Which attempts start within the time budget. `None` if there is no budget.
    budget_text: Option<String>,
}

impl askama::filters::HtmlSafe for PreviewPanel {}

/// The result of a replay of the failures of the last days.
#[derive(Template)]
#[template(path = "policy_replay.html")]
struct ReplayPanel {
    requested: bool,
    problem: Option<String>,
    tasks: u64,
    examined: String,
    complete: bool,
    rows: Vec<(&'static str, String, String, String)>,
}

impl askama::filters::HtmlSafe for ReplayPanel {}

/// `GET /console/policies/design`.
pub(super) async fn show(context: PageContext) -> Answer {
    let name = context.query.text("policy");
    let policy: RetryPolicy = if name.is_empty() {
        let default: RetryPolicy = context.api.get("/policies/default").await?;
        RetryPolicy { policy_id: None, version: None, ..default }
    } else {
        context.api.get(&format!("/policies/{}", segment(&name))).await?
    };
    let fields = PolicyForm::of(&policy);
    // A replay may take a second. The script requests it separately, or the user does.
    page(context, fields, !name.is_empty(), ReplayPanel::not_requested()).await
}

/// `POST /console/policies/draw`: a part of the page for the script, or the whole page without a script.
pub(super) async fn draw(context: PageContext, VerifiedForm(fields): VerifiedForm) -> Answer {
    let design = PolicyForm::read(&fields);
    match context.query.get("part") {
        Some("preview") => render(&preview_panel(&context, &design).await?),
        Some("replay") => render(&replay_panel(&context, &design, fields.get("known").is_some()).await?),
        _ => {
            let known = fields.get("known").is_some();
            let replay = replay_panel(&context, &design, known).await?;
            page(context, design, known, replay).await
        }
    }
}

/// `POST /console/policies/save`.
pub(super) async fn save(context: PageContext, VerifiedForm(fields): VerifiedForm) -> Answer {
    let design = PolicyForm::read(&fields);
    let policy = design.policy()?;
    let name = design.policy_id.clone();
    if fields.get("known").is_some() {
        let path = format!("/policies/{}", segment(&name));
        let content = RetryPolicy { policy_id: None, ..policy };
        context.api.send_json(Method::PUT, &path, &content).await?;
    } else {
        context.api.send_json(Method::POST, "/policies", &policy).await?;
    }
    let page = query("/console/policies/design", [("policy", name.as_str()), ("done", "saved")]);
    Ok(Redirect::to(&page).into_response())
}

async fn page(context: PageContext, fields: PolicyForm, known: bool, replay: ReplayPanel) -> Answer {
    let preview = preview_panel(&context, &fields).await?;
    let title = match fields.policy_id.as_str() {
        name if known => format!("Policy {name}"),
        _ => "New policy".to_owned(),
    };
    render(&Page {
        layout: context.layout(title, "policies"),
        known,
        may_save: context.is_global_admin(),
        preview,
        replay,
        fields,
    })
}

async fn preview_panel(context: &PageContext, design: &PolicyForm) -> Result<PreviewPanel, PageError> {
    let request = async {
        let policy = RetryPolicy { policy_id: None, ..design.policy()? };
        let preview: PolicyPreview = context.api.post("/policies/preview", &policy).await?;
        Ok((policy, preview))
    };
    match request.await {
        Ok((policy, preview)) => Ok(PreviewPanel::of(&policy, &preview)),
        Err(error) => {
            let problem = Some(invalid_field(error)?);
            Ok(PreviewPanel { problem, charts: Vec::new(), not_shown: 0, budget_text: None })
        }
    }
}

async fn replay_panel(
    context: &PageContext,
    design: &PolicyForm,
    known: bool,
) -> Result<ReplayPanel, PageError> {
    let request = async {
        let policy = RetryPolicy { policy_id: None, ..design.policy()? };
        // A new policy has no failures yet. Then the failures of all tasks are replayed.
        let policy_id = known.then(|| design.policy_id.clone());
        let request = ReplayRequest { policy, policy_id, days: Some(REPLAY_DAYS) };
        context.api.post::<Replay>("/policies/replay", &request).await
    };
    match request.await {
        Ok(replay) => Ok(ReplayPanel::of(&replay)),
        // The charts are useful without the replay.
        Err(PageError::Api(problem)) => Ok(ReplayPanel::failed(problem_text(&problem))),
        Err(error) => Ok(ReplayPanel::failed(invalid_field(error)?)),
    }
}

/// Returns the message about an invalid value, which is shown beside the charts while the user types. Other errors are
/// error pages.
fn invalid_field(error: PageError) -> Result<String, PageError> {
    match error {
        PageError::Api(problem) if matches!(problem.status, 400 | 404 | 422) => Ok(problem_text(&problem)),
        PageError::InvalidInput(what) => Ok(what),
        other => Err(other),
    }
}

impl PreviewPanel {
    fn of(policy: &RetryPolicy, preview: &PolicyPreview) -> Self {
        let budget = policy.total_budget_ms.unwrap_or(Some(3_600_000));
        let last = preview.retries.iter().rfind(|retry| budget.is_none_or(|ms| retry.total.mean_ms <= ms));
        let budget_text = budget.map(|ms| {
            let budget = text::duration(ms);
            match (last, preview.retries.last()) {
                (Some(last), Some(all)) if last.attempt_number == all.attempt_number => {
                    format!("With mean waits all attempts start within the time budget of {budget}.")
                }
                (Some(last), _) => format!(
                    "With mean waits attempt {} is the last one within the time budget of {budget}.",
                    last.attempt_number
                ),
                (None, Some(_)) => {
                    format!("With mean waits no retry starts within the time budget of {budget}.")
                }
                (None, None) => "There are no retries: the task is dead after the first failure.".to_owned(),
            }
        });
        Self {
            problem: None,
            charts: vec![waits(preview), starts(preview, budget)],
            not_shown: preview.not_shown,
            budget_text,
        }
    }
}

impl ReplayPanel {
    fn failed(problem: String) -> Self {
        let problem = Some(problem);
        Self { requested: true, problem, tasks: 0, examined: String::new(), complete: true, rows: Vec::new() }
    }

    fn not_requested() -> Self {
        Self { requested: false, problem: None, ..Self::failed(String::new()) }
    }

    fn of(replay: &Replay) -> Self {
        let number = |of: fn(&ReplayTotals) -> u64| {
            let (before, after) = (of(&replay.actual), of(&replay.replayed));
            (text::count(before), text::count(after), change(before, after))
        };
        let (attempts, succeeded, dead) =
            (number(|one| one.attempts), number(|one| one.succeeded), number(|one| one.dead));
        let time = |one: &ReplayTotals| text::duration_or_dash(one.mean_ms_to_success);
        Self {
            requested: true,
            problem: None,
            tasks: replay.tasks,
            examined: text::count(replay.examined),
            complete: replay.complete,
            rows: vec![
                ("attempts", attempts.0, attempts.1, attempts.2),
                ("succeeded", succeeded.0, succeeded.1, succeeded.2),
                ("dead", dead.0, dead.1, dead.2),
                ("mean time to success", time(&replay.actual), time(&replay.replayed), String::new()),
            ],
        }
    }
}

fn change(before: u64, after: u64) -> String {
    match after.cmp(&before) {
        std::cmp::Ordering::Equal => "no change".to_owned(),
        std::cmp::Ordering::Greater => format!("{} more", text::count(after - before)),
        std::cmp::Ordering::Less => format!("{} fewer", text::count(before - after)),
    }
}
