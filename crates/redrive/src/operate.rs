//! Looks after many jobs at once: lists, and fresh runs for what is dead.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Discarded, Filter, Page, PageRequest, Redriven};
use redrive_core::{Job, JobId, Queue, State};

use crate::{Error, Redrive};

impl Redrive {
    /// A page of the jobs that match, newest first.
    ///
    /// ```
    /// # use redrive::{Filter, PageRequest, Redrive, State};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let retrying = Filter { states: vec![State::Retrying], ..Filter::default() };
    /// let page = redrive.list(retrying, PageRequest::first(100)).await?;
    /// for job in &page.items {
    ///     println!("{} {}: {:?}", job.kind, job.id, job.last_error);
    /// }
    /// let more = page.next.map(|end| PageRequest { after: Some(end), limit: 100 });
    /// # assert!(more.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, Error> {
        Ok(self.backend().list(filter, page).await?)
    }

    /// A page of the dead letters of a queue, or of all, newest first.
    pub async fn dead(&self, queue: Option<&Queue>, page: PageRequest) -> Result<Page<Job>, Error> {
        self.list(dead_of(Filter { queue: queue.cloned(), ..Filter::default() }), page).await
    }

    /// Gives every dead job that matches a fresh run, due at once; says how many. The filter's states do not matter.
    ///
    /// It goes from the newest to the oldest in batches. A job that dies again meanwhile is not driven twice, and one that
    /// someone else drives at the same time is driven once.
    ///
    /// ```
    /// # use redrive::{Filter, Reason, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let gave_up = Filter { reason: Some(Reason::AttemptsExhausted), ..Filter::default() };
    /// let driven = redrive.redrive_all(gave_up).await?;
    /// # assert_eq!(driven, 0);
    /// # Ok(()) }
    /// ```
    pub async fn redrive_all(&self, filter: Filter) -> Result<usize, Error> {
        let mut driven = 0;
        let mut batches = Batches::new(dead_of(filter));
        while let Some(ids) = batches.next(self).await? {
            let answers = self.backend().redrive(ids).await?;
            driven += answers.iter().filter(|answer| **answer == Redriven::Done).count();
        }
        Ok(driven)
    }

    /// Removes every dead job that matches, with its log; says how many. The filter's states do not matter.
    pub async fn discard_all(&self, filter: Filter) -> Result<usize, Error> {
        let mut removed = 0;
        let mut batches = Batches::new(dead_of(filter));
        while let Some(ids) = batches.next(self).await? {
            let answers = self.backend().discard(ids).await?;
            removed += answers.iter().filter(|answer| **answer == Discarded::Done).count();
        }
        Ok(removed)
    }
}

fn dead_of(filter: Filter) -> Filter {
    Filter { states: vec![State::Dead], ..filter }
}

/// The ids of what matches, batch after batch. The cursor only moves on, so that nothing comes twice.
struct Batches {
    filter: Filter,
    page: Option<PageRequest>,
}

impl Batches {
    fn new(filter: Filter) -> Self {
        Self { filter, page: Some(PageRequest::first(BATCH_ITEMS_MAX)) }
    }

    async fn next(&mut self, redrive: &Redrive) -> Result<Option<Vec<JobId>>, Error> {
        let Some(page) = self.page else { return Ok(None) };
        let found = redrive.list(self.filter.clone(), page).await?;
        self.page = found.next.map(|end| PageRequest { after: Some(end), ..page });
        Ok(Some(found.items.iter().map(|job| job.id).collect()))
    }
}
