//! The code that the routes of jobs and tasks share: it enqueues, finds, lists and shows jobs, and publishes their changes.

use redrive_core::store::{EnqueueResult, PageRequest};
use redrive_core::{Job, JobId, NewJob, StoreError, Timestamp};
use redrive_delivery::KIND;
use tokio::time::Instant;

use crate::api::{self, Api};
use crate::auth::Caller;
use crate::creation::ReadyTask;
use crate::error::{Answer, Problem};
use crate::job_search::{LIST_SEARCH_TIME, search_jobs};
use crate::present;
use crate::selection::JobSelection;
use redrive_wire::content::Detail;
use redrive_wire::event::TaskEvent;
use redrive_wire::job;
use redrive_wire::page::Page;
use redrive_wire::state::JobState;
use redrive_wire::task::Task;

impl Api {
    /// Enqueues tasks in one commit, publishes those that are new, and returns each result with the task as the API shows it. If a
    /// task turns out to be a repeat, its body is released.
    pub(crate) async fn enqueue_all(
        &self,
        caller: &Caller,
        tasks: Vec<ReadyTask>,
    ) -> Result<Vec<(EnqueueResult, Task)>, StoreError> {
        let mut shown = Vec::with_capacity(tasks.len());
        let mut jobs = Vec::with_capacity(tasks.len());
        for ReadyTask { job, task, body } in tasks {
            shown.push((task, body.map(|body| (job.id, job.tenant.clone(), body))));
            jobs.push(job);
        }
        let creations = self.events.creations(jobs.iter().map(|job| job.id));
        let results = self.enqueue(jobs).await?;
        for (result, (task, _)) in results.iter().zip(&shown) {
            if let EnqueueResult::Created(id) = result {
                creations.publish(*id, &caller.acts_for, || created_event(*id, task));
            }
        }
        drop(creations);
        let mut enqueued = Vec::with_capacity(results.len());
        for (result, (task, body)) in results.into_iter().zip(shown) {
            match (result, body) {
                (EnqueueResult::Created(_), _) | (_, None) => {}
                (
                    EnqueueResult::Existing(_) | EnqueueResult::Conflict(_) | EnqueueResult::Replaced(_),
                    Some((id, tenant, body)),
                ) => self.release_body(id, &tenant, &body).await,
            }
            enqueued.push((result, task));
        }
        Ok(enqueued)
    }

    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let (items, began) = (jobs.len(), Instant::now());
        let results = self.store.enqueue(jobs).await;
        self.metrics.store_call("enqueue", items, began.elapsed(), results.is_ok());
        if let Ok(results) = &results {
            let is_new = |result: &&EnqueueResult| matches!(result, EnqueueResult::Created(_));
            self.metrics.created(results.iter().filter(is_new).count());
        }
        results
    }

    /// Finds a job of any kind. A job that the caller may not see counts as missing.
    pub(crate) async fn find_job(&self, caller: &Caller, id: JobId) -> Answer<Job> {
        let job = self.store.get(vec![id]).await?.pop().flatten();
        job.filter(|job| caller.sees_job(job)).ok_or_else(|| no_job(id))
    }

    /// Whether a job is a task. The store may also hold jobs of the library.
    pub(crate) fn is_task(&self, job: &Job) -> bool {
        job.kind.as_str() == KIND
    }

    /// A job as the API shows it.
    pub(crate) async fn job(&self, job: &Job, detail: Detail) -> Answer<job::Job> {
        Ok(job::Job::show(job, self.max_attempts(job).await?, detail, api::now()))
    }

    /// A job as the API shows a task.
    pub(crate) async fn task(&self, job: &Job) -> Answer<Task> {
        Ok(present::task(job, self.max_attempts(job).await?, api::now()))
    }

    async fn max_attempts(&self, job: &Job) -> Answer<Option<u32>> {
        let policy = self.policies.content(&job.policy).await?;
        Ok(policy.map(|policy| policy.max_attempts.get()))
    }

    /// A page of jobs.
    pub(crate) async fn jobs(
        &self,
        caller: &Caller,
        selection: &JobSelection,
        page: PageRequest,
    ) -> Answer<Page<job::Job>> {
        let found = search_jobs(&*self.store, selection, page, LIST_SEARCH_TIME).await?;
        let mut items = Vec::with_capacity(found.items.len());
        for job in &found.items {
            items.push(self.job(job, caller.detail(Detail::Listed)).await?);
        }
        Ok(found.page(items, &self.cursors(caller)))
    }

    /// A page of tasks.
    pub(crate) async fn tasks(
        &self,
        caller: &Caller,
        selection: &JobSelection,
        page: PageRequest,
    ) -> Answer<Page<Task>> {
        let found = search_jobs(&*self.store, selection, page, LIST_SEARCH_TIME).await?;
        let mut items = Vec::with_capacity(found.items.len());
        for job in &found.items {
            items.push(self.task(job).await?);
        }
        Ok(found.page(items, &self.cursors(caller)))
    }

    /// Reads a job that the caller has just changed, and publishes the change if the job is a task.
    pub(crate) async fn changed_job(&self, caller: &Caller, id: JobId) -> Answer<job::Job> {
        let job = self.find_job(caller, id).await?;
        if self.is_task(&job) {
            self.publish_change(&job);
        }
        self.job(&job, caller.detail(Detail::Whole)).await
    }

    /// Publishes the event of a task that a caller or an operator changed.
    pub(crate) fn publish_change(&self, job: &Job) {
        let state = JobState::of(job, api::now());
        self.events.publish(job.id, &job.tenant, || TaskEvent {
            next_attempt_at: job.state.is_claimable().then(|| job.next_run_at.as_ms()),
            ..TaskEvent::new(job.id, state, job.attempt, api::now())
        });
    }
}

/// The event of a new task.
fn created_event(id: JobId, task: &Task) -> TaskEvent {
    TaskEvent {
        next_attempt_at: task.next_attempt_at,
        ..TaskEvent::new(id, JobState::Pending, 0, Timestamp::from_ms(task.created_at))
    }
}

/// The answer for a job that does not exist, or that the caller may not see.
pub(crate) fn no_job(id: JobId) -> Problem {
    Problem::not_found("job", &id.to_string())
}
