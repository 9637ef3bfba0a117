//! Jobs of every kind, with their attempts and steps.

use redrive_core::queue_limits::{Order, Partition};
use redrive_core::steps::{Step, StepKind};
use redrive_core::{Attempt, JobId, Parent, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::content::{Content, Detail};
use super::millis::ms;
use super::state::{DeadReason, JobState, WaitingFor};
use super::task::TASK_KIND;

/// A job of any kind. A job of kind `delivery` is a task with the same id.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// Its id.
    #[schema(format = "uuid")]
    pub job_id: String,
    /// Its tenant; absent for the default tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its kind, which selects the handler.
    pub kind: String,
    /// Its queue.
    pub queue: String,
    /// Its state.
    pub state: JobState,
    /// What it waits for, while its state is `waiting`.
    pub waiting_for: Option<WaitingFor>,
    /// Whether an operator has paused it: no further attempt is made.
    pub paused: bool,
    /// The number of its run: 1, plus one for each redrive.
    pub run: u32,
    /// Attempts charged in this run.
    pub attempt: u32,
    /// Attempts that its policy allows.
    pub max_attempts: Option<u32>,
    /// Its policy.
    pub policy_id: String,
    /// The version of its policy.
    pub policy_version: u32,
    /// From 0 to 9. Jobs with a higher priority are claimed first.
    pub priority: u8,
    /// When it was enqueued, in epoch ms.
    pub created_at: i64,
    /// When the next attempt is due, in epoch ms, while it is pending or retrying.
    pub next_run_at: Option<i64>,
    /// When the current or last attempt was started, in epoch ms.
    pub started_at: Option<i64>,
    /// When its lease ends, in epoch ms, while it is running.
    pub lease_until: Option<i64>,
    /// The worker that holds or last held its lease.
    pub worker: Option<String>,
    /// When it ended, in epoch ms.
    pub finished_at: Option<i64>,
    /// Whether someone cancelled it while it was running.
    pub cancel_requested: bool,
    /// The last error.
    pub last_error: Option<String>,
    /// The last HTTP status or gRPC code.
    pub last_status: Option<u16>,
    /// Why it is dead.
    pub reason: Option<DeadReason>,
    /// Its parent.
    pub parent: Option<ParentOfJob>,
    /// Its partition key. Jobs of a queue with the same key share limits, or run in order.
    pub partition: Option<PartitionOfJob>,
    /// Its idempotency key.
    pub idempotency_key: Option<String>,
    /// The address that a task is delivered to; for other jobs, what they work on.
    pub target: Option<String>,
    /// The timeout of one attempt, if the job has its own.
    pub timeout_ms: Option<u64>,
    /// The metadata that its creator stored.
    pub metadata: Option<Content>,
    /// The input of the handler. It is left out for a task, because a call may carry secrets.
    pub payload: Content,
    /// The result of the handler.
    pub output: Option<Content>,
}

/// The parent of a job.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParentOfJob {
    /// The id of the parent.
    #[schema(format = "uuid")]
    pub job_id: String,
    /// The place of the step of the parent that enqueued it.
    pub branch: u32,
    /// Whether it continues when its parent is cancelled or dead.
    #[serde(default)]
    pub detached: bool,
}

impl From<Parent> for ParentOfJob {
    fn from(parent: Parent) -> Self {
        Self { job_id: parent.id.to_string(), branch: parent.branch, detached: parent.detached }
    }
}

/// The partition key of a job.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionOfJob {
    /// The key.
    pub key: String,
    /// `any`: jobs may run at the same time; `strict`: one after the other.
    pub order: String,
}

impl From<&Partition> for PartitionOfJob {
    fn from(partition: &Partition) -> Self {
        let order = match partition.order {
            Order::Any => "any",
            Order::Strict => "strict",
        };
        Self { key: partition.key.to_string(), order: order.to_owned() }
    }
}

impl Job {
    /// Converts a job to its form in the API. `max_attempts` comes from its policy.
    pub fn show(job: &redrive_core::Job, max_attempts: Option<u32>, detail: Detail, now: Timestamp) -> Self {
        let payload = match job.kind.as_str() {
            TASK_KIND if detail != Detail::Hidden => Content::size_only(&job.payload),
            _ => Content::show(&job.payload, detail),
        };
        Self {
            job_id: job.id.to_string(),
            tenant: Some(job.tenant.as_str()).filter(|tenant| !tenant.is_empty()).map(str::to_owned),
            kind: job.kind.to_string(),
            queue: job.queue.to_string(),
            state: JobState::of(job, now),
            waiting_for: WaitingFor::of(job, now),
            paused: job.paused,
            run: job.run,
            attempt: job.attempt,
            max_attempts,
            policy_id: job.policy.name.to_string(),
            policy_version: job.policy.version.get(),
            priority: job.priority.get(),
            created_at: job.created_at.as_ms(),
            next_run_at: job.state.is_claimable().then(|| job.next_run_at.as_ms()),
            started_at: job.started_at.map(|at| at.as_ms()),
            lease_until: job.lease_until.map(|at| at.as_ms()),
            worker: job.worker.as_ref().map(ToString::to_string),
            finished_at: job.finished_at.map(|at| at.as_ms()),
            cancel_requested: job.cancel_requested,
            last_error: job.last_error.clone(),
            last_status: job.last_status,
            reason: job.reason.map(Into::into),
            parent: job.parent.map(ParentOfJob::from),
            partition: job.partition.as_ref().map(PartitionOfJob::from),
            idempotency_key: job.key.as_ref().map(ToString::to_string),
            target: job.target.clone(),
            timeout_ms: job.timeout.map(ms),
            metadata: job.metadata.as_ref().map(|text| Content::show(text.as_bytes(), detail)),
            payload,
            output: job.output.as_ref().map(|output| Content::show(output, detail)),
        }
    }
}

/// One attempt of a job. By default the library logs only failed attempts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobAttempt {
    /// The run it belongs to.
    pub run: u32,
    /// The attempt within the run, from 1.
    pub attempt: u32,
    /// When it was started, in epoch ms.
    pub started_at: i64,
    /// How long it took.
    pub duration_ms: u64,
    /// How it ended.
    pub outcome: String,
    /// The error, if it failed.
    pub error: Option<String>,
    /// Further evidence; for a task, for example the address and the protocol of the call.
    pub detail: Option<Content>,
    /// The state that it led to.
    pub led_to: JobState,
    /// The wait that was planned after it.
    pub wait_ms: Option<u64>,
    /// When the next attempt was due, in epoch ms.
    pub next_run_at: Option<i64>,
    /// The worker that made it.
    pub worker: Option<String>,
}

impl JobAttempt {
    /// Converts an attempt of the log to its form in the API.
    pub fn show(attempt: Attempt, shown: Detail) -> Self {
        let entry = attempt.entry;
        Self {
            run: entry.run,
            attempt: entry.attempt,
            started_at: entry.started_at.as_ms(),
            duration_ms: ms(entry.duration),
            outcome: entry.outcome,
            error: entry.error,
            detail: entry.detail.map(|detail| Content::show(detail.as_bytes(), shown)),
            led_to: attempt.led_to.into(),
            wait_ms: attempt.wait.map(ms),
            next_run_at: attempt.next_run_at.map(|at| at.as_ms()),
            worker: attempt.worker.as_ref().map(ToString::to_string),
        }
    }
}

/// A stored step of a job.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobStep {
    /// Its place in the job, from 0.
    pub place: u32,
    /// Its name.
    pub name: String,
    /// Its kind, which decides what `value` contains.
    pub kind: JobStepKind,
    /// Its value: a result, an error, a time in epoch ms, the ids of children, or a version.
    pub value: Content,
}

/// The kinds of stored steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStepKind {
    /// It succeeded with this value.
    Done,
    /// It failed for good with this error.
    Failed,
    /// A timer that ends at this time.
    Timer,
    /// Children with these ids.
    Children,
    /// A signal with this value.
    Signal,
    /// The time at which a wait for a signal ends.
    Deadline,
    /// The version of the code that this run uses.
    Version,
    /// Which of several waits ended first, with its value.
    Selected,
}

impl From<StepKind> for JobStepKind {
    fn from(kind: StepKind) -> Self {
        match kind {
            StepKind::Done => Self::Done,
            StepKind::Failed => Self::Failed,
            StepKind::Timer => Self::Timer,
            StepKind::Children => Self::Children,
            StepKind::Signal => Self::Signal,
            StepKind::Deadline => Self::Deadline,
            StepKind::Version => Self::Version,
            StepKind::Selected => Self::Selected,
        }
    }
}

impl JobStep {
    /// Converts a stored step to its form in the API. `detail` applies to the values that a program chose.
    pub fn show(step: &Step, detail: Detail) -> Self {
        let value = match step.kind {
            StepKind::Children => Content::show(&child_ids_json(&step.value), Detail::Whole),
            StepKind::Done | StepKind::Failed | StepKind::Signal => Content::show(&step.value, detail),
            StepKind::Selected => Content::show(&selection_json(&step.value), detail),
            StepKind::Timer | StepKind::Deadline | StepKind::Version => {
                Content::show(&step.value, Detail::Whole)
            }
        };
        Self { place: step.place, name: step.name.to_string(), kind: step.kind.into(), value }
    }
}

/// Converts the value of a `selected` step to JSON. The first line of the stored value has the number and the
/// name of the arm; the value of the signal follows.
fn selection_json(value: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(value);
    let (arm, value) = text.split_once('\n').unwrap_or((&text, ""));
    let name = arm.split_once(' ').map_or(arm, |(_, name)| name);
    let value: serde_json::Value = serde_json::from_str(value).unwrap_or_default();
    serde_json::json!({ "selected": name, "value": value }).to_string().into_bytes()
}

/// Converts the ids of children to JSON. They are stored as bytes, sixteen for each id.
fn child_ids_json(value: &[u8]) -> Vec<u8> {
    let ids = value.chunks_exact(16).filter_map(|bytes| Uuid::from_slice(bytes).ok()).map(JobId);
    serde_json::to_vec(&ids.collect::<Vec<_>>()).unwrap_or_default()
}

/// How to redrive a dead job.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedriveJob {
    /// Whether its stored steps are kept; `keep` when absent.
    #[serde(default)]
    pub steps: StepsOnRedrive,
}

/// Whether the stored steps of a dead job are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StepsOnRedrive {
    /// The job continues after its stored steps.
    #[default]
    Keep,
    /// Every step runs again.
    Forget,
}

/// A signal for a job.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"name": "approved", "value": true}))]
pub struct SignalRequest {
    /// Its name.
    #[schema(min_length = 1, max_length = 128)]
    pub name: String,
    /// Its value, at most 64 KiB; null when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub value: Option<Box<RawValue>>,
}

#[cfg(test)]
mod tests {
    use redrive_core::StepName;

    use super::*;

    #[test]
    fn each_kind_of_step_is_written_as_the_engine_names_it() {
        for kind in StepKind::ALL {
            let shown = serde_json::to_value(JobStepKind::from(kind)).unwrap();
            assert_eq!(shown, serde_json::to_value(kind).unwrap());
        }
    }

    #[test]
    fn a_selection_is_shown_by_the_name_of_its_arm() {
        let name = StepName::new("select").unwrap();
        for (value, expected) in [
            (
                &b"1 approved\n{\"by\":\"Ada\"}"[..],
                serde_json::json!({"selected": "approved", "value": {"by": "Ada"}}),
            ),
            (b"0 sleep\n", serde_json::json!({"selected": "sleep", "value": null})),
        ] {
            let (name, value) = (name.clone(), value.to_vec());
            let step = Step { place: 1, name, kind: StepKind::Selected, value };
            let shown = serde_json::to_value(JobStep::show(&step, Detail::Whole)).unwrap();
            assert_eq!(shown["value"]["json"], expected);
        }
    }

    #[test]
    fn children_are_shown_by_their_ids() {
        let ids = [Uuid::from_u128(7), Uuid::max()];
        let value = ids.iter().flat_map(|id| id.into_bytes()).collect();
        let name = StepName::new("fan out").unwrap();
        let step = Step { place: 1, name, kind: StepKind::Children, value };
        let shown = serde_json::to_value(JobStep::show(&step, Detail::Whole)).unwrap();
        assert_eq!(shown["value"]["json"], serde_json::json!(ids));
    }
}
