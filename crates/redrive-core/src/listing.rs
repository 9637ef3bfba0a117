//! Lists of jobs and attempts: what to show, and page after page of it.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::job::{Epoch, Job, JobId};
use crate::lifecycle::State;
use crate::limits::PAGE_ITEMS_MAX;
use crate::names::{IdempotencyKey, Kind, PolicyName, Queue, Tenant};
use crate::policy::PolicyRef;
use crate::store::{Store, StoreError};
use crate::time::Timestamp;
use crate::verdict::Reason;

/// Which jobs to list; what is absent does not narrow.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    /// In one of these states; none means all.
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
    /// About something that starts like this.
    pub subject: Option<String>,
    /// Dead for this reason.
    pub reason: Option<Reason>,
    /// With this key.
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
    /// Whether `job` is one of them.
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
            && self.subject.as_ref().is_none_or(|start| is_about(job, start))
            && self.reason.is_none_or(|reason| job.reason == Some(reason))
            && self.finished_from.is_none_or(|from| job.finished_at.is_some_and(|at| at >= from))
            && self.finished_before.is_none_or(|before| job.finished_at.is_some_and(|at| at < before))
    }
}

fn is_about(job: &Job, start: &str) -> bool {
    job.subject.as_ref().is_some_and(|subject| subject.starts_with(start))
}

/// Which page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// Where the page before ended.
    pub after: Option<Cursor>,
    /// At most this many items, from 1 to [`PAGE_ITEMS_MAX`].
    pub limit: usize,
}

impl PageRequest {
    /// The first page.
    pub fn first(limit: usize) -> Self {
        Self { after: None, limit }
    }

    /// Refuses a limit out of range.
    pub fn check(&self) -> Result<(), Invalid> {
        if (1..=PAGE_ITEMS_MAX).contains(&self.limit) {
            Ok(())
        } else {
            Err(Invalid::new("limit", format!("must be from 1 to {PAGE_ITEMS_MAX}, is {}", self.limit)))
        }
    }
}

/// Where a page ended. Its text is opaque to users and safe to accept from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// After this job.
    Job(JobId),
    /// After this attempt.
    Attempt(Epoch),
}

impl Cursor {
    /// The job it stands at; a cursor of another list is refused.
    pub fn job(self) -> Result<JobId, Invalid> {
        match self {
            Self::Job(id) => Ok(id),
            Self::Attempt(_) => Err(Invalid::new("cursor", "belongs to a list of attempts")),
        }
    }

    /// The attempt it stands at; a cursor of another list is refused.
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
    /// Its items.
    pub items: Vec<T>,
    /// Where to go on; none means that this was the last page.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// Makes a page of `limit` from items fetched with one to spare; the spare one says that there is more.
    pub fn cut(mut items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> Cursor) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(cursor) } else { None };
        Self { items, next }
    }
}

impl Page<Job> {
    /// Makes a page of `limit` from rows fetched with one to spare. A row without a job could not be read: it is left out, and
    /// the list goes on behind it.
    pub fn cut_rows(rows: Vec<(JobId, Option<Job>)>, limit: usize) -> Self {
        let Page { items, next } = Page::cut(rows, limit, |(id, _)| Cursor::Job(*id));
        Self { items: items.into_iter().filter_map(|(_, job)| job).collect(), next }
    }
}

/// What a look of bounded cost has brought.
#[derive(Debug, Clone, PartialEq)]
pub struct Looked {
    /// The jobs that match. It may be short, or empty, while there is more to look at.
    pub page: Page<Job>,
    /// How many jobs were looked at for it.
    pub looked_at: usize,
}

/// A look by lists of everything, or of dead letters, which every store finds by themselves: right for any store, and as fast
/// as reading whole jobs is.
pub async fn look_by_lists<S: Store + ?Sized>(
    store: &S,
    filter: &Filter,
    page: PageRequest,
    most: usize,
) -> Result<Looked, StoreError> {
    page.check()?;
    let dead = filter.states == [State::Dead];
    let all = Filter { states: if dead { vec![State::Dead] } else { Vec::new() }, ..Filter::default() };
    let (mut items, mut looked_at, mut after) = (Vec::new(), 0, page.after);
    while looked_at < most {
        let limit = (most - looked_at).min(PAGE_ITEMS_MAX);
        let read = store.list(all.clone(), PageRequest { after, limit }).await?;
        for job in read.items {
            looked_at += 1;
            after = Some(Cursor::Job(job.id));
            if filter.matches(&job) {
                items.push(job);
            }
            if items.len() == page.limit {
                return Ok(Looked { page: Page { items, next: after }, looked_at });
            }
        }
        // Where the list says it goes on, even if it brought nothing.
        after = read.next;
        if after.is_none() {
            return Ok(Looked { page: Page { items, next: None }, looked_at });
        }
    }
    Ok(Looked { page: Page { items, next: after }, looked_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_goes_on_behind_rows_that_cannot_be_read() {
        let id = |n: u128| JobId(uuid::Uuid::from_u128(n));
        let rows = |ids: &[u128]| ids.iter().map(|n| (id(*n), None)).collect::<Vec<_>>();
        let page = Page::cut_rows(rows(&[9, 8, 7]), 2);
        assert_eq!((page.items, page.next), (Vec::new(), Some(Cursor::Job(id(8)))));
        assert_eq!(Page::cut_rows(rows(&[9, 8]), 2).next, None);
    }

    #[test]
    fn a_cursor_survives_its_text_and_a_forged_one_is_refused() {
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
