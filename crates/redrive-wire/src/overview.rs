//! The current state of the service and its problems.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The current state of the service. A key that is bound to a tenant sees counts and problems of the newest jobs of that
/// tenant; numbers of all tenants together are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// The store's time, in epoch ms.
    pub now: i64,
    /// Jobs by state.
    pub jobs: BTreeMap<String, u64>,
    /// How long the oldest due job has been due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_due_ms: Option<u64>,
    /// Attempts per second on all nodes, over the last minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_per_second: Option<AttemptRates>,
    /// The time from due to started, in the last five minutes.
    pub start_lag: StartLag,
    /// The share of attempts that succeeded, in the last five minutes; absent when there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<f64>,
    /// Queues that are paused; `*` means every queue.
    pub paused_queues: Vec<String>,
    /// Current problems, the worst first.
    pub problems: Vec<CurrentProblem>,
}

/// Attempts per second, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptRates {
    /// Succeeded.
    pub succeeded: f64,
    /// Failed and retried.
    pub retried: f64,
    /// Failed for good: the job is dead.
    pub dead: f64,
    /// Another outcome, such as a cancel.
    pub other: f64,
}

/// The time from due to started. Both fields are absent if there were no attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartLag {
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<u64>,
    /// The 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<u64>,
}

/// A current problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentProblem {
    /// How serious it is.
    pub severity: ProblemSeverity,
    /// A sentence for people.
    pub text: String,
    /// The page of the console that shows it: `dead`, `jobs`, `queues`, `origins` or `nodes`.
    pub page: String,
    /// The filter of that page.
    pub query: BTreeMap<String, String>,
}

/// How serious a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProblemSeverity {
    /// Someone has to act.
    Bad,
    /// Someone may have to act.
    Warn,
}
