//! Who works on the store: signs of life of the service's nodes, and the holders of leases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redrive_core::records::{Change, Expect, Record};
use redrive_core::store::{Filter, PageRequest};
use redrive_core::{State, StoreError, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::api::Api;
use crate::node_problem::NodeProblem;
use crate::walk::{Walked, walk};
use crate::wire::filter::Wanted;
use crate::wire::node::{Node, Nodes};
use crate::wire::policy::ms;

/// The record kind of signs of life; the id is the node's name.
const KIND: &str = "node";
/// Nodes that are read.
const NODES_MAX: usize = 500;
/// Running jobs that are looked at.
const RUNNING_MAX: usize = 5_000;
/// Closed gates that a node tells of.
const CLOSED_MAX: usize = 20;
/// How long a node that is gone is shown.
const SHOWN: Duration = Duration::from_secs(2 * 24 * 60 * 60);

/// A sign of life.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Beat {
    pub(crate) version: String,
    pub(crate) started_at: i64,
    pub(crate) seen_at: i64,
    /// Gates that are closed there.
    #[serde(default)]
    pub(crate) closed: Vec<ClosedGate>,
    /// What keeps it from making attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<NodeProblem>,
}

/// A gate that is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClosedGate {
    pub(crate) origin: String,
    pub(crate) for_ms: u64,
}

impl Api {
    /// Gives a sign of life.
    pub(crate) async fn beat(&self, now: Timestamp) -> Result<(), StoreError> {
        let beat = Beat {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at.as_ms(),
            seen_at: now.as_ms(),
            closed: self.closed_gates(),
            problem: self.node_problem.get(),
        };
        let value =
            serde_json::to_vec(&beat).unwrap_or_else(|e| unreachable!("plain data becomes JSON: {e}"));
        self.write_node(self.node.as_str(), Expect::Any, Some(value)).await
    }

    /// Says that this node has ended in good order.
    pub(crate) async fn leave(&self) -> Result<(), StoreError> {
        self.write_node(self.node.as_str(), Expect::Any, None).await
    }

    /// Forgets nodes that have been gone for long.
    pub(crate) async fn prune_nodes(&self, now: Timestamp) -> Result<(), StoreError> {
        for record in self.store.scan(KIND, None, NODES_MAX).await? {
            let seen = decode(&record).map_or(0, |beat| beat.seen_at);
            if now.since(Timestamp::from_ms(seen)) > SHOWN {
                self.write_node(&record.id, Expect::Version(record.version), None).await?;
            }
        }
        Ok(())
    }

    /// Gates that are closed on this node.
    pub(crate) fn closed_gates(&self) -> Vec<ClosedGate> {
        let gates = self.parts.gates.status(Instant::now()).into_iter();
        let closed = gates.filter_map(|gate| gate.closed_for.map(|span| (gate.origin, ms(span))));
        closed.map(|(origin, for_ms)| ClosedGate { origin, for_ms }).take(CLOSED_MAX).collect()
    }

    /// The last sign of life of each node of the service, by name.
    pub(crate) async fn beats(&self) -> Result<BTreeMap<String, Beat>, StoreError> {
        let records = self.store.scan(KIND, None, NODES_MAX).await?;
        Ok(records.iter().filter_map(|record| Some((record.id.clone(), decode(record)?))).collect())
    }

    /// Who works on the store, as far as can be seen in time.
    pub(crate) async fn nodes(&self, patience: Duration) -> Result<Nodes, StoreError> {
        let mut nodes: BTreeMap<String, Node> =
            self.beats().await?.into_iter().map(|(name, beat)| (name.clone(), alive(name, beat))).collect();
        // What this node knows of itself is newer than its last sign of life.
        if let Some(this) = nodes.get_mut(self.node.as_str()) {
            this.show_problem(self.node_problem.get());
        }
        let wanted =
            Wanted { filter: Filter { states: vec![State::Running], ..Filter::default() }, text: None };
        let running = walk(&*self.store, &wanted, PageRequest::first(RUNNING_MAX), patience).await?;
        add_leases(&mut nodes, &running);
        let looked_at = running.items.len() as u64;
        Ok(Nodes { items: nodes.into_values().collect(), looked_at, complete: running.next.is_none() })
    }

    async fn write_node(&self, name: &str, expect: Expect, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        let change = Change { kind: KIND.to_owned(), id: name.to_owned(), expect, value };
        self.store.write(change).await.map(drop)
    }
}

fn add_leases(nodes: &mut BTreeMap<String, Node>, running: &Walked) {
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

fn alive(name: String, beat: Beat) -> Node {
    let mut node = Node {
        name,
        service: true,
        version: Some(beat.version),
        started_at: Some(beat.started_at),
        seen_at: Some(beat.seen_at),
        leases: 0,
        oldest_lease_at: None,
        kinds: Vec::new(),
        problem: None,
        problem_since: None,
    };
    node.show_problem(beat.problem);
    node
}

impl Node {
    fn show_problem(&mut self, problem: Option<NodeProblem>) {
        (self.problem, self.problem_since) = problem.map(|problem| (problem.text, problem.since)).unzip();
    }
}

/// What a later version writes may not be readable: such a node is not shown.
fn decode(record: &Record) -> Option<Beat> {
    serde_json::from_slice(&record.value).ok()
}
