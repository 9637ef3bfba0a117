//! Schedules.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A schedule of a program that uses the library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleStatus {
    /// Its name.
    pub name: String,
    /// The kind of its jobs.
    pub kind: String,
    /// The queue of its jobs.
    pub queue: String,
    /// The tenant of its jobs; absent for the default tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// When its jobs are due, as text for people.
    pub timing: String,
    /// How missed occurrences are handled.
    pub missed: MissedRuns,
    /// Whether it is paused.
    pub paused: bool,
    /// Occurrences up to this time, in epoch ms, have been enqueued or skipped.
    pub handled_until: i64,
    /// Its next occurrences, in epoch ms, as if it were not paused.
    pub upcoming: Vec<i64>,
}

/// How missed occurrences are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MissedRuns {
    /// They are skipped.
    Skip,
    /// One job is enqueued for all of them.
    Once,
    /// One job is enqueued for each of them.
    All,
}

/// A job that was enqueued on request, in addition to the scheduled ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledRun {
    /// The id of the job.
    #[schema(format = "uuid")]
    pub job_id: String,
}
