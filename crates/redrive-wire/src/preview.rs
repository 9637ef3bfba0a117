//! A preview of the waits of a policy.

use redrive_core::policy::preview::{Preview, Retry, TotalWait};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::millis::ms;

/// The waits before each retry if every call fails at once, and their sums.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPreview {
    /// One for each retry, in order; at most 100.
    pub retries: Vec<RetryPreview>,
    /// The number of further retries, which are not shown.
    pub not_shown: u32,
    /// The sums over the retries shown.
    pub total: Waits,
}

/// The wait before one retry.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryPreview {
    /// The attempt that follows the wait, from 2.
    pub attempt_number: u32,
    /// The shortest wait.
    pub earliest_ms: u64,
    /// The mean wait.
    pub mean_ms: u64,
    /// The longest wait.
    pub latest_ms: u64,
    /// The sums up to here: when the attempt starts.
    pub total: Waits,
}

/// Sums of waits.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Waits {
    /// The sum of the shortest waits.
    pub earliest_ms: u64,
    /// The sum of the mean waits.
    pub mean_ms: u64,
    /// The sum of the longest waits.
    pub latest_ms: u64,
}

impl From<&Preview> for PolicyPreview {
    fn from(preview: &Preview) -> Self {
        Self {
            retries: preview.retries.iter().map(RetryPreview::from).collect(),
            not_shown: preview.not_shown,
            total: preview.total().into(),
        }
    }
}

impl From<&Retry> for RetryPreview {
    fn from(retry: &Retry) -> Self {
        Self {
            attempt_number: retry.attempt,
            earliest_ms: ms(retry.earliest),
            mean_ms: ms(retry.mean),
            latest_ms: ms(retry.latest),
            total: retry.total.into(),
        }
    }
}

impl From<TotalWait> for Waits {
    fn from(total: TotalWait) -> Self {
        Self { earliest_ms: ms(total.earliest), mean_ms: ms(total.mean), latest_ms: ms(total.latest) }
    }
}
