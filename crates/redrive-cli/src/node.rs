//! `redrive node`: who works on the store, and what they hold.

use redrive_server::wire::node::Node;

use crate::call::Reach;
use crate::exit::Exit;
use crate::list::{self, Columns};
use crate::table::Cell;

/// What to do with nodes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List services and workers with the leases they hold
    List,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let Verb::List = arguments.verb;
    list::show_whole(&arguments.reach, &["nodes"], &COLUMNS).await
}

const COLUMNS: Columns<Node> = Columns {
    heads: &["NODE", "WHAT", "VERSION", "STARTED", "SEEN", "LEASES", "OLDEST", "KINDS", "PROBLEM"],
    spare: &["VERSION", "STARTED", "OLDEST"],
    row: |node, look| {
        vec![
            Cell::whole(&node.name),
            Cell::text(if node.service { "service" } else { "worker" }),
            Cell::maybe(node.version.as_deref()),
            Cell::age(node.started_at, look),
            Cell::age(node.seen_at, look),
            Cell::number(node.leases),
            Cell::age(node.oldest_lease_at, look),
            Cell::text(if node.kinds.is_empty() { "-".to_owned() } else { node.kinds.join(", ") }),
            Cell::maybe(node.problem.as_deref()),
        ]
    },
    none: "nobody works on this store",
};
