//! Lists of jobs and attempts: filters, pages and cursors.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::job::{Epoch, Job, JobId};
use crate::lifecycle::State;
use crate::limits::PAGE_ITEMS_MAX;
use crate::names::{IdempotencyKey, Kind, PolicyName, Queue, Tenant};
use crate::policy::PolicyRef;
use crate::reason::Reason;
use crate::store::{Store, StoreError};
use crate::time::Timestamp;

/// The conditions that a listed job must meet. An absent field sets no condition.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    /// In one of these states. Empty means all.
    pub states: Vec<State>,
    /// Of this tenant.
    pub tenant: Option<Tenant>,
    /// In this queue.
    pub queue: Option<Queue>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// Under this version of a policy.
    pub policy: Option<PolicyRef>,
    /// Under any version of a policy of this name.
    pub policy_name: Option<PolicyName>,
    /// With a target that starts with this text.
    pub target: Option<String>,
    /// Dead for this reason.
    pub reason: Option<Reason>,
    /// With this idempotency key.
    pub key: Option<IdempotencyKey>,
    /// Enqueued at or after this instant.
    pub created_from: Option<Timestamp>,
    /// Enqueued before this instant.
    pub created_before: Option<Timestamp>,
    /// Ended at or after this instant.
    pub finished_from: Option<Timestamp>,
    /// Ended before this instant.
    pub finished_before: Option<Timestamp>,
}

impl Filter {
    /// Whether `job` meets all conditions.
    pub fn matches(&self, job: &Job) -> bool {
        fn is<T: PartialEq>(wanted: Option<&T>, actual: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == actual)
        }
        (self.states.is_empty() || self.states.contains(&job.state))
            && is(self.tenant.as_ref(), &job.tenant)
            && is(self.queue.as_ref(), &job.queue)
            && is(self.kind.as_ref(), &job.kind)
            && is(self.policy.as_ref(), &job.policy)
            && self.key.as_ref().is_none_or(|key| job.key.as_ref() == Some(key))
            && self.created_from.is_none_or(|from| job.created_at >= from)
            && self.created_before.is_none_or(|before| job.created_at < before)
            && self.policy_name.as_ref().is_none_or(|name| job.policy.name == *name)
            && self.target.as_ref().is_none_or(|start| target_starts_with(job, start))
            && self.reason.is_none_or(|reason| job.reason == Some(reason))
            && self.finished_from.is_none_or(|from| job.finished_at.is_some_and(|at| at >= from))
            && self.finished_before.is_none_or(|before| job.finished_at.is_some_and(|at| at < before))
    }
}

fn target_starts_with(job: &Job, start: &str) -> bool {
    job.target.as_ref().is_some_and(|target| target.starts_with(start))
}

/// A request for one page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// The end of the previous page.
    pub after: Option<Cursor>,
    /// At most this many items, from 1 to [`PAGE_ITEMS_MAX`].
    pub limit: usize,
}

impl PageRequest {
    /// The first page.
    pub fn first(limit: usize) -> Self {
        Self { after: None, limit }
    }

    /// Rejects a limit that is out of range.
    pub fn check(&self) -> Result<(), Invalid> {
        if (1..=PAGE_ITEMS_MAX).contains(&self.limit) {
            Ok(())
        } else {
            Err(Invalid::new("limit", format!("must be from 1 to {PAGE_ITEMS_MAX}, is {}", self.limit)))
        }
    }
}

/// The end of a page. Its text is opaque to users and safe to accept from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// After this job.
    Job(JobId),
    /// After this attempt.
    Attempt(Epoch),
}

impl Cursor {
    /// The last job of the page. Rejects a cursor of another list.
    pub fn job(self) -> Result<JobId, Invalid> {
        match self {
            Self::Job(id) => Ok(id),
            Self::Attempt(_) => Err(Invalid::new("cursor", "belongs to a list of attempts")),
        }
    }

    /// The last attempt of the page. Rejects a cursor of another list.
    pub fn attempt(self) -> Result<Epoch, Invalid> {
        match self {
            Self::Attempt(epoch) => Ok(epoch),
            Self::Job(_) => Err(Invalid::new("cursor", "belongs to a list of jobs")),
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(id) => write!(f, "j{}", id.0.simple()),
            Self::Attempt(epoch) => write!(f, "a{epoch:x}"),
        }
    }
}

impl FromStr for Cursor {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parsed = match text.split_at_checked(1) {
            Some(("j", id)) => id.parse().ok().map(Self::Job),
            Some(("a", epoch)) => Epoch::from_str_radix(epoch, 16).ok().map(Self::Attempt),
            _ => None,
        };
        parsed.ok_or_else(|| Invalid::new("cursor", "is not one that a list returned"))
    }
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The items of the page, at most as many as the request allows.
    pub items: Vec<T>,
    /// The start of the next page. None on the last page.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// A page of `limit` items, made from up to `limit + 1` items. The additional item shows that there is another page.
    pub fn from_items(mut items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> Cursor) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(cursor) } else { None };
        Self { items, next }
    }
}

impl Page<Job> {
    /// A page of `limit` items, made from up to `limit + 1` rows. A row without a job is damaged: the page leaves it out and continues
    /// after it.
    pub fn from_rows(rows: Vec<(JobId, Option<Job>)>, limit: usize) -> Self {
        let Page { items, next } = Page::from_items(rows, limit, |(id, _)| Cursor::Job(*id));
        Self { items: items.into_iter().filter_map(|(_, job)| job).collect(), next }
    }
}

/// The result of a search with bounded cost.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchPage {
    /// The jobs that match. The page may be short, or even empty, although there is a next page.
    pub page: Page<Job>,
    /// The number of jobs that were examined.
    pub examined: usize,
}

/// A search that lists all jobs, or all dead letters, and filters them. It is correct for every store, but reads whole
/// jobs.
pub async fn search_by_listing<S: Store + ?Sized>(
    store: &S,
    filter: &Filter,
    page: PageRequest,
    examined_max: usize,
) -> Result<SearchPage, StoreError> {
    page.check()?;
    let dead = filter.states == [State::Dead];
    let all = Filter { states: if dead { vec![State::Dead] } else { Vec::new() }, ..Filter::default() };
    let (mut items, mut examined, mut after) = (Vec::new(), 0, page.after);
    while examined < examined_max {
        let limit = (examined_max - examined).min(PAGE_ITEMS_MAX);
        let read = store.list(all.clone(), PageRequest { after, limit }).await?;
        for job in read.items {
            examined += 1;
            after = Some(Cursor::Job(job.id));
            if filter.matches(&job) {
                items.push(job);
            }
            if items.len() == page.limit {
                return Ok(SearchPage { page: Page { items, next: after }, examined });
            }
        }
        // A list may be empty and still have a next page.
        after = read.next;
        if after.is_none() {
            return Ok(SearchPage { page: Page { items, next: None }, examined });
        }
    }
    Ok(SearchPage { page: Page { items, next: after }, examined })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_continues_after_rows_that_cannot_be_read() {
        let id = |n: u128| JobId(uuid::Uuid::from_u128(n));
        let rows = |ids: &[u128]| ids.iter().map(|n| (id(*n), None)).collect::<Vec<_>>();
        let page = Page::from_rows(rows(&[9, 8, 7]), 2);
        assert_eq!((page.items, page.next), (Vec::new(), Some(Cursor::Job(id(8)))));
        assert_eq!(Page::from_rows(rows(&[9, 8]), 2).next, None);
    }

    #[test]
    fn a_cursor_parses_back_from_its_text_and_a_forged_one_is_rejected() {
        for cursor in [Cursor::Job(JobId(uuid::Uuid::max())), Cursor::Attempt(77)] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for text in ["", "j", "jxyz", "a", "a-1", "z1", "é", "j00000000-0000-0000-0000-00000000000g"] {
            assert_eq!(text.parse::<Cursor>().unwrap_err().field, "cursor", "{text}");
        }
        assert_eq!(Cursor::Attempt(1).job().unwrap_err().field, "cursor");
        assert_eq!(Cursor::Job(JobId(uuid::Uuid::nil())).attempt().unwrap_err().field, "cursor");
    }
}
