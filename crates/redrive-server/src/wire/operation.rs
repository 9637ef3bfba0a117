//! Long operations on many jobs, on the wire.

use redrive_delivery::KIND;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::filter::JobFilter;
use super::job::JobState;
use super::listing::WhyExhausted;

/// Dead letters to drive again.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedriveRequest {
    /// Of this kind: jobs of the library. Tasks, of kind `delivery`, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// In this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Under any version of this policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// With a target, or about something, that begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Exhausted for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<WhyExhausted>,
    /// Exhausted after this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_after: Option<i64>,
    /// Exhausted before this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_before: Option<i64>,
    /// Only count.
    #[serde(default)]
    pub dry_run: bool,
    /// At most this many a second; as fast as the store goes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 100000)]
    pub rate_per_second: Option<f64>,
    /// Drive this many first, and go on only if all of them succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub canary: Option<usize>,
}

/// Dead letters to remove for good.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DiscardRequest {
    /// Of this kind: jobs of the library. Tasks, of kind `delivery`, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// In this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Under any version of this policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// With a target, or about something, that begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Exhausted for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<WhyExhausted>,
    /// Exhausted after this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_after: Option<i64>,
    /// Exhausted before this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_before: Option<i64>,
    /// Only count.
    #[serde(default)]
    pub dry_run: bool,
    /// At most this many a second; as fast as the store goes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 100000)]
    pub rate_per_second: Option<f64>,
}

impl RedriveRequest {
    /// Which dead letters.
    pub fn filter(&self) -> JobFilter {
        JobFilter {
            state: Some(JobState::Dead),
            kind: Some(self.kind.clone().unwrap_or_else(|| KIND.to_owned())),
            queue: self.queue.clone(),
            policy_id: self.policy_id.clone(),
            subject: self.target.clone(),
            reason: self.reason,
            finished_after: self.finished_after,
            finished_before: self.finished_before,
            ..JobFilter::default()
        }
    }
}

impl DiscardRequest {
    /// Which dead letters.
    pub fn filter(&self) -> JobFilter {
        JobFilter {
            state: Some(JobState::Dead),
            kind: Some(self.kind.clone().unwrap_or_else(|| KIND.to_owned())),
            queue: self.queue.clone(),
            policy_id: self.policy_id.clone(),
            subject: self.target.clone(),
            reason: self.reason,
            finished_after: self.finished_after,
            finished_before: self.finished_before,
            ..JobFilter::default()
        }
    }
}

/// What to do to many jobs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"kind": "CANCEL", "filter": {"kind": "delivery", "text": "order-7"}, "dryRun": true}))]
pub struct OperationRequest {
    /// What it does.
    pub kind: OperationKind,
    /// To which jobs: of those in a state that it can be done to.
    #[serde(default)]
    pub filter: JobFilter,
    /// Only count.
    #[serde(default)]
    pub dry_run: bool,
    /// At most this many a second; as fast as the store goes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 100000)]
    pub rate_per_second: Option<f64>,
    /// Begin with this many, and go on only if all of them succeed; for `REDRIVE` and `RUN_NOW`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub canary: Option<usize>,
}

/// How many jobs match.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// How many.
    pub matched: u64,
    /// Whether there may be more: they were too many to be counted in a second.
    pub at_least: bool,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OperationKind {
    /// Drives dead letters again.
    Redrive,
    /// Removes dead letters.
    Discard,
    /// Ends jobs that have not ended, with everything below them.
    Cancel,
    /// Skips the wait of jobs that wait for their time.
    RunNow,
}

/// Where an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OperationState {
    /// It goes on, on some node.
    Running,
    /// It went through all that matched.
    Done,
    /// One of the first did not succeed, so the rest was left alone.
    CanaryFailed,
    /// Someone stopped it.
    Stopped,
}

/// A long operation.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Its identity.
    #[schema(format = "uuid")]
    pub operation_id: String,
    /// What it does.
    pub kind: OperationKind,
    /// Where it is.
    pub state: OperationState,
    /// Which jobs it is about.
    pub filter: JobFilter,
    /// How many matched when it began; absent until they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<u64>,
    /// How many it has driven, removed, cancelled or made due.
    pub done: u64,
    /// How many it could not: they had changed meanwhile.
    pub failed: u64,
    /// At most this many a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    /// How many go first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<usize>,
    /// When it began, in epoch ms: only what was there by then, or dead by then, is touched.
    pub created_at: i64,
    /// When it ended, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<i64>,
}
