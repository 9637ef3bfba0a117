//! Dead letters in groups, by reason and target.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::page::Paged;
use super::state::DeadReason;

/// A page of the groups of dead letters. The group with the newest dead letter comes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterGroups {
    /// The groups.
    pub items: Vec<DeadLetterGroup>,
    /// Send it as `cursor` to get the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// The number of dead letters that were examined: the newest of each reason.
    pub examined: u64,
    /// Whether all matching dead letters were examined.
    pub complete: bool,
}

impl DeadLetterGroups {
    /// A page without groups, for a filter that no dead letter matches.
    pub fn none() -> Self {
        Self { items: Vec::new(), next_cursor: None, examined: 0, complete: true }
    }
}

impl Paged for DeadLetterGroups {
    fn next_cursor(&self) -> Option<&str> {
        self.next_cursor.as_deref()
    }

    fn append(&mut self, next: Self) {
        self.items.extend(next.items);
        self.next_cursor = next.next_cursor;
    }
}

/// Dead letters with the same reason and target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterGroup {
    /// Why they are dead.
    pub reason: DeadReason,
    /// Their kind. Tasks have the kind `delivery`.
    pub kind: String,
    /// Scheme and host of the target of a task; for other jobs their target, or their kind.
    pub target: String,
    /// The number of examined dead letters in the group.
    pub count: u64,
    /// Whether there may be more among the dead letters that were not examined.
    pub at_least: bool,
    /// When the last of them died, in epoch ms.
    pub newest_at: i64,
    /// When the first of them died, in epoch ms.
    pub oldest_at: i64,
    /// The one that died last.
    pub example: GroupExample,
}

/// One dead letter of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupExample {
    /// The id of the job.
    #[schema(format = "uuid")]
    pub job_id: String,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it died, in epoch ms.
    pub finished_at: i64,
}
