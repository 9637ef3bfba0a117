//! `redrive dead groups`: dead letters by what they have in common.

use crate::answers::Group;
use crate::call::Reach;
use crate::exit::Exit;
use crate::list::{self, Columns};
use crate::table::Cell;

pub(super) async fn run(reach: &Reach) -> anyhow::Result<Exit> {
    list::show_whole(reach, &[super::DEAD, "groups"], &COLUMNS).await
}

const COLUMNS: Columns<Group> = Columns {
    heads: &["COUNT", "REASON", "KIND", "TARGET", "NEWEST", "OLDEST", "EXAMPLE", "ERROR"],
    spare: &["KIND", "OLDEST"],
    row: |group, look| {
        let example = group.example.as_ref();
        vec![
            Cell::text(format!("{}{}", group.count, if group.at_least { "+" } else { "" })),
            Cell::maybe(group.reason.as_deref()),
            Cell::text(&group.kind),
            Cell::maybe(group.target.as_deref()),
            Cell::age(group.newest_at, look),
            Cell::age(group.oldest_at, look),
            Cell::whole(example.map_or("-", |example| example.job_id.as_str())),
            Cell::maybe(example.and_then(|example| example.error.as_deref())),
        ]
    },
    none: "there are no dead letters",
};
