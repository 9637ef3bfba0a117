//! The nodes that work on the store: the nodes of the service by their heartbeats, other workers by their leases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redrive_core::records::RecordValue;
use redrive_core::store::{Filter, PageRequest};
use redrive_core::{Records, State, StoreError, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::api::Api;
use crate::job_search::{SearchResult, search_jobs};
use crate::node_monitor::NodeProblem;
use crate::selection::JobSelection;
use redrive_wire::millis::ms;
use redrive_wire::node::{Node, Nodes};

/// The maximum number of running jobs that a list of nodes examines.
const RUNNING_MAX: usize = 5_000;
/// The maximum number of blocked gates in a heartbeat.
const BLOCKED_MAX: usize = 20;
/// How long a node is shown after its last heartbeat.
const HEARTBEAT_RETENTION: Duration = Duration::from_secs(2 * 24 * 60 * 60);

/// The last heartbeat of a node; the id of the record is the node's name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeHeartbeat {
    pub(crate) version: String,
    pub(crate) started_at: i64,
    pub(crate) seen_at: i64,
    /// Gates that are blocked there.
    #[serde(default, rename = "closed")]
    pub(crate) blocked: Vec<BlockedGate>,
    /// The problem that keeps the node from making attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<NodeProblem>,
}

/// A blocked gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlockedGate {
    pub(crate) origin: String,
    pub(crate) for_ms: u64,
}

impl RecordValue for NodeHeartbeat {
    const KIND: &'static str = "node";

    fn expires_at(&self) -> Option<Timestamp> {
        Some(Timestamp::from_ms(self.seen_at).after(HEARTBEAT_RETENTION))
    }
}

impl Api {
    /// Writes the heartbeat of this node.
    pub(crate) async fn write_heartbeat(&self, now: Timestamp) -> Result<(), StoreError> {
        let heartbeat = NodeHeartbeat {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at.as_ms(),
            seen_at: now.as_ms(),
            blocked: self.blocked_gates(),
            problem: self.node_problem.get(),
        };
        self.heartbeats().put(self.node.as_str(), &heartbeat).await.map(drop)
    }

    /// Removes the heartbeat of this node, at an orderly shutdown.
    pub(crate) async fn remove_heartbeat(&self) -> Result<(), StoreError> {
        self.heartbeats().remove(self.node.as_str()).await
    }

    /// Removes heartbeats that are older than [`HEARTBEAT_RETENTION`].
    pub(crate) async fn prune_nodes(&self, now: Timestamp) -> Result<(), StoreError> {
        self.heartbeats().remove_expired(now).await.map(drop)
    }

    /// The gates that are blocked on this node.
    pub(crate) fn blocked_gates(&self) -> Vec<BlockedGate> {
        let gates = self.parts.gates.status(Instant::now()).into_iter();
        let blocked = gates.filter_map(|gate| gate.blocked_for.map(|duration| (gate.origin, ms(duration))));
        blocked.map(|(origin, for_ms)| BlockedGate { origin, for_ms }).take(BLOCKED_MAX).collect()
    }

    /// The last heartbeat of each node of the service, by name.
    pub(crate) async fn last_heartbeats(&self) -> Result<BTreeMap<String, NodeHeartbeat>, StoreError> {
        let heartbeats = self.heartbeats().all("").await?;
        Ok(heartbeats.into_iter().map(|record| (record.id, record.value)).collect())
    }

    /// The nodes that work on the store. The search for leases ends after `time_limit`.
    pub(crate) async fn nodes(&self, time_limit: Duration) -> Result<Nodes, StoreError> {
        let heartbeats = self.last_heartbeats().await?.into_iter();
        let mut nodes: BTreeMap<String, Node> =
            heartbeats.map(|(name, heartbeat)| (name.clone(), service_node(name, heartbeat))).collect();
        // This node's own problem may be newer than its last heartbeat.
        if let Some(this) = nodes.get_mut(self.node.as_str()) {
            show_problem(this, self.node_problem.get());
        }
        let selection =
            JobSelection::from_store_filter(Filter { states: vec![State::Running], ..Filter::default() });
        let running =
            search_jobs(&*self.store, &selection, PageRequest::first(RUNNING_MAX), time_limit).await?;
        add_leases(&mut nodes, &running);
        let examined = running.items.len() as u64;
        let (items, complete) = (nodes.into_values().collect(), running.next.is_none());
        Ok(Nodes { items, next_cursor: None, examined, complete })
    }

    fn heartbeats(&self) -> Records<'_, NodeHeartbeat> {
        Records::new(&*self.store)
    }
}

fn add_leases(nodes: &mut BTreeMap<String, Node>, running: &SearchResult) {
    let mut kinds: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for job in &running.items {
        let Some(worker) = &job.worker else { continue };
        let node = nodes.entry(worker.to_string()).or_insert_with(|| Node {
            name: worker.to_string(),
            service: false,
            version: None,
            started_at: None,
            seen_at: None,
            leases: 0,
            oldest_lease_at: None,
            kinds: Vec::new(),
            problem: None,
            problem_since: None,
        });
        node.leases += 1;
        let since = job.started_at.map(|at| at.as_ms());
        node.oldest_lease_at = [node.oldest_lease_at, since].into_iter().flatten().min();
        kinds.entry(worker.as_str()).or_default().insert(job.kind.as_str());
    }
    for (name, kinds) in kinds {
        if let Some(node) = nodes.get_mut(name) {
            node.kinds = kinds.into_iter().map(str::to_owned).collect();
        }
    }
}

fn service_node(name: String, heartbeat: NodeHeartbeat) -> Node {
    let mut node = Node {
        name,
        service: true,
        version: Some(heartbeat.version),
        started_at: Some(heartbeat.started_at),
        seen_at: Some(heartbeat.seen_at),
        leases: 0,
        oldest_lease_at: None,
        kinds: Vec::new(),
        problem: None,
        problem_since: None,
    };
    show_problem(&mut node, heartbeat.problem);
    node
}

fn show_problem(node: &mut Node, problem: Option<NodeProblem>) {
    (node.problem, node.problem_since) = problem.map(|problem| (problem.text, problem.since)).unzip();
}
