//! Why a task is not running now.

use serde::Serialize;
use utoipa::ToSchema;

use super::status::Status;

/// Why a task is not running now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The task.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// Where it is in its life.
    pub status: Status,
    /// What holds it.
    pub because: Because,
    /// The same in words.
    pub detail: String,
    /// Until when, in epoch ms, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The worker that has or had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The origin whose gate holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// What holds a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Because {
    /// Its time has not come.
    Waiting,
    /// It is due; a worker takes it as soon as it has room.
    Due,
    /// The gate of its origin holds calls back, as seen from this node.
    GateHolds,
    /// Its queue is paused.
    QueuePaused,
    /// It is running: a worker has it.
    Leased,
    /// It has ended.
    Ended,
}
