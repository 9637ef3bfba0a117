//! `redrive dead groups`: dead letters by what they have in common.

use redrive_server::wire::group::DeadLetterGroup;

use crate::call::Reach;
use crate::exit::Exit;
use crate::list::{self, Columns};
use crate::table::{Cell, word};

pub(super) async fn run(reach: &Reach) -> anyhow::Result<Exit> {
    list::show_whole(reach, &[super::DEAD, "groups"], &COLUMNS).await
}

const COLUMNS: Columns<DeadLetterGroup> = Columns {
    heads: &["COUNT", "REASON", "KIND", "TARGET", "NEWEST", "OLDEST", "EXAMPLE", "ERROR"],
    spare: &["KIND", "OLDEST", "NEWEST"],
    row: |group, look| {
        vec![
            Cell::text(format!("{}{}", group.count, if group.at_least { "+" } else { "" })),
            Cell::text(word(&group.reason)),
            Cell::text(&group.kind),
            Cell::text(&group.target),
            Cell::age(Some(group.newest_at), look),
            Cell::age(Some(group.oldest_at), look),
            Cell::whole(&group.example.job_id),
            Cell::maybe(group.example.error.as_deref()),
        ]
    },
    none: "there are no dead letters",
};
