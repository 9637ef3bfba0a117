//! Why a task or job is not running now.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use super::status::Status;

/// Why a task is not running now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The task.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// Where it is in its life.
    pub status: Status,
    /// What holds it.
    #[serde(flatten)]
    pub hold: Holding,
}

/// Why a job is not running now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobWhy {
    /// The job.
    #[schema(format = "uuid")]
    pub job_id: String,
    /// Where it is in its life.
    pub state: JobState,
    /// What holds it.
    #[serde(flatten)]
    pub hold: Holding,
}

/// What holds a task or job.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holding {
    /// What it is.
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

impl Holding {
    /// One of which only the words are known.
    pub fn new(because: Because, detail: impl Into<String>) -> Self {
        Self { because, detail: detail.into(), until: None, worker: None, origin: None }
    }
}

/// What sort of thing holds a task or job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// As much of its queue runs as the queue's quota allows.
    QuotaReached,
    /// Someone has paused it.
    Held,
    /// It waits for a signal.
    AwaitsSignal,
    /// It waits for its children.
    AwaitsChildren,
    /// It waits for whichever of several things comes first.
    AwaitsAny,
    /// It waits for its turn among jobs that share bounds or an order.
    AwaitsTurn,
    /// It is running: a worker has it.
    Leased,
    /// It has ended.
    Ended,
}
