//! `redrive dead groups`: dead letters by what they have in common.

use redrive_server::wire::group::{DeadLetterGroup, DeadLetterGroups};

use crate::call::{Query, Reach, Service};
use crate::exit::Exit;
use crate::list::{self, Columns};
use crate::print;
use crate::table::{Cell, word};

pub(super) async fn run(reach: &Reach, service: &Service) -> anyhow::Result<Exit> {
    let answer = service.get(&[super::DEAD, "groups"], &Query::new()).await?;
    list::show_answer(reach, &answer, &COLUMNS)?;
    let groups: DeadLetterGroups = answer.read()?;
    if !groups.complete && !reach.json {
        print::note(&format!("only the newest were looked at, {} in all", groups.looked_at));
    }
    Ok(Exit::Done)
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
