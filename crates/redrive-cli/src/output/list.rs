//! Lists: read page by page, and printed as a table for people or as one JSON document per line.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::table::{Cell, Table};
use super::{OutputStyle, documents, note, text};
use crate::client::{Client, ClientError, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::options::integer;

/// The number of items without `--limit`.
const ITEMS_DEFAULT: usize = 50;
/// The largest page that the service returns.
pub(crate) const PAGE_ITEMS_MAX: usize = 1000;

/// How much of a list to show.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct Paging {
    /// The number of items to show [default: 50]
    #[arg(long, value_name = "N", conflicts_with = "all", value_parser = integer::<u32>(1.., 50))]
    limit: Option<u32>,
    /// Show all items
    #[arg(long)]
    all: bool,
    /// Continue where an earlier list ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

impl Paging {
    /// The whole list.
    pub(crate) fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// Starts at a cursor.
    pub(crate) fn starting_at(self, cursor: Option<String>) -> Self {
        Self { cursor, ..self }
    }

    fn items_max(&self) -> usize {
        match self.limit {
            _ if self.all => usize::MAX,
            Some(limit) => limit as usize,
            None => ITEMS_DEFAULT,
        }
    }
}

/// A page of a list, with the JSON text of its items unchanged.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RawPage {
    pub(crate) items: Vec<Box<RawValue>>,
    #[serde(default)]
    pub(crate) next_cursor: Option<String>,
    /// How many jobs the service examined, if it examines a limited number.
    examined: Option<u64>,
    /// Whether the service examined all jobs.
    complete: Option<bool>,
}

/// All items of a list, with their JSON text unchanged.
pub(crate) struct WholeList {
    pub(crate) items: Vec<Box<RawValue>>,
    /// How many jobs the service examined, if it did not examine all.
    examined: Option<u64>,
    /// The time of the service.
    now: i64,
}

impl WholeList {
    /// The items as values.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<Vec<T>, serde_json::Error> {
        self.items.iter().map(|item| serde_json::from_str(item.get())).collect()
    }

    /// The items in the opposite order.
    pub(crate) fn reversed(mut self) -> Self {
        self.items.reverse();
        self
    }
}

/// The pages of a list, one after the other.
pub(crate) struct Pages<'a> {
    client: &'a Client,
    path: Vec<&'a str>,
    query: Query,
    remaining: usize,
    page_items_max: usize,
    /// The cursor of the next page. `None` after the last page; the first page has no cursor.
    next: Option<Option<String>>,
    /// The time of the service at the last page.
    pub(crate) now: i64,
}

impl<'a> Pages<'a> {
    /// The pages of the list at `path`.
    pub(crate) fn new(client: &'a Client, path: &[&'a str], query: Query, paging: &Paging) -> Self {
        let (remaining, next) = (paging.items_max(), Some(paging.cursor.clone()));
        Self { client, path: path.to_vec(), query, remaining, page_items_max: PAGE_ITEMS_MAX, next, now: 0 }
    }

    /// Reads smaller pages.
    pub(crate) fn with_page_items_max(self, page_items_max: usize) -> Self {
        Self { page_items_max, ..self }
    }

    /// Reads the next page. Returns `None` after the last page, or after the requested number of items. A page may be empty
    /// although others follow.
    pub(crate) async fn read(&mut self) -> Result<Option<RawPage>, ClientError> {
        let Some(cursor) = self.next.clone() else { return Ok(None) };
        if self.remaining == 0 {
            return Ok(None);
        }
        let mut query = self.query.clone();
        query.push(("limit".to_owned(), self.remaining.min(self.page_items_max).to_string()));
        query.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor)));
        let answer = self.client.get(&self.path, &query).await?;
        let page: RawPage = answer.read()?;
        self.now = answer.now;
        self.remaining = self.remaining.saturating_sub(page.items.len());
        self.next = page.next_cursor.clone().map(Some);
        Ok(Some(page))
    }

    /// Reads all pages.
    pub(crate) async fn read_all(mut self) -> Result<WholeList, ClientError> {
        let mut list = WholeList { items: Vec::new(), examined: None, now: 0 };
        while let Some(page) = self.read().await? {
            list.items.extend(page.items);
            list.examined = page.examined.filter(|_| page.complete == Some(false));
        }
        list.now = self.now;
        Ok(list)
    }

    /// The cursor of the items that `--limit` left out.
    pub(crate) fn rest(&self) -> Option<&str> {
        self.next.as_ref()?.as_deref()
    }
}

/// The columns of a table.
pub(crate) struct Columns<T> {
    pub(crate) headers: &'static [&'static str],
    /// Columns to leave out on a narrow terminal, in this order.
    pub(crate) optional: &'static [&'static str],
    pub(crate) row: fn(&T, &OutputStyle) -> Vec<Cell>,
    /// The text for an empty list.
    pub(crate) empty: &'static str,
}

impl<T> Columns<T> {
    /// A table with these columns and no rows.
    pub(crate) fn table(&self, style: OutputStyle) -> Table {
        Table::new(self.headers, self.optional, style)
    }
}

/// Prints a list.
pub(crate) async fn show<T: DeserializeOwned>(
    options: &ServiceOptions,
    mut pages: Pages<'_>,
    columns: &Columns<T>,
) -> anyhow::Result<ExitStatus> {
    let mut table = None;
    while let Some(page) = pages.read().await? {
        if options.json {
            documents(&page.items)?;
            continue;
        }
        if page.items.is_empty() {
            continue;
        }
        let style = OutputStyle::of_stdout(pages.now);
        let table = table.get_or_insert_with(|| columns.table(style));
        for item in &page.items {
            table.add_row((columns.row)(&serde_json::from_str(item.get())?, &style));
        }
        text(&table.render())?;
    }
    if table.is_none() && !options.json {
        note(columns.empty);
    }
    if let Some(cursor) = pages.rest().filter(|_| !options.json) {
        note(&format!("there are more: add --all to show all, or --cursor {cursor} to continue here"));
    }
    Ok(ExitStatus::Success)
}

/// Prints the whole list at `path`.
pub(crate) async fn show_all<T: DeserializeOwned>(
    options: &ServiceOptions,
    path: &[&str],
    columns: &Columns<T>,
) -> anyhow::Result<ExitStatus> {
    let client = options.client()?;
    let list = Pages::new(&client, path, Query::new(), &Paging::all()).read_all().await?;
    show_whole(options, &list, columns)
}

/// Prints a whole list as one table.
pub(crate) fn show_whole<T: DeserializeOwned>(
    options: &ServiceOptions,
    list: &WholeList,
    columns: &Columns<T>,
) -> anyhow::Result<ExitStatus> {
    if options.json {
        documents(&list.items)?;
        return Ok(ExitStatus::Success);
    }
    if list.items.is_empty() {
        note(columns.empty);
        return Ok(ExitStatus::Success);
    }
    let style = OutputStyle::of_stdout(list.now);
    let mut table = columns.table(style);
    for item in &list.items {
        table.add_row((columns.row)(&serde_json::from_str(item.get())?, &style));
    }
    text(&table.render())?;
    if let Some(examined) = list.examined {
        note(&format!("this covers the newest {examined} jobs; there are more"));
    }
    Ok(ExitStatus::Success)
}

/// Prints the JSON documents with this name in a list. `*` stands for all.
pub(crate) async fn show_named(client: &Client, path: &[&str], name: &str) -> anyhow::Result<ExitStatus> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let list = Pages::new(client, path, Query::new(), &Paging::all()).read_all().await?;
    let matches = |item: &RawValue| {
        name == "*" || serde_json::from_str::<Named>(item.get()).is_ok_and(|named| named.name == name)
    };
    documents(&list.items.into_iter().filter(|item| matches(item)).collect::<Vec<_>>())?;
    Ok(ExitStatus::Success)
}
