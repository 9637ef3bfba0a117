//! Reads all pages of a search.

use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Job, StoreError};

/// More pages than any search has: beyond that, the search never ends.
const PAGES_MAX: usize = 100_000;

/// Returns all jobs that match the filter. Each page has at most `limit` jobs and examines at most `examined_max`.
pub(crate) async fn search_all(
    store: &dyn Backend,
    filter: &Filter,
    limit: usize,
    examined_max: usize,
) -> Result<Vec<Job>, StoreError> {
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let result = store.search(filter.clone(), PageRequest { after, limit }, examined_max).await?;
        assert!(
            result.examined <= examined_max && result.page.items.len() <= limit,
            "{filter:?}: {result:?}"
        );
        found.extend(result.page.items);
        after = result.page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
    panic!("{filter:?}: pages of {limit} that examine {examined_max} never end");
}
