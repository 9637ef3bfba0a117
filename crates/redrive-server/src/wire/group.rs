//! Dead letters in groups, by why they died and where they were going.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::listing::WhyExhausted;

/// Dead letters in groups, the largest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterGroups {
    /// The groups.
    pub items: Vec<DeadLetterGroup>,
    /// How many dead letters are in them: the newest of each reason.
    pub looked_at: u64,
    /// Whether those were all.
    pub complete: bool,
}

/// Dead letters that died for the same reason on the way to the same place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterGroup {
    /// Why they died.
    pub reason: WhyExhausted,
    /// Their kind; tasks are of kind `delivery`.
    pub kind: String,
    /// Where they were going: scheme and host of a delivery, as its target begins; else what they are about, or their kind.
    pub target: String,
    /// How many.
    pub count: u64,
    /// Whether there may be more, among those that were not looked at.
    pub at_least: bool,
    /// When the last of them died, in epoch ms.
    pub newest_at: i64,
    /// When the first of them died, in epoch ms.
    pub oldest_at: i64,
    /// The one that died last.
    pub example: GroupExample,
}

/// One of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupExample {
    /// The job.
    #[schema(format = "uuid")]
    pub job_id: String,
    /// What last went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it died, in epoch ms.
    pub finished_at: i64,
}
