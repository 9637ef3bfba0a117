//! The problem that keeps this node from making attempts, while it has one.

use std::sync::{Mutex, PoisonError};

use redrive_core::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// A problem of a node, as its sign of life tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeProblem {
    pub(crate) text: String,
    /// Since when, in epoch ms.
    pub(crate) since: i64,
}

/// The current problem of this node.
#[derive(Default)]
pub(crate) struct CurrentProblem {
    problem: Mutex<Option<NodeProblem>>,
    changed: Notify,
}

impl CurrentProblem {
    pub(crate) fn get(&self) -> Option<NodeProblem> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a problem, or its end. A problem that changes keeps the time at which it began.
    pub(crate) fn set(&self, text: Option<&str>, now: Timestamp) {
        let mut problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        let since = problem.as_ref().map_or(now.as_ms(), |problem| problem.since);
        *problem = text.map(|text| NodeProblem { text: text.to_owned(), since });
        self.changed.notify_one();
    }

    /// Waits for the next change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
