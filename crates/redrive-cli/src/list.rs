//! Lists: page by page, as a table for people or a document a line for programs.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::call::{CallError, Query, Reach, Service};
use crate::exit::Exit;
use crate::print::{self, Look};
use crate::table::{Cell, Table};
use crate::values::whole;

/// Items that are shown when nothing is said.
const ITEMS_DEFAULT: usize = 50;
/// Items on one page of the service.
pub(crate) const PAGE_ITEMS_MAX: usize = 1000;

/// How much of a list to show.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct Paging {
    /// How many to show [default: 50]
    #[arg(long, value_name = "N", conflicts_with = "all", value_parser = whole::<u32>(1.., 50))]
    limit: Option<u32>,
    /// Show all of them, however many
    #[arg(long)]
    all: bool,
    /// Go on where an earlier list ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

impl Paging {
    /// All of a list.
    pub(crate) fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// The same from another place on.
    pub(crate) fn from(self, cursor: Option<String>) -> Self {
        Self { cursor, ..self }
    }

    fn wanted(&self) -> usize {
        match self.limit {
            _ if self.all => usize::MAX,
            Some(limit) => limit as usize,
            None => ITEMS_DEFAULT,
        }
    }
}

/// A page of a list, with its items as the service wrote them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RawPage {
    pub(crate) items: Vec<Box<RawValue>>,
    #[serde(default)]
    pub(crate) next_cursor: Option<String>,
    /// How many were looked at, where that has a bound.
    looked_at: Option<u64>,
    /// Whether those were all.
    complete: Option<bool>,
}

/// The pages of a list, one after the other.
pub(crate) struct Pages<'a> {
    service: &'a Service,
    path: Vec<&'a str>,
    query: Query,
    left: usize,
    page_max: usize,
    /// Where the next page begins; none once the last one was read.
    pub(crate) next: Option<Option<String>>,
    /// The service's time at the last page.
    pub(crate) now: i64,
}

impl<'a> Pages<'a> {
    /// The pages of the list at `path`.
    pub(crate) fn new(service: &'a Service, path: &[&'a str], query: Query, paging: &Paging) -> Self {
        let (left, next) = (paging.wanted(), Some(paging.cursor.clone()));
        Self { service, path: path.to_vec(), query, left, page_max: PAGE_ITEMS_MAX, next, now: 0 }
    }

    /// The same for a list whose pages are shorter.
    pub(crate) fn of_at_most(self, page_max: usize) -> Self {
        Self { page_max, ..self }
    }

    /// The next page; none at the end, or when enough was read. A page may be empty although others follow.
    pub(crate) async fn read(&mut self) -> Result<Option<RawPage>, CallError> {
        let Some(cursor) = self.next.clone() else { return Ok(None) };
        if self.left == 0 {
            return Ok(None);
        }
        let mut query = self.query.clone();
        query.push(("limit".to_owned(), self.left.min(self.page_max).to_string()));
        query.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor)));
        let answer = self.service.get(&self.path, &query).await?;
        let page: RawPage = answer.read()?;
        self.now = answer.now;
        self.left = self.left.saturating_sub(page.items.len());
        self.next = page.next_cursor.clone().map(Some);
        Ok(Some(page))
    }

    /// What was left out because enough was read.
    pub(crate) fn rest(&self) -> Option<&str> {
        self.next.as_ref()?.as_deref()
    }
}

/// How a list is shown to people.
pub(crate) struct Columns<T> {
    /// What is in each column.
    pub(crate) heads: &'static [&'static str],
    /// Columns to leave out on a narrow terminal, the first one first.
    pub(crate) spare: &'static [&'static str],
    /// A row.
    pub(crate) row: fn(&T, &Look) -> Vec<Cell>,
    /// What to say where there is nothing.
    pub(crate) none: &'static str,
}

/// Shows a list.
pub(crate) async fn show<T: DeserializeOwned>(
    reach: &Reach,
    mut pages: Pages<'_>,
    columns: &Columns<T>,
) -> anyhow::Result<Exit> {
    let mut table = None;
    while let Some(page) = pages.read().await? {
        if reach.json {
            print::documents(&page.items)?;
            continue;
        }
        if page.items.is_empty() {
            continue;
        }
        let look = Look::of_stdout(pages.now);
        let table = table.get_or_insert_with(|| Table::new(columns.heads, columns.spare, look));
        for item in &page.items {
            table.row((columns.row)(&serde_json::from_str(item.get())?, &look));
        }
        print::text(&table.show())?;
    }
    if table.is_none() && !reach.json {
        print::note(columns.none);
    }
    if let Some(cursor) = pages.rest().filter(|_| !reach.json) {
        print::note(&format!("there are more: --all shows them, --cursor {cursor} goes on from here"));
    }
    Ok(Exit::Done)
}

/// Shows a list that the service gives in one answer.
pub(crate) async fn show_whole<T: DeserializeOwned>(
    reach: &Reach,
    path: &[&str],
    columns: &Columns<T>,
) -> anyhow::Result<Exit> {
    let answer = reach.service()?.get(path, &Query::new()).await?;
    let page: RawPage = answer.read()?;
    if reach.json {
        print::documents(&page.items)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        print::note(columns.none);
        return Ok(Exit::Done);
    }
    let look = answer.look();
    let mut table = Table::new(columns.heads, columns.spare, look);
    for item in &page.items {
        table.row((columns.row)(&serde_json::from_str(item.get())?, &look));
    }
    print::text(&table.show())?;
    if let (Some(false), Some(looked_at)) = (page.complete, page.looked_at) {
        print::note(&format!("only {looked_at} were looked at; there are more"));
    }
    Ok(Exit::Done)
}

/// Prints the documents of what has this name, `*` for all, in a list that the service gives in one answer.
pub(crate) async fn show_named(service: &Service, path: &[&str], name: &str) -> anyhow::Result<Exit> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let page: RawPage = service.get(path, &Query::new()).await?.read()?;
    let is_meant = |item: &RawValue| {
        name == "*" || serde_json::from_str::<Named>(item.get()).is_ok_and(|named| named.name == name)
    };
    print::documents(&page.items.into_iter().filter(|item| is_meant(item)).collect::<Vec<_>>())?;
    Ok(Exit::Done)
}
