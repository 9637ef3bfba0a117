//! Searches and counts jobs for a request, with a time limit.

use std::time::Duration;

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Backend, Cursor, PageRequest, SearchPage};
use redrive_core::{Job, State, StoreError};
use tokio::time::Instant;

use crate::api;
use crate::cursors::Cursors;
use crate::selection::JobSelection;
use redrive_wire::page::Page;

/// How long a list searches for jobs. After that it returns what it found, with a cursor to continue.
pub(crate) const LIST_SEARCH_TIME: Duration = Duration::from_millis(80);
/// Jobs that the store examines in one call.
const EXAMINED_MAX: usize = 2_000;
/// Jobs that one call reads, each with its payload.
const READ_ITEMS: usize = 250;

/// The jobs that a search found.
#[derive(Debug)]
pub(crate) struct SearchResult {
    pub(crate) items: Vec<Job>,
    /// Where the next search continues; `None` at the end.
    pub(crate) next: Option<Cursor>,
    /// How many jobs were examined. A search for one tenant counts only the jobs of this tenant.
    pub(crate) examined: u64,
}

/// Searches for jobs, newest first, until the page is full or the time is up.
pub(crate) async fn search_jobs(
    store: &dyn Backend,
    selection: &JobSelection,
    page: PageRequest,
    time_limit: Duration,
) -> Result<SearchResult, StoreError> {
    let began = Instant::now();
    let mut found = SearchResult { items: Vec::new(), next: page.after, examined: 0 };
    loop {
        let missing = page.limit - found.items.len();
        // If only the service can decide whether a job matches, every job is read.
        let (limit, examined_max) = if selection.is_store_filter() {
            (missing.min(READ_ITEMS), EXAMINED_MAX)
        } else {
            (READ_ITEMS, READ_ITEMS)
        };
        let request = PageRequest { after: found.next, limit };
        let searched = store.search(selection.filter.clone(), request, examined_max).await?;
        found.add(searched, selection, page.limit);
        if found.items.len() >= page.limit || found.next.is_none() || began.elapsed() >= time_limit {
            return Ok(found);
        }
    }
}

impl SearchResult {
    /// The page of the answer. `items` are the found jobs as the API shows them.
    pub(crate) fn page<T>(&self, items: Vec<T>, cursors: &Cursors<'_>) -> Page<T> {
        let next_cursor = self.next.map(|cursor| cursors.show(cursor));
        Page { items, next_cursor, examined: Some(self.examined) }
    }

    /// Adds the jobs that match. If they do not all fit, the next page starts after the last one that did.
    fn add(&mut self, searched: SearchPage, selection: &JobSelection, limit: usize) {
        // A tenant must not learn how many jobs other tenants have.
        let examined = match selection.filter.tenant {
            Some(_) => searched.page.items.len(),
            None => searched.examined,
        };
        self.examined += examined as u64;
        self.next = searched.page.next;
        let now = api::now();
        let jobs = searched.page.items.into_iter();
        let mut matching = jobs.filter(|job| selection.matches(job, now)).peekable();
        while let Some(job) = matching.next_if(|_| self.items.len() < limit) {
            self.items.push(job);
        }
        if matching.peek().is_some() {
            self.next = self.items.last().map(|job| Cursor::Job(job.id));
        }
    }
}

/// The number of jobs that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CountResult {
    pub(crate) jobs: u64,
    /// Whether there may be more, because the time was up.
    pub(crate) at_least: bool,
}

/// Counts jobs. The count is exact if the store keeps it, or if the time was long enough.
pub(crate) async fn count(
    store: &dyn Backend,
    selection: &JobSelection,
    time_limit: Duration,
) -> Result<CountResult, StoreError> {
    if selection.has_stored_count() {
        return stored_count(store, selection).await;
    }
    let began = Instant::now();
    let mut counter = JobCounter::default();
    loop {
        counter.advance(store, selection, time_limit.saturating_sub(began.elapsed())).await?;
        if counter.is_done() || began.elapsed() >= time_limit {
            return Ok(CountResult { jobs: counter.jobs, at_least: !counter.is_done() });
        }
    }
}

/// A count that can be interrupted and continued.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobCounter {
    pub(crate) jobs: u64,
    /// Where the count continues; `None` before the first step.
    pub(crate) after: Option<Cursor>,
    done: bool,
}

impl JobCounter {
    /// Continues a count that has reached `jobs` and the cursor `after`.
    pub(crate) fn resume(jobs: u64, after: Option<Cursor>) -> Self {
        Self { jobs, after, done: false }
    }

    /// Whether all jobs were counted.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Counts up to one page of jobs, or fewer if the time is up.
    pub(crate) async fn advance(
        &mut self,
        store: &dyn Backend,
        selection: &JobSelection,
        time_limit: Duration,
    ) -> Result<(), StoreError> {
        let page = PageRequest { after: self.after, limit: PAGE_ITEMS_MAX };
        let found = search_jobs(store, selection, page, time_limit).await?;
        self.jobs += found.items.len() as u64;
        self.after = found.next;
        self.done = found.next.is_none();
        Ok(())
    }
}

async fn stored_count(store: &dyn Backend, selection: &JobSelection) -> Result<CountResult, StoreError> {
    let (states, queue) = (&selection.filter.states, &selection.filter.queue);
    let is_selected = |name: &redrive_core::Queue, state: State| {
        queue.as_ref().is_none_or(|queue| queue == name) && (states.is_empty() || states.contains(&state))
    };
    let stats = store.stats().await?;
    let selected = stats.counts.iter().filter(|((name, state), _)| is_selected(name, *state));
    Ok(CountResult { jobs: selected.map(|(_, jobs)| jobs).sum(), at_least: false })
}
