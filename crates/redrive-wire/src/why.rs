//! Why a task or job is not running now.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::state::JobState;

/// Why a task is not running now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The id of the task.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// Its state.
    pub state: JobState,
    /// Why it is not running.
    #[serde(flatten)]
    pub explanation: JobExplanation,
}

/// Why a job is not running now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobWhy {
    /// The id of the job.
    #[schema(format = "uuid")]
    pub job_id: String,
    /// Its state.
    pub state: JobState,
    /// Why it is not running.
    #[serde(flatten)]
    pub explanation: JobExplanation,
}

/// Why a task or job is not running.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobExplanation {
    /// The cause.
    pub because: ExplanationKind,
    /// The same as a sentence.
    pub detail: String,
    /// When the cause ends, in epoch ms, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The worker that holds or held it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The origin whose gate holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

impl JobExplanation {
    /// A cause with its description.
    pub fn new(because: ExplanationKind, detail: impl Into<String>) -> Self {
        Self { because, detail: detail.into(), until: None, worker: None, origin: None }
    }
}

/// The causes that keep a task or job from running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExplanationKind {
    /// It is not due yet.
    Waiting,
    /// It is due. A worker claims it as soon as it has capacity.
    Due,
    /// The gate of its origin, on this node, holds calls back.
    GateHolds,
    /// Its queue is paused.
    QueuePaused,
    /// The limits of its queue are reached.
    LimitsReached,
    /// An operator has paused it.
    Paused,
    /// It waits for a signal.
    WaitsForSignal,
    /// It waits for its children.
    WaitsForChildren,
    /// It waits for the first of several events.
    WaitsForAny,
    /// It waits for a free slot under its limits, or for an earlier job of its partition key.
    WaitsForSlot,
    /// It sleeps until a timer ends.
    WaitsForTimer,
    /// It is running: a worker holds its lease.
    Running,
    /// It has ended.
    Ended,
}
