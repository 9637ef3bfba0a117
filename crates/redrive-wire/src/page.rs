//! Pages of a list, with an opaque cursor.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redrive_core::Invalid;
use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Cursor, PageRequest};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The default number of items on a page.
pub const PAGE_ITEMS_DEFAULT: usize = 50;

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// Send it as `cursor` to get the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// How many jobs the service examined for this page, in a list with a filter. The page may be short
    /// although there is a `nextCursor`. In a list of one tenant, only jobs of that tenant count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examined: Option<u64>,
}

impl<T> Page<T> {
    /// A page without items.
    pub fn empty() -> Self {
        Self { items: Vec::new(), next_cursor: None, examined: None }
    }

    /// Makes a page of at most `limit` items. The caller fetches one item more: if there is one, the page has
    /// a `nextCursor`.
    pub fn from_items(mut items: Vec<T>, limit: usize, id: impl Fn(&T) -> &str) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let last = items.last().filter(|_| more);
        let next_cursor = last.map(|item| BASE64_URL_SAFE_NO_PAD.encode(id(item)));
        Self { items, next_cursor, examined: None }
    }

    /// The requested page of a whole list, sorted by name.
    pub fn by_name(mut items: Vec<T>, query: &PageQuery, name: impl Fn(&T) -> &str) -> Result<Self, Invalid> {
        let (limit, after) = (query.limit()?, query.after()?);
        items.retain(|item| after.as_deref().is_none_or(|after| name(item) > after));
        items.sort_by(|one, other| name(one).cmp(name(other)));
        Ok(Self::from_items(items, limit, name))
    }

    /// The requested page of a whole list, newest first. `position` is the time of an item, in epoch ms, and its id: ids order
    /// items with the same time.
    pub fn newest_first(
        items: Vec<T>,
        query: &PageQuery,
        position: impl Fn(&T) -> (i64, String),
    ) -> Result<Self, Invalid> {
        let (limit, after) = (query.limit()?, query.after_position()?);
        let positioned = items.into_iter().map(|item| (position(&item), item));
        let is_older = |at: &(i64, String)| after.as_ref().is_none_or(|after| at < after);
        let mut older: Vec<_> = positioned.filter(|(at, _)| is_older(at)).collect();
        older.sort_by(|(one, _), (other, _)| other.cmp(one));
        let more = older.len() > limit;
        older.truncate(limit);
        let last = older.last().filter(|_| more);
        let next_cursor = last.map(|((at, id), _)| BASE64_URL_SAFE_NO_PAD.encode(format!("{at} {id}")));
        Ok(Self { items: older.into_iter().map(|(_, item)| item).collect(), next_cursor, examined: None })
    }
}

/// A page that the next page can be appended to, to read a whole list.
pub trait Paged {
    /// The cursor of the next page; `None` on the last one.
    fn next_cursor(&self) -> Option<&str>;

    /// Appends the items of the next page.
    fn append(&mut self, next: Self);
}

impl<T> Paged for Page<T> {
    fn next_cursor(&self) -> Option<&str> {
        self.next_cursor.as_deref()
    }

    fn append(&mut self, next: Self) {
        self.items.extend(next.items);
        self.next_cursor = next.next_cursor;
    }
}

/// Selects a page of a list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Items on the page, 50 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `nextCursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl PageQuery {
    /// The number of items on the page. Fails if the caller asked for too many or none.
    pub fn limit(&self) -> Result<usize, Invalid> {
        limit(self.limit)
    }

    /// The request to the store for a page of jobs or attempts.
    pub fn request(&self) -> Result<PageRequest, Invalid> {
        request(self.limit, self.cursor.as_deref())
    }

    /// The name after which the page begins, in a list that is sorted by name.
    pub fn after(&self) -> Result<Option<String>, Invalid> {
        let decode = |cursor: &String| {
            let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| invalid_cursor())?;
            String::from_utf8(bytes).map_err(|_| invalid_cursor())
        };
        self.cursor.as_ref().map(decode).transpose()
    }

    /// The time and the id of the item after which the page begins, in a list that starts with the newest.
    fn after_position(&self) -> Result<Option<(i64, String)>, Invalid> {
        let Some(text) = self.after()? else { return Ok(None) };
        let position = text.split_once(' ').and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())));
        position.ok_or_else(invalid_cursor).map(Some)
    }
}

/// Selects a page of the steps of a job.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StepsQuery {
    /// Steps on the page, 50 when absent. The value of each step may have 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<usize>,
    /// The `nextCursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The most steps on a page.
pub const STEPS_ITEMS_MAX: usize = 100;

impl StepsQuery {
    /// The number of steps on the page. Fails if the caller asked for too many or none.
    pub fn limit(&self) -> Result<usize, Invalid> {
        limit_to(self.limit, STEPS_ITEMS_MAX)
    }

    /// The place of the first step on the page.
    pub fn from(&self) -> Result<u32, Invalid> {
        let Some(cursor) = &self.cursor else { return Ok(0) };
        let place = cursor.strip_prefix('s').and_then(|place| u32::from_str_radix(place, 16).ok());
        place.ok_or_else(invalid_cursor)
    }

    /// The cursor of the page that begins at `place`.
    pub fn cursor_at(place: u32) -> String {
        format!("s{place:x}")
    }
}

fn invalid_cursor() -> Invalid {
    Invalid::new("cursor", "is not one that a list returned")
}

/// Checks the number of items that a caller asked for. [`PAGE_ITEMS_DEFAULT`] if `asked` is `None`.
pub fn limit(asked: Option<usize>) -> Result<usize, Invalid> {
    limit_to(asked, PAGE_ITEMS_MAX)
}

/// Like [`limit`], for a list whose pages have at most `most` items.
pub fn limit_to(asked: Option<usize>, most: usize) -> Result<usize, Invalid> {
    match asked {
        None => Ok(PAGE_ITEMS_DEFAULT),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(limit) => Err(Invalid::new("limit", format!("must be from 1 to {most}, is {limit}"))),
    }
}

/// The request to the store for a page of jobs or attempts.
pub fn request(limit: Option<usize>, cursor: Option<&str>) -> Result<PageRequest, Invalid> {
    let after = cursor.map(str::parse::<Cursor>).transpose()?;
    Ok(PageRequest { after, limit: self::limit(limit)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_to_the_next_page_and_a_forged_one_is_refused() {
        let page = Page::from_items(vec!["a", "é", "c"], 2, |name| name);
        assert_eq!(page.items, ["a", "é"]);
        let next = PageQuery { limit: Some(2), cursor: page.next_cursor };
        assert_eq!(next.after().unwrap().as_deref(), Some("é"));
        assert_eq!(Page::from_items(vec!["a"], 1, |name| name).next_cursor, None);
        let forged = PageQuery { limit: Some(0), cursor: Some("%".into()) };
        assert_eq!(forged.after().unwrap_err().field, "cursor");
        assert_eq!(forged.limit().unwrap_err().field, "limit");
    }

    /// Every page of a list, two items each.
    fn pages<T>(page: impl Fn(&PageQuery) -> Page<T>) -> Vec<Vec<T>> {
        let (mut pages, mut query) = (Vec::new(), PageQuery { limit: Some(2), cursor: None });
        loop {
            let Page { items, next_cursor, .. } = page(&query);
            pages.push(items);
            query.cursor = next_cursor;
            if query.cursor.is_none() {
                return pages;
            }
        }
    }

    #[test]
    fn the_pages_of_a_whole_list_follow_each_other() {
        let names = vec!["c", "a", "d", "b"];
        let by_name = pages(|query| Page::by_name(names.clone(), query, |name| name).unwrap());
        assert_eq!(by_name, [["a", "b"], ["c", "d"]]);
        let items = vec![(1, "a"), (2, "b"), (2, "c"), (-1, "d"), (3, "e")];
        let position = |(at, id): &(i64, &str)| (*at, (*id).to_owned());
        let newest_first = pages(|query| Page::newest_first(items.clone(), query, position).unwrap());
        assert_eq!(newest_first, [vec![(3, "e"), (2, "c")], vec![(2, "b"), (1, "a")], vec![(-1, "d")]]);
        let of_names = PageQuery { limit: None, cursor: Some("YQ".into()) };
        assert_eq!(Page::newest_first(items, &of_names, position).unwrap_err().field, "cursor");
    }

    #[test]
    fn a_list_is_read_page_by_page() {
        let mut whole = Page { items: vec![1], next_cursor: Some("x".into()), examined: None };
        whole.append(Page { items: vec![2], next_cursor: None, examined: None });
        assert_eq!((whole.next_cursor(), whole.items.as_slice()), (None, [1, 2].as_slice()));
    }
}
