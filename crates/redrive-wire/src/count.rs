//! The number of jobs that match a filter.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The number of jobs that match a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobCount {
    /// The number of jobs that were counted.
    pub count: u64,
    /// Whether `count` may be too low, because counting stopped after 100 ms.
    pub at_least: bool,
}
