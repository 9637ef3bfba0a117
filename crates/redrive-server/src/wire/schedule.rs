//! Schedules on the wire.

use redrive::{Missed, Scheduled};
use redrive_core::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Occurrences of a schedule that are shown.
const UPCOMING: usize = 5;

/// Every schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedules {
    /// The schedules, by name.
    pub items: Vec<ScheduleStatus>,
}

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
    /// Whose its jobs are; absent for the default tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// When its jobs are due, as a person reads it.
    pub timing: String,
    /// What is done about occurrences that were missed.
    pub missed: MissedRuns,
    /// Whether it stands still.
    pub paused: bool,
    /// Everything that was due until then, in epoch ms, is settled.
    pub settled_until: i64,
    /// Its next occurrences, in epoch ms, as if it were not paused.
    pub upcoming: Vec<i64>,
}

/// What is done about occurrences that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MissedRuns {
    /// They are left out.
    Skip,
    /// One run for all of them.
    Once,
    /// One run for each.
    All,
}

/// A job that was enqueued out of turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledRun {
    /// The job.
    #[schema(format = "uuid")]
    pub job_id: String,
}

impl ScheduleStatus {
    /// A schedule as it is, with what comes after `now`.
    pub fn show(scheduled: Scheduled, now: Timestamp) -> Self {
        let upcoming = scheduled.schedule.upcoming(now.max(scheduled.settled_until), UPCOMING);
        Self {
            name: scheduled.name,
            kind: scheduled.kind.to_string(),
            queue: scheduled.queue.to_string(),
            tenant: Some(scheduled.tenant.to_string()).filter(|tenant| !tenant.is_empty()),
            timing: scheduled.schedule.to_string(),
            missed: match scheduled.missed {
                Missed::Skip => MissedRuns::Skip,
                Missed::Once => MissedRuns::Once,
                Missed::All => MissedRuns::All,
            },
            paused: scheduled.paused,
            settled_until: scheduled.settled_until.as_ms(),
            upcoming: upcoming.into_iter().map(Timestamp::as_ms).collect(),
        }
    }
}
