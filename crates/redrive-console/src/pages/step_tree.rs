//! The steps that a job remembers and the children below them, as a tree.

use std::future::Future;
use std::pin::Pin;

use askama::Template;
use askama::filters::HtmlSafe;
use futures_util::StreamExt as _;
use futures_util::stream;
use redrive_server::wire::job::{Job, JobStep, JobStepKind};
use redrive_server::wire::page::Page;

use super::list::{cut, short, state_name};
use crate::api::{Caller, segment};
use crate::filter::DELIVERY;
use crate::mask;
use crate::trouble::Trouble;
use crate::words;

/// Steps shown of one job.
const STEPS_MAX: usize = 100;
/// Children shown of one step.
const CHILDREN_MAX: usize = 25;
/// How deep the tree goes: a child's own page shows what is below it.
const DEPTH_MAX: usize = 3;
/// Jobs read at once.
const AT_ONCE: usize = 8;
/// Characters of a step's value.
const VALUE_CHARACTERS_MAX: usize = 400;

/// A step, and the children it has.
#[derive(Template)]
#[template(path = "branch.html")]
pub(super) struct Branch {
    pub(super) place: u32,
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) class: &'static str,
    pub(super) value: String,
    pub(super) children: Vec<Child>,
    /// How many more there are.
    pub(super) more: usize,
}

/// A child, and what is below it.
#[derive(Template)]
#[template(path = "child.html")]
pub(super) struct Child {
    pub(super) id: String,
    pub(super) short: String,
    pub(super) kind: String,
    pub(super) state: &'static str,
    pub(super) branches: Vec<Branch>,
}

impl HtmlSafe for Branch {}
impl HtmlSafe for Child {}

/// The tree below a job; a call that is delivered has none.
pub(super) async fn of(api: &Caller, job: &Job) -> Result<Vec<Branch>, Trouble> {
    if job.kind == DELIVERY { Ok(Vec::new()) } else { branches(api.clone(), job.job_id.clone(), 1).await }
}

type Branches = Pin<Box<dyn Future<Output = Result<Vec<Branch>, Trouble>> + Send>>;

fn branches(api: Caller, id: String, depth: usize) -> Branches {
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

async fn branch(api: &Caller, step: JobStep, depth: usize) -> Result<Branch, Trouble> {
    let (kind, class) = named(step.kind);
    let ids = if step.kind == JobStepKind::Children { ids(&step) } else { Vec::new() };
    let value = match step.kind {
        JobStepKind::Children => words::counted(ids.len() as u64, "child", "children"),
        JobStepKind::Timer | JobStepKind::Deadline => instant(&step),
        JobStepKind::Done
        | JobStepKind::Failed
        | JobStepKind::Signal
        | JobStepKind::Version
        | JobStepKind::Selected => cut(&mask::content(&step.value), VALUE_CHARACTERS_MAX),
    };
    let more = ids.len().saturating_sub(CHILDREN_MAX);
    let children = stream::iter(ids.into_iter().take(CHILDREN_MAX))
        .map(|id| child(api.clone(), id, depth))
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let children = children.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    Ok(Branch { place: step.place, name: step.name, kind, class, value, children, more })
}

/// A child; none where it is gone.
async fn child(api: Caller, id: String, depth: usize) -> Result<Option<Child>, Trouble> {
    let job: Job = match api.get(&format!("/jobs/{}", segment(&id))).await {
        Ok(job) => job,
        Err(trouble) if trouble.is_absent() => return Ok(None),
        Err(trouble) => return Err(trouble),
    };
    let below = if depth < DEPTH_MAX { branches(api, id, depth + 1).await? } else { Vec::new() };
    Ok(Some(Child {
        short: short(&job.job_id),
        id: job.job_id,
        kind: job.kind,
        state: state_name(job.state),
        branches: below,
    }))
}

fn ids(step: &JobStep) -> Vec<String> {
    let json = step.value.json.as_ref().map(|json| json.get()).unwrap_or("[]");
    serde_json::from_str(json).unwrap_or_default()
}

fn instant(step: &JobStep) -> String {
    let text = step.value.json.as_ref().map(|json| json.get()).unwrap_or_default();
    text.parse().map_or_else(|_| mask::content(&step.value), |at| format!("until {} UTC", words::utc(at)))
}

fn named(kind: JobStepKind) -> (&'static str, &'static str) {
    match kind {
        JobStepKind::Done => ("done", "good"),
        JobStepKind::Failed => ("failed for good", "bad"),
        JobStepKind::Timer => ("sleep", ""),
        JobStepKind::Children => ("children", "info"),
        JobStepKind::Selected => ("selected", "good"),
        JobStepKind::Signal => ("signal", "good"),
        JobStepKind::Deadline => ("waits for a signal", ""),
        JobStepKind::Version => ("version", ""),
    }
}
