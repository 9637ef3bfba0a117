//! Changes of the state of a task, as `GET /v1/events` sends them.

use redrive_core::{JobId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::state::{DeadReason, JobState};

/// A change of the state of a task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskEvent {
    /// The id of the task.
    pub task_id: String,
    /// Its new state.
    pub state: JobState,
    /// Attempts of this run so far.
    pub attempt_number: u32,
    /// When the state changed, in epoch ms.
    pub at: i64,
    /// When the next attempt is due, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<i64>,
    /// Why it is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeadReason>,
    /// The error of the attempt, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The HTTP status or gRPC code of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<u16>,
}

/// Selects events.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only events of this task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(format = "uuid")]
    pub task_id: Option<String>,
}

impl TaskEvent {
    /// An event with a state and nothing else.
    pub fn new(id: JobId, state: JobState, attempt_number: u32, at: Timestamp) -> Self {
        Self {
            task_id: id.to_string(),
            state,
            attempt_number,
            at: at.as_ms(),
            next_attempt_at: None,
            reason: None,
            error: None,
            response_status: None,
        }
    }
}
