//! A change of a task's state, as `GET /events` tells of it.

use redrive_core::{JobId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::status::Status;

/// What happened to a task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskEvent {
    /// The task.
    pub task_id: String,
    /// Its new status.
    pub status: Status,
    /// Attempts so far.
    pub attempt_number: u32,
    /// When, in epoch ms.
    pub at: i64,
    /// When the next attempt is due, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<i64>,
    /// Why it is exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// With which status or code the target answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<u16>,
}

/// Which events to hear of.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only those of this task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(format = "uuid")]
    pub task_id: Option<String>,
}

impl TaskEvent {
    /// One that says no more than where a task is.
    pub fn new(id: JobId, status: Status, attempt_number: u32, at: Timestamp) -> Self {
        Self {
            task_id: id.to_string(),
            status,
            attempt_number,
            at: at.as_ms(),
            next_attempt_at: None,
            reason: None,
            error: None,
            response_status: None,
        }
    }
}
