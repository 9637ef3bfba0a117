//! Nodes and their leases.

use askama::Template;
use redrive_wire::node::{Node, Nodes};

use super::Answer;
use crate::context::PageContext;
use crate::layout::{Layout, render};
use crate::text::{self, RelativeTime, now_ms};

/// Nodes report twice a minute. A node that has not reported for longer has probably stopped.
const SEEN_WITHIN_MS: i64 = 90_000;

#[derive(Template)]
#[template(path = "nodes.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
    examined: String,
    complete: bool,
}

struct Row {
    name: String,
    service: bool,
    version: String,
    started: Option<RelativeTime>,
    seen: Option<RelativeTime>,
    late: bool,
    leases: String,
    oldest: Option<RelativeTime>,
    kinds: String,
    problem: Option<String>,
}

/// `GET /console/nodes`.
pub(super) async fn list(context: PageContext) -> Answer {
    let nodes: Nodes = context.api.get_all("/nodes").await?;
    let now = now_ms();
    render(&Page {
        layout: context.layout("Nodes", "nodes"),
        rows: nodes.items.iter().map(|node| Row::of(node, now)).collect(),
        examined: text::count(nodes.examined),
        complete: nodes.complete,
    })
}

impl Row {
    fn of(node: &Node, now: i64) -> Self {
        Self {
            name: node.name.clone(),
            service: node.service,
            version: node.version.clone().unwrap_or_default(),
            started: node.started_at.map(|at| RelativeTime::new(at, now)),
            seen: node.seen_at.map(|at| RelativeTime::new(at, now)),
            late: node.seen_at.is_some_and(|at| now - at > SEEN_WITHIN_MS),
            leases: text::count(node.leases),
            oldest: node.oldest_lease_at.map(|at| RelativeTime::new(at, now)),
            kinds: node.kinds.join(", "),
            problem: node.problem.clone(),
        }
    }
}
