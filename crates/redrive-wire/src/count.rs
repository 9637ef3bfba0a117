//! How many jobs match.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many jobs match a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobCount {
    /// How many.
    pub count: u64,
    /// Whether there may be more: they were too many to be counted for one answer.
    pub at_least: bool,
}
