//! Operator actions: list, cancel, run now, redrive, discard, and pause jobs and queues.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::records::{EVERY_QUEUE, QueuePause, Records};
use redrive_core::steps::{ForgetResult, PauseResult};
use redrive_core::store::{
    CancelResult, DiscardResult, Filter, Page, PageRequest, RedriveResult, RunNowResult,
};
use redrive_core::{Job, JobId, Queue, State};

use crate::{Error, Redrive};

impl Redrive {
    /// Reads a page of the jobs that match `filter`, newest first.
    ///
    /// States are those of [`Redrive::get`]. A page can have fewer jobs than its limit although more follow: `next` is none only at
    /// the end.
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
        let wanted = filter.states.clone();
        let stored = Filter { states: stored_states(&wanted), ..filter };
        let mut found = self.backend().list(stored, page).await?;
        self.show_states(&mut found.items).await?;
        found.items.retain(|job| wanted.is_empty() || wanted.contains(&job.state));
        Ok(found)
    }

    /// Reads a page of the dead letters of a queue, or of all queues, newest first.
    ///
    /// ```
    /// # use redrive::{PageRequest, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// for job in redrive.dead_letters(None, PageRequest::first(100)).await?.items {
    ///     println!("{} {}: {:?}, {:?}", job.kind, job.id, job.reason, job.last_error);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn dead_letters(&self, queue: Option<&Queue>, page: PageRequest) -> Result<Page<Job>, Error> {
        self.list(dead_only(Filter { queue: queue.cloned(), ..Filter::default() }), page).await
    }

    /// Cancels a job together with its children and their children. A job that is not running ends at once. For a running job, the
    /// cancel is requested, and its worker ends it.
    ///
    /// ```
    /// # use redrive::{CancelResult, Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome).await?.id();
    /// assert_eq!(redrive.cancel(id).await?, CancelResult::Done);
    /// assert_eq!(redrive.cancel(id).await?, CancelResult::Ended(State::Cancelled));
    /// # Ok(()) }
    /// ```
    pub async fn cancel(&self, id: JobId) -> Result<CancelResult, Error> {
        let result = self.backend().cancel(vec![id]).await?.pop().unwrap_or(CancelResult::NotFound);
        if result == CancelResult::Done
            && let Some(parent) = self.get(id).await?.and_then(|job| job.parent)
        {
            self.backend().resume(vec![parent.id]).await?;
        }
        Ok(result)
    }

    /// Makes a job due at once: a job that was enqueued with a delay, or that waits for its next attempt. This costs no attempt.
    /// The time budget of a job that was not yet due counts from now.
    ///
    /// It does not end a durable wait. A handler in [`crate::Context::sleep`] goes back to sleep. A job that waits for a signal,
    /// its children or a free slot does not change, and the result says so.
    ///
    /// ```
    /// # use redrive::{Redrive, RunNowResult, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Remind { user: u32 }
    /// # impl Task for Remind { const KIND: &'static str = "remind"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let day = std::time::Duration::from_secs(24 * 60 * 60);
    /// let tomorrow = redrive.enqueue(Remind { user: 7 }).delay(day).await?.id();
    /// assert_eq!(redrive.run_now(tomorrow).await?, RunNowResult::Done);
    /// # Ok(()) }
    /// ```
    pub async fn run_now(&self, id: JobId) -> Result<RunNowResult, Error> {
        let result = self.backend().run_now(vec![id]).await?.pop();
        Ok(result.unwrap_or(RunNowResult::NotFound))
    }

    /// Redrives a dead job: gives it a new run, due at once. The steps that it has stored do not run again.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Redrive, RedriveResult, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Print;
    /// # impl Task for Print { const KIND: &'static str = "print"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// # let id = redrive.enqueue(Print).await?.id();
    /// # let ended = async { redrive.result::<Print>(id).await.unwrap_err(); };
    /// # let worker = redrive.worker().on(|_: Print, _: Context| async { Err(JobError::reject("no paper")) });
    /// # worker.run_until(ended).await?;
    /// assert_eq!(redrive.get(id).await?.unwrap().state, State::Dead);
    /// // After someone has refilled the paper:
    /// assert_eq!(redrive.redrive_job(id).await?, RedriveResult::Done);
    /// # assert_eq!(redrive.get(id).await?.unwrap().state, State::Pending);
    /// # Ok(()) }
    /// ```
    pub async fn redrive_job(&self, id: JobId) -> Result<RedriveResult, Error> {
        let result = self.backend().redrive(vec![id]).await?.pop();
        Ok(result.unwrap_or(RedriveResult::NotFound))
    }

    /// Redrives a dead job from its start: removes its stored steps, so that every step runs again.
    pub async fn redrive_from_start(&self, id: JobId) -> Result<RedriveResult, Error> {
        match self.backend().forget(vec![id]).await?.pop() {
            Some(ForgetResult::Done) => self.redrive_job(id).await,
            Some(ForgetResult::NotDead(state)) => Ok(RedriveResult::NotDead(state)),
            Some(ForgetResult::NotFound) | None => Ok(RedriveResult::NotFound),
        }
    }

    /// Redrives every dead job that matches `filter`, like [`Redrive::redrive_job`], and returns how many it redrove. The states in
    /// the filter are ignored.
    ///
    /// It works in batches from the newest job to the oldest. It redrives each job at most once, even if the job dies again
    /// meanwhile or someone else redrives it at the same time.
    ///
    /// ```
    /// # use redrive::{Filter, Reason, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let filter = Filter { reason: Some(Reason::AttemptsExhausted), ..Filter::default() };
    /// let redriven = redrive.redrive_all(filter).await?;
    /// # assert_eq!(redriven, 0);
    /// # Ok(()) }
    /// ```
    pub async fn redrive_all(&self, filter: Filter) -> Result<usize, Error> {
        let mut redriven = 0;
        let mut batches = JobBatches::new(dead_only(filter));
        while let Some(ids) = batches.next(self).await? {
            let results = self.backend().redrive(ids).await?;
            redriven += results.iter().filter(|result| **result == RedriveResult::Done).count();
        }
        Ok(redriven)
    }

    /// Discards a dead job: removes it with its attempt log.
    ///
    /// ```
    /// # use redrive::{DiscardResult, Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome).await?.id();
    /// assert_eq!(redrive.discard(id).await?, DiscardResult::NotDead(State::Pending));
    /// # Ok(()) }
    /// ```
    pub async fn discard(&self, id: JobId) -> Result<DiscardResult, Error> {
        let result = self.backend().discard(vec![id]).await?.pop();
        Ok(result.unwrap_or(DiscardResult::NotFound))
    }

    /// Discards every dead job that matches `filter`, and returns how many it discarded. The states in the filter are ignored.
    ///
    /// ```
    /// # use redrive::{Filter, Queue, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let filter = Filter { queue: Some(Queue::new("mail")?), ..Filter::default() };
    /// let discarded = redrive.discard_all(filter).await?;
    /// # assert_eq!(discarded, 0);
    /// # Ok(()) }
    /// ```
    pub async fn discard_all(&self, filter: Filter) -> Result<usize, Error> {
        let mut discarded = 0;
        let mut batches = JobBatches::new(dead_only(filter));
        while let Some(ids) = batches.next(self).await? {
            let results = self.backend().discard(ids).await?;
            discarded += results.iter().filter(|result| **result == DiscardResult::Done).count();
        }
        Ok(discarded)
    }

    /// Pauses a job. A running job finishes its attempt, and starts no further one until it is resumed.
    ///
    /// ```
    /// # use redrive::{PauseResult, Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome).await?.id();
    /// assert_eq!(redrive.pause_job(id).await?, PauseResult::Done(State::Waiting));
    /// assert_eq!(redrive.resume_job(id).await?, PauseResult::Done(State::Pending));
    /// # Ok(()) }
    /// ```
    pub async fn pause_job(&self, id: JobId) -> Result<PauseResult, Error> {
        Ok(self.backend().pause(vec![id]).await?.pop().unwrap_or(PauseResult::NotFound))
    }

    /// Resumes a paused job.
    pub async fn resume_job(&self, id: JobId) -> Result<PauseResult, Error> {
        Ok(self.backend().unpause(vec![id]).await?.pop().unwrap_or(PauseResult::NotFound))
    }

    /// Stops claims from a queue. Running jobs continue.
    ///
    /// ```
    /// # use redrive::{Queue, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let mail = Queue::new("mail")?;
    /// redrive.pause_queue(&mail).await?;
    /// // Jobs can be enqueued while the queue is paused. None is claimed.
    /// redrive.resume_queue(&mail).await?;
    /// # Ok(()) }
    /// ```
    pub async fn pause_queue(&self, queue: &Queue) -> Result<(), Error> {
        self.pauses().put(queue.as_str(), &QueuePause).await.map(drop).map_err(Error::from)
    }

    /// Ends [`Redrive::pause_queue`]. The queue stays paused while [`Redrive::pause_all_queues`] is in force.
    pub async fn resume_queue(&self, queue: &Queue) -> Result<(), Error> {
        Ok(self.pauses().remove(queue.as_str()).await?)
    }

    /// Stops claims from every queue. Running jobs continue.
    pub async fn pause_all_queues(&self) -> Result<(), Error> {
        self.pauses().put(EVERY_QUEUE, &QueuePause).await.map(drop).map_err(Error::from)
    }

    /// Ends [`Redrive::pause_all_queues`]. Queues that were paused by name stay paused.
    pub async fn resume_all_queues(&self) -> Result<(), Error> {
        Ok(self.pauses().remove(EVERY_QUEUE).await?)
    }

    fn pauses(&self) -> Records<'_, QueuePause> {
        Records::new(&**self.backend())
    }
}

fn dead_only(filter: Filter) -> Filter {
    Filter { states: vec![State::Dead], ..filter }
}

/// The stored states of jobs that may be shown in one of these states.
fn stored_states(shown: &[State]) -> Vec<State> {
    let mut stored = shown.to_vec();
    if shown.contains(&State::Waiting) {
        stored.extend([State::Pending, State::Retrying]);
    }
    stored
}

/// The ids of the jobs that match a filter, in batches. The cursor only moves forward, so each job comes once.
struct JobBatches {
    filter: Filter,
    page: Option<PageRequest>,
}

impl JobBatches {
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
