//! Nodes and workers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::page::Paged;

/// A page of the nodes and workers of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// The nodes, by name.
    pub items: Vec<Node>,
    /// Send it as `cursor` to get the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// The number of running jobs that were examined.
    pub examined: u64,
    /// Whether all running jobs were examined.
    pub complete: bool,
}

impl Paged for Nodes {
    fn next_cursor(&self) -> Option<&str> {
        self.next_cursor.as_deref()
    }

    fn append(&mut self, next: Self) {
        self.items.extend(next.items);
        self.next_cursor = next.next_cursor;
    }
}

/// A node of the service, or a worker of a program that uses the library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name, as in the leases that it holds.
    pub name: String,
    /// Whether it is a node of the service.
    pub service: bool,
    /// The version of the service that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When it was started, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    /// When it was last seen, in epoch ms. A node of the service reports twice a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<i64>,
    /// The number of leases that it holds, among the examined jobs.
    pub leases: u64,
    /// When the oldest of its leases started, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_lease_at: Option<i64>,
    /// The kinds of the jobs that it holds.
    pub kinds: Vec<String>,
    /// The problem that keeps it from claiming jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When the problem started, in epoch ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem_since: Option<i64>,
}
