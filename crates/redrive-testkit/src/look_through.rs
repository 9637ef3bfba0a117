//! Everything that matches, found by looks of a bounded size.

use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::{Job, StoreError};

/// More looks than any test needs: a store whose looks never end is noticed.
const LOOKS_MAX: usize = 100_000;

/// Looks on until there is no more, at most `limit` jobs on a page and at most `most` looked at for each.
pub(crate) async fn look_through(
    store: &dyn Backend,
    filter: &Filter,
    limit: usize,
    most: usize,
) -> Result<Vec<Job>, StoreError> {
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..LOOKS_MAX {
        let looked = store.look(filter.clone(), PageRequest { after, limit }, most).await?;
        assert!(looked.looked_at <= most && looked.page.items.len() <= limit, "{filter:?}: {looked:?}");
        found.extend(looked.page.items);
        after = looked.page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
    panic!("{filter:?}: looks of {limit} out of {most} never end");
}
