//! The service at a glance, and what is wrong now, in words.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The service at a glance. A key that is bound to a tenant sees its own jobs, the newest ones, and what is wrong with them;
/// the numbers of all tenants together are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// The store's time, in epoch ms.
    pub now: i64,
    /// Jobs by state.
    pub jobs: BTreeMap<String, u64>,
    /// How late the job is that has been due for longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_due_ms: Option<u64>,
    /// Attempts a second on all nodes, over the last minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_per_second: Option<AttemptRates>,
    /// How late attempts were started, in the last five minutes.
    pub start_lag: StartLag,
    /// The share of attempts that succeeded, in the last five minutes; absent when there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<f64>,
    /// Queues that are paused; `*` means every queue.
    pub paused_queues: Vec<String>,
    /// What is wrong now, the worst first.
    pub problems: Vec<Trouble>,
}

/// Attempts a second, by how they ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptRates {
    /// Succeeded.
    pub succeeded: f64,
    /// Failed, and followed by another.
    pub retried: f64,
    /// Ended their task as a dead letter.
    pub exhausted: f64,
    /// Ended otherwise, as by a cancel.
    pub other: f64,
}

/// How long after they were due attempts were started; absent when there were none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartLag {
    /// The middle one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<u64>,
    /// The latest in a hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<u64>,
}

/// Something that is wrong now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, as a sentence for people.
    pub text: String,
    /// Where to look at it: `dead`, `jobs`, `queues`, `origins` or `nodes`.
    pub page: String,
    /// How to narrow what is shown there.
    pub query: BTreeMap<String, String>,
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It needs someone.
    Bad,
    /// It may need someone.
    Warn,
}
