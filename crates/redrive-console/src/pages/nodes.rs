//! Nodes: who works, and which leases they hold.

use askama::Template;
use redrive_server::wire::node::{Node, Nodes};

use super::Answer;
use crate::frame::{Frame, render};
use crate::visitor::Visitor;
use crate::words::{self, Moment, now_ms};

/// A node that has not been seen for so long is likely gone: it gives a sign of life twice a minute.
const SEEN_WITHIN_MS: i64 = 90_000;

#[derive(Template)]
#[template(path = "nodes.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    looked_at: String,
    complete: bool,
}

struct Row {
    name: String,
    service: bool,
    version: String,
    started: Option<Moment>,
    seen: Option<Moment>,
    late: bool,
    leases: String,
    oldest: Option<Moment>,
    kinds: String,
    problem: Option<String>,
}

/// `GET /console/nodes`.
pub(super) async fn list(visitor: Visitor) -> Answer {
    let nodes: Nodes = visitor.api.get("/nodes").await?;
    let now = now_ms();
    render(&Page {
        frame: visitor.frame("Nodes", "nodes"),
        rows: nodes.items.iter().map(|node| Row::of(node, now)).collect(),
        looked_at: words::count(nodes.looked_at),
        complete: nodes.complete,
    })
}

impl Row {
    fn of(node: &Node, now: i64) -> Self {
        Self {
            name: node.name.clone(),
            service: node.service,
            version: node.version.clone().unwrap_or_default(),
            started: node.started_at.map(|at| Moment::seen(at, now)),
            seen: node.seen_at.map(|at| Moment::seen(at, now)),
            late: node.seen_at.is_some_and(|at| now - at > SEEN_WITHIN_MS),
            leases: words::count(node.leases),
            oldest: node.oldest_lease_at.map(|at| Moment::seen(at, now)),
            kinds: node.kinds.join(", "),
            problem: node.problem.clone(),
        }
    }
}
