//! What another policy would have made of the failures of late.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::policy::RetryPolicy;

/// Which policy to try, on whose failures.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"policy": {"maxAttempts": 5, "initialDelayMs": 500}, "policyId": "payments", "days": 7}))]
pub struct ReplayRequest {
    /// The policy to try.
    pub policy: RetryPolicy,
    /// Only tasks under any version of this policy; all tasks when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// How far back; 7 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 30)]
    pub days: Option<u32>,
}

/// What became of tasks that needed more than one attempt, and what would have become of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// How many tasks were looked at.
    pub looked_at: u64,
    /// Whether those were all.
    pub complete: bool,
    /// How many of them needed more than one attempt: those that are compared.
    pub tasks: u64,
    /// What became of them.
    pub actual: Courses,
    /// What would have become of them: a target works from the instant at which it really answered, or never.
    pub replayed: Courses,
}

/// What became of tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Courses {
    /// Attempts in all.
    pub attempts: u64,
    /// How many were exhausted.
    pub exhausted: u64,
    /// How many succeeded.
    pub succeeded: u64,
    /// How long it took until they succeeded, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ms_to_success: Option<u64>,
}
