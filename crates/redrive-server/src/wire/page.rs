//! Pages of a list, with an opaque cursor.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Cursor, PageRequest};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::error::{Answer, Problem};

/// Items on a page when the caller does not say.
pub const PAGE_ITEMS_DEFAULT: usize = 50;

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// Its items.
    pub items: Vec<T>,
    /// Send it as `cursor` to get the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// How many were looked at for it, where the list is narrowed: a page may be short while `nextCursor` is there. A list of
    /// one tenant counts that tenant's alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<u64>,
}

impl<T> Page<T> {
    /// Makes a page of `limit` from items fetched with one to spare; the spare one says that there is more.
    pub fn cut(mut items: Vec<T>, limit: usize, id: impl Fn(&T) -> &str) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let last = items.last().filter(|_| more);
        let next_cursor = last.map(|item| BASE64_URL_SAFE_NO_PAD.encode(id(item)));
        Self { items, next_cursor, looked_at: None }
    }
}

/// Which page of a list, and no more to say about it.
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
    /// How many items, within bounds.
    pub fn limit(&self) -> Answer<usize> {
        limit(self.limit)
    }

    /// A page of a list of jobs or attempts.
    pub fn request(&self) -> Answer<PageRequest> {
        request(self.limit, self.cursor.as_deref())
    }

    /// The name after which the page begins, in a list that goes by names.
    pub fn after(&self) -> Answer<Option<String>> {
        let wrong = || Problem::invalid("cursor", "is not one that a list returned");
        let decode = |cursor: &String| {
            let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| wrong())?;
            String::from_utf8(bytes).map_err(|_| wrong())
        };
        self.cursor.as_ref().map(decode).transpose()
    }
}

/// How many items a page may have.
pub(crate) fn limit(asked: Option<usize>) -> Answer<usize> {
    limit_to(asked, PAGE_ITEMS_MAX)
}

/// How many items a page may have of which there are at most `most` on one.
pub(crate) fn limit_to(asked: Option<usize>, most: usize) -> Answer<usize> {
    match asked {
        None => Ok(PAGE_ITEMS_DEFAULT),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(limit) => Err(Problem::invalid("limit", format!("must be from 1 to {most}, is {limit}"))),
    }
}

/// A page of a list of jobs or attempts.
pub fn request(limit: Option<usize>, cursor: Option<&str>) -> Answer<PageRequest> {
    let after = cursor.map(str::parse::<Cursor>).transpose()?;
    Ok(PageRequest { after, limit: self::limit(limit)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_to_the_next_page_and_a_forged_one_is_refused() {
        let page = Page::cut(vec!["a", "é", "c"], 2, |name| name);
        assert_eq!(page.items, ["a", "é"]);
        let next = PageQuery { limit: Some(2), cursor: page.next_cursor };
        assert_eq!(next.after().unwrap().as_deref(), Some("é"));
        assert_eq!(Page::cut(vec!["a"], 1, |name| name).next_cursor, None);
        let forged = PageQuery { limit: Some(0), cursor: Some("%".into()) };
        assert_eq!(forged.after().unwrap_err().field.as_deref(), Some("cursor"));
        assert_eq!(forged.limit().unwrap_err().field.as_deref(), Some("limit"));
    }
}
