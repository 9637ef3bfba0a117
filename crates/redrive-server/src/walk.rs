//! Walks through jobs for a request: looks of bounded cost, until there is enough or the time is up.

use std::time::Duration;

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::store::{Backend, Cursor, Looked, PageRequest};
use redrive_core::{Job, State, StoreError};
use tokio::time::Instant;

use crate::cursors::Cursors;
use crate::wire::filter::Wanted;
use crate::wire::page::Page;

/// How long an answer may look for jobs before it says where to go on.
pub(crate) const PATIENCE: Duration = Duration::from_millis(80);
/// Jobs that the store looks at in one call.
const LOOK_ITEMS: usize = 2_000;
/// Jobs that are read in one call, each with its payload.
const READ_ITEMS: usize = 250;

/// What a walk has brought.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) items: Vec<Job>,
    /// Where to go on; none at the end.
    pub(crate) next: Option<Cursor>,
    /// How many jobs were looked at; of a walk through one tenant's jobs, how many of its own.
    pub(crate) looked_at: u64,
}

/// Jobs that are wanted, newest first, from where a page begins: as many as it holds, or as were found in time.
pub(crate) async fn walk(
    store: &dyn Backend,
    wanted: &Wanted,
    page: PageRequest,
    patience: Duration,
) -> Result<Walked, StoreError> {
    let began = Instant::now();
    let mut walked = Walked { items: Vec::new(), next: page.after, looked_at: 0 };
    loop {
        let missing = page.limit - walked.items.len();
        let (limit, most) = match wanted.text {
            // The text of each is read.
            Some(_) => (READ_ITEMS, READ_ITEMS),
            None => (missing.min(READ_ITEMS), LOOK_ITEMS),
        };
        let request = PageRequest { after: walked.next, limit };
        let looked = store.look(wanted.filter.clone(), request, most).await?;
        walked.take(looked, wanted, page.limit);
        if walked.items.len() >= page.limit || walked.next.is_none() || began.elapsed() >= patience {
            return Ok(walked);
        }
    }
}

impl Walked {
    /// The page that `items` make, each a job of it as it is shown.
    pub(crate) fn page<T>(&self, items: Vec<T>, cursors: &Cursors<'_>) -> Page<T> {
        let next_cursor = self.next.map(|cursor| cursors.show(cursor));
        Page { items, next_cursor, looked_at: Some(self.looked_at) }
    }

    /// Adds what has the text; what does not fit is left for the next page.
    fn take(&mut self, looked: Looked, wanted: &Wanted, limit: usize) {
        // A tenant must not learn how many jobs others have, so only its own count.
        let looked_at = match wanted.filter.tenant {
            Some(_) => looked.page.items.len(),
            None => looked.looked_at,
        };
        self.looked_at += looked_at as u64;
        self.next = looked.page.next;
        let found = looked.page.items.into_iter();
        let mut found =
            found.filter(|job| wanted.text.as_ref().is_none_or(|text| text.is_in(job))).peekable();
        while let Some(job) = found.next_if(|_| self.items.len() < limit) {
            self.items.push(job);
        }
        if found.peek().is_some() {
            self.next = self.items.last().map(|job| Cursor::Job(job.id));
        }
    }
}

/// How many jobs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) jobs: u64,
    /// Whether there may be more: the time was up.
    pub(crate) at_least: bool,
}

/// Counts the jobs that are wanted: exactly where the store keeps the count, else as far as it gets in time.
pub(crate) async fn count(
    store: &dyn Backend,
    wanted: &Wanted,
    patience: Duration,
) -> Result<Counted, StoreError> {
    if wanted.is_counted() {
        return kept_count(store, wanted).await;
    }
    let began = Instant::now();
    let mut counting = Counting::default();
    loop {
        counting.go_on(store, wanted, patience.saturating_sub(began.elapsed())).await?;
        if counting.is_done() || began.elapsed() >= patience {
            return Ok(Counted { jobs: counting.jobs, at_least: !counting.is_done() });
        }
    }
}

/// A count that goes on where it stopped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counting {
    pub(crate) jobs: u64,
    /// Where it goes on; none before the first step.
    pub(crate) after: Option<Cursor>,
    done: bool,
}

impl Counting {
    /// One that has come so far.
    pub(crate) fn from(jobs: u64, after: Option<Cursor>) -> Self {
        Self { jobs, after, done: false }
    }

    /// Whether everything was counted.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Counts on until a page is full or the time is up.
    pub(crate) async fn go_on(
        &mut self,
        store: &dyn Backend,
        wanted: &Wanted,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let page = PageRequest { after: self.after, limit: PAGE_ITEMS_MAX };
        let walked = walk(store, wanted, page, patience).await?;
        self.jobs += walked.items.len() as u64;
        self.after = walked.next;
        self.done = walked.next.is_none();
        Ok(())
    }
}

async fn kept_count(store: &dyn Backend, wanted: &Wanted) -> Result<Counted, StoreError> {
    let (states, queue) = (&wanted.filter.states, &wanted.filter.queue);
    let is_meant = |of: &redrive_core::Queue, state: State| {
        queue.as_ref().is_none_or(|queue| queue == of) && (states.is_empty() || states.contains(&state))
    };
    let stats = store.stats().await?;
    let meant = stats.counts.iter().filter(|((of, state), _)| is_meant(of, *state));
    Ok(Counted { jobs: meant.map(|(_, jobs)| jobs).sum(), at_least: false })
}
