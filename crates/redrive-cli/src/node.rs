//! `redrive node`: the nodes of a store.

use redrive_wire::node::Node;

use crate::client::ServiceOptions;
use crate::exit::ExitStatus;
use crate::output::list::{self, Columns};
use crate::output::table::Cell;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: NodeCommand,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum NodeCommand {
    /// List nodes with the number of their leases
    List,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let NodeCommand::List = arguments.command;
    list::show_all(&arguments.options, &["nodes"], &COLUMNS).await
}

const COLUMNS: Columns<Node> = Columns {
    headers: &["NODE", "ROLE", "VERSION", "STARTED", "SEEN", "LEASES", "OLDEST", "KINDS", "PROBLEM"],
    optional: &["VERSION", "STARTED", "OLDEST"],
    row: |node, style| {
        vec![
            Cell::id(&node.name),
            Cell::text(if node.service { "service" } else { "worker" }),
            Cell::optional(node.version.as_deref()),
            Cell::age(node.started_at, style),
            Cell::age(node.seen_at, style),
            Cell::number(node.leases),
            Cell::age(node.oldest_lease_at, style),
            Cell::text(if node.kinds.is_empty() { "-".to_owned() } else { node.kinds.join(", ") }),
            Cell::optional(node.problem.as_deref()),
        ]
    },
    empty: "there are no nodes",
};
