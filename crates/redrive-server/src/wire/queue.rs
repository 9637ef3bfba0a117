//! Queues on the wire.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// A queue.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Its name.
    pub name: String,
    /// Whether nothing is claimed from it.
    pub paused: bool,
    /// Jobs by state.
    pub jobs: BTreeMap<&'static str, u64>,
}

/// Every queue.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Queues {
    /// The queues, by name.
    pub items: Vec<QueueStatus>,
    /// Whether every queue is paused.
    pub all_paused: bool,
}
