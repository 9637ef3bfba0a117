//! The steps of a job and their child jobs, as a tree.

use std::future::Future;
use std::pin::Pin;

use askama::Template;
use askama::filters::HtmlSafe;
use futures_util::StreamExt as _;
use futures_util::stream;
use redrive_wire::job::{Job, JobStep, JobStepKind};
use redrive_wire::page::Page;

use super::list::{short, truncate};
use crate::api::{ApiClient, segment};
use crate::error::PageError;
use crate::filter::DELIVERY;
use crate::mask;
use crate::text;

/// The largest number of steps of one job.
const STEPS_MAX: usize = 100;
/// The largest number of children of one step.
const CHILDREN_MAX: usize = 25;
/// The depth of the tree. The page of a child shows the descendants of the child.
const DEPTH_MAX: usize = 3;
/// The number of concurrent requests.
const CONCURRENCY: usize = 8;
/// The largest length of the value of a step.
const VALUE_CHARACTERS_MAX: usize = 400;

/// A step and its children.
#[derive(Template)]
#[template(path = "step.html")]
pub(super) struct StepBranch {
    pub(super) place: u32,
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) class: &'static str,
    pub(super) value: String,
    pub(super) children: Vec<Child>,
    /// The number of children that are not shown.
    pub(super) more: usize,
}

/// A child and its steps.
#[derive(Template)]
#[template(path = "child.html")]
pub(super) struct Child {
    pub(super) id: String,
    pub(super) short: String,
    pub(super) kind: String,
    pub(super) state: &'static str,
    pub(super) branches: Vec<StepBranch>,
}

impl HtmlSafe for StepBranch {}
impl HtmlSafe for Child {}

/// The steps of a job. A task has none.
pub(super) async fn of(api: &ApiClient, job: &Job) -> Result<Vec<StepBranch>, PageError> {
    if job.kind == DELIVERY { Ok(Vec::new()) } else { branches(api.clone(), job.job_id.clone(), 1).await }
}

type Branches = Pin<Box<dyn Future<Output = Result<Vec<StepBranch>, PageError>> + Send>>;

fn branches(api: ApiClient, id: String, depth: usize) -> Branches {
    Box::pin(async move {
        let steps: Page<JobStep> =
            api.get(&format!("/jobs/{}/steps?limit={STEPS_MAX}", segment(&id))).await?;
        let mut branches = Vec::with_capacity(steps.items.len());
        for step in steps.items {
            branches.push(branch(&api, step, depth).await?);
        }
        Ok(branches)
    })
}

async fn branch(api: &ApiClient, step: JobStep, depth: usize) -> Result<StepBranch, PageError> {
    let (kind, class) = kind_label(step.kind);
    let ids = if step.kind == JobStepKind::Children { child_ids(&step) } else { Vec::new() };
    let value = match step.kind {
        JobStepKind::Children => text::count_of(ids.len() as u64, "child", "children"),
        JobStepKind::Timer | JobStepKind::Deadline => until_text(&step),
        JobStepKind::Done
        | JobStepKind::Failed
        | JobStepKind::Signal
        | JobStepKind::Version
        | JobStepKind::Selected => truncate(&mask::content(&step.value), VALUE_CHARACTERS_MAX),
    };
    let more = ids.len().saturating_sub(CHILDREN_MAX);
    let children = stream::iter(ids.into_iter().take(CHILDREN_MAX))
        .map(|id| child(api.clone(), id, depth))
        .buffered(CONCURRENCY)
        .collect::<Vec<_>>()
        .await;
    let children = children.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    Ok(StepBranch { place: step.place, name: step.name, kind, class, value, children, more })
}

/// Reads a child. Returns `None` if it was pruned.
async fn child(api: ApiClient, id: String, depth: usize) -> Result<Option<Child>, PageError> {
    let job: Job = match api.get(&format!("/jobs/{}", segment(&id))).await {
        Ok(job) => job,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let child_steps = if depth < DEPTH_MAX { branches(api, id, depth + 1).await? } else { Vec::new() };
    Ok(Some(Child {
        short: short(&job.job_id),
        id: job.job_id,
        kind: job.kind,
        state: job.state.name(),
        branches: child_steps,
    }))
}

fn child_ids(step: &JobStep) -> Vec<String> {
    let json = step.value.json.as_ref().map(|json| json.get()).unwrap_or("[]");
    serde_json::from_str(json).unwrap_or_default()
}

fn until_text(step: &JobStep) -> String {
    let text = step.value.json.as_ref().map(|json| json.get()).unwrap_or_default();
    text.parse().map_or_else(|_| mask::content(&step.value), |at| format!("until {} UTC", text::utc(at)))
}

/// The label of a kind of step, and its CSS class.
fn kind_label(kind: JobStepKind) -> (&'static str, &'static str) {
    match kind {
        JobStepKind::Done => ("done", "good"),
        JobStepKind::Failed => ("failed", "bad"),
        JobStepKind::Timer => ("sleep", ""),
        JobStepKind::Children => ("children", "info"),
        JobStepKind::Selected => ("selected", "good"),
        JobStepKind::Signal => ("signal", "good"),
        JobStepKind::Deadline => ("wait for a signal", ""),
        JobStepKind::Version => ("version", ""),
    }
}
