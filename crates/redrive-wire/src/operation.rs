//! Operations: actions on every job that matches a filter.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::filter::JobFilter;

/// A request to start an operation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"kind": "cancel", "filter": {"kind": "delivery", "text": "order-7"}, "dryRun": true}))]
pub struct OperationRequest {
    /// The action.
    pub kind: OperationKind,
    /// Selects the jobs, among those in a state that the action applies to.
    #[serde(default)]
    pub filter: JobFilter,
    /// Count the jobs that match, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The most jobs per second; unlimited when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 100000)]
    pub rate_per_second: Option<f64>,
    /// Start with this many jobs, and continue only if all of them succeed; for `redrive` and `run_now`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub canary: Option<usize>,
}

/// The result of a dry run.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// The number of matching jobs that were counted.
    pub matched: u64,
    /// Whether `matched` may be too low, because counting stopped after a second.
    pub at_least: bool,
}

/// The actions of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Gives dead jobs a new run.
    #[serde(alias = "REDRIVE")]
    Redrive,
    /// Removes dead jobs.
    #[serde(alias = "DISCARD")]
    Discard,
    /// Ends jobs that have not ended, and their children.
    #[serde(alias = "CANCEL")]
    Cancel,
    /// Makes jobs that wait for their time due at once.
    #[serde(alias = "RUN_NOW")]
    RunNow,
}

/// The states of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// A node works on it.
    #[serde(alias = "RUNNING")]
    Running,
    /// Every job that matched was handled.
    #[serde(alias = "DONE")]
    Done,
    /// A canary did not succeed, so the other jobs were left unchanged.
    #[serde(alias = "CANARY_FAILED")]
    CanaryFailed,
    /// Someone cancelled it.
    #[serde(alias = "STOPPED")]
    Cancelled,
}

/// An operation.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Its id.
    #[schema(format = "uuid")]
    pub operation_id: String,
    /// The action.
    pub kind: OperationKind,
    /// Its state.
    pub state: OperationState,
    /// Selects the jobs.
    pub filter: JobFilter,
    /// The number of jobs that matched when it started; absent until they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<u64>,
    /// The number of jobs that it has changed.
    pub done: u64,
    /// The number of jobs that it could not change, because they had changed in the meantime.
    pub failed: u64,
    /// The most jobs per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    /// The number of jobs that must succeed before the others are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<usize>,
    /// When it started, in epoch ms. It changes only jobs that existed, or were dead, at that time.
    pub created_at: i64,
    /// When it ended, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<i64>,
}
