//! A comparison of two policies on recent failures.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::policy::RetryPolicy;

/// The policy to try, and the tasks to try it on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"policy": {"maxAttempts": 5, "initialDelayMs": 500}, "policyId": "payments", "days": 7}))]
pub struct ReplayRequest {
    /// The policy to try.
    pub policy: RetryPolicy,
    /// Only tasks under any version of this policy; all tasks when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// How many days back a task may have ended; 7 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 30)]
    pub days: Option<u32>,
}

/// The results of tasks that needed more than one attempt, under their own policy and under the tried one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// The number of tasks that were examined.
    pub examined: u64,
    /// Whether all tasks of this time were examined.
    pub complete: bool,
    /// The number of tasks that needed more than one attempt; these are compared.
    pub tasks: u64,
    /// The actual results.
    pub actual: ReplayTotals,
    /// The results under the tried policy, on the assumption that each target works from the time of its
    /// actual success.
    pub replayed: ReplayTotals,
}

/// Totals over the tasks that are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayTotals {
    /// The number of attempts.
    pub attempts: u64,
    /// The number of dead tasks.
    pub dead: u64,
    /// The number of tasks that succeeded.
    pub succeeded: u64,
    /// The mean time until success; absent if no task succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ms_to_success: Option<u64>,
}
