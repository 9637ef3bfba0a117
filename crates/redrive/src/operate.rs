//! Lists jobs, runs them now, and gives dead ones a fresh run.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::steps::Forgotten;
use redrive_core::store::{Discarded, Filter, Page, PageRequest, Redriven, RunNow};
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
    ///
    /// ```
    /// # use redrive::{PageRequest, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// for job in redrive.dead(None, PageRequest::first(100)).await?.items {
    ///     println!("{} {}: {:?}, {:?}", job.kind, job.id, job.reason, job.last_error);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn dead(&self, queue: Option<&Queue>, page: PageRequest) -> Result<Page<Job>, Error> {
        self.list(dead_of(Filter { queue: queue.cloned(), ..Filter::default() }), page).await
    }

    /// Makes a job due now that waits for its time: one that was enqueued with a delay, or one between two attempts. It costs
    /// no attempt of its own. The time budget of a job that was not yet due counts from now.
    ///
    /// It ends no durable wait: a handler in [`crate::Context::sleep`] goes back to sleep, and a job that waits for a signal,
    /// for children or for a limit stays as it is, which the answer says.
    ///
    /// ```
    /// # use redrive::{Redrive, RunNow, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Remind { user: u32 }
    /// # impl Task for Remind { const KIND: &'static str = "remind"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let day = std::time::Duration::from_secs(24 * 60 * 60);
    /// let tomorrow = redrive.enqueue(Remind { user: 7 }).delay(day).await?.id();
    /// assert_eq!(redrive.run_now(tomorrow).await?, RunNow::Done);
    /// # Ok(()) }
    /// ```
    pub async fn run_now(&self, id: JobId) -> Result<RunNow, Error> {
        let answer = self.backend().run_now(vec![id]).await?.pop();
        Ok(answer.unwrap_or(RunNow::NotFound))
    }

    /// Gives a dead job a fresh run, due at once, which goes on from its remembered steps.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Redrive, Redriven, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Print;
    /// # impl Task for Print { const KIND: &'static str = "print"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// # let id = redrive.enqueue(Print).await?.id();
    /// # let ended = async { redrive.result::<Print>(id).await.unwrap_err(); };
    /// # let worker = redrive.worker().on(|_: Print, _: Context| async { Err(JobError::reject("no paper")) });
    /// # worker.run_until(ended).await?;
    /// assert_eq!(redrive.get(id).await?.unwrap().state, State::Dead);
    /// // Once somebody has refilled the paper:
    /// assert_eq!(redrive.retry_dead(id).await?, Redriven::Done);
    /// # assert_eq!(redrive.get(id).await?.unwrap().state, State::Pending);
    /// # Ok(()) }
    /// ```
    pub async fn retry_dead(&self, id: JobId) -> Result<Redriven, Error> {
        let answer = self.backend().redrive(vec![id]).await?.pop();
        Ok(answer.unwrap_or(Redriven::NotFound))
    }

    /// Gives a dead job a fresh run from its start: its remembered steps are removed, and every step runs again.
    pub async fn retry_dead_from_start(&self, id: JobId) -> Result<Redriven, Error> {
        match self.backend().forget(vec![id]).await?.pop() {
            Some(Forgotten::Done) => self.retry_dead(id).await,
            Some(Forgotten::NotDead(state)) => Ok(Redriven::NotDead(state)),
            Some(Forgotten::NotFound) | None => Ok(Redriven::NotFound),
        }
    }

    /// Gives every dead job that matches a fresh run, as [`Redrive::retry_dead`] does; returns how many. The filter's states do
    /// not matter.
    ///
    /// It goes from the newest to the oldest in batches. A job that dies again meanwhile is not driven twice, and one that
    /// someone else drives at the same time is driven once.
    ///
    /// ```
    /// # use redrive::{Filter, Reason, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let gave_up = Filter { reason: Some(Reason::AttemptsExhausted), ..Filter::default() };
    /// let driven = redrive.retry_all_dead(gave_up).await?;
    /// # assert_eq!(driven, 0);
    /// # Ok(()) }
    /// ```
    pub async fn retry_all_dead(&self, filter: Filter) -> Result<usize, Error> {
        let mut driven = 0;
        let mut batches = Batches::new(dead_of(filter));
        while let Some(ids) = batches.next(self).await? {
            let answers = self.backend().redrive(ids).await?;
            driven += answers.iter().filter(|answer| **answer == Redriven::Done).count();
        }
        Ok(driven)
    }

    /// Removes every dead job that matches, with its log; says how many. The filter's states do not matter.
    ///
    /// ```
    /// # use redrive::{Filter, Queue, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let of_mail = Filter { queue: Some(Queue::new("mail")?), ..Filter::default() };
    /// let removed = redrive.discard_all(of_mail).await?;
    /// # assert_eq!(removed, 0);
    /// # Ok(()) }
    /// ```
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
