//! Who works on the store, on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who works on the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// The nodes, by name.
    pub items: Vec<Node>,
    /// How many running jobs were looked at.
    pub looked_at: u64,
    /// Whether those were all that run.
    pub complete: bool,
}

/// A node of the service, or a worker of a program that uses the library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name, which is on its leases.
    pub name: String,
    /// Whether it is a node of the service.
    pub service: bool,
    /// The version of the service it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When it was started, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    /// When it last gave a sign of life, in epoch ms; a node of the service does so twice a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<i64>,
    /// How many of the jobs that were looked at it has.
    pub leases: u64,
    /// Since when it has the one it has had for longest, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_lease_at: Option<i64>,
    /// The kinds of the jobs it has.
    pub kinds: Vec<String>,
    /// What keeps it from making attempts: it claims nothing while it has such a problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Since when it has that problem, in epoch ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem_since: Option<i64>,
}
