//! What the routes about tasks share: enqueueing, showing and telling.

use redrive_core::store::{Enqueued, PageRequest};
use redrive_core::{Job, JobId, NewJob, StoreError, Timestamp};
use redrive_delivery::KIND;
use tokio::time::Instant;

use crate::api::{self, Api};
use crate::auth::Caller;
use crate::creation::ReadyTask;
use crate::error::Answer;
use crate::walk::{PATIENCE, walk};
use crate::wire::event::TaskEvent;
use crate::wire::filter::Wanted;
use crate::wire::page::Page;
use crate::wire::status::Status;
use crate::wire::task::Task;

impl Api {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let (items, began) = (jobs.len(), Instant::now());
        let answer = self.store.enqueue(jobs).await;
        self.metrics.store_call("enqueue", items, began.elapsed(), answer.is_ok());
        if let Ok(answers) = &answer {
            let is_new = |answer: &&Enqueued| matches!(answer, Enqueued::Created(_));
            self.metrics.created(answers.iter().filter(is_new).count());
        }
        answer
    }

    /// Adds tasks, in one commit, each with how it is shown. A body that was stored or claimed for a repeat is let go.
    pub(crate) async fn enqueue_all(
        &self,
        tasks: Vec<ReadyTask>,
    ) -> Result<Vec<(Enqueued, Task)>, StoreError> {
        let mut shown = Vec::with_capacity(tasks.len());
        let mut jobs = Vec::with_capacity(tasks.len());
        for ReadyTask { job, task, body } in tasks {
            shown.push((task, body.map(|body| (job.id, job.tenant.clone(), body))));
            jobs.push(job);
        }
        let answers = self.enqueue(jobs).await?;
        let mut enqueued = Vec::with_capacity(answers.len());
        for (answer, (task, body)) in answers.into_iter().zip(shown) {
            match (answer, body) {
                (Enqueued::Created(_), _) | (_, None) => {}
                (
                    Enqueued::Existing(_) | Enqueued::Conflict(_) | Enqueued::Replaced(_),
                    Some((id, tenant, body)),
                ) => self.release_body(id, &tenant, &body).await,
            }
            enqueued.push((answer, task));
        }
        Ok(enqueued)
    }

    /// Whether a job is a task: a store may hold the library's jobs too.
    pub(crate) fn is_task(&self, job: &Job) -> bool {
        job.kind.as_str() == KIND
    }

    /// A job as its task.
    pub(crate) async fn task(&self, job: &Job) -> Answer<Task> {
        let policy = self.policies.content(&job.policy).await?;
        Ok(Task::show(job, policy.map(|policy| policy.max_attempts.get())))
    }

    /// A page of jobs as tasks.
    pub(crate) async fn tasks(
        &self,
        caller: &Caller,
        wanted: &Wanted,
        page: PageRequest,
    ) -> Answer<Page<Task>> {
        let walked = walk(&*self.store, wanted, page, PATIENCE).await?;
        let mut items = Vec::with_capacity(walked.items.len());
        for job in &walked.items {
            items.push(self.task(job).await?);
        }
        Ok(walked.page(items, &self.cursors(caller)))
    }

    /// Tells listeners of a task that was created.
    pub(crate) fn tell_created(&self, caller: &Caller, task: &Task) {
        let Ok(id) = task.task_id.parse::<JobId>() else { return };
        self.events.tell(id, &caller.acts_for, || TaskEvent {
            next_attempt_at: task.next_attempt_at,
            ..TaskEvent::new(id, Status::Pending, 0, Timestamp::from_ms(task.created_at))
        });
    }

    /// Tells listeners of a task that someone has changed.
    pub(crate) fn tell(&self, job: &Job) {
        let status = Status::from(job.state);
        self.events.tell(job.id, &job.tenant, || TaskEvent {
            next_attempt_at: job.state.is_claimable().then(|| job.next_run_at.as_ms()),
            ..TaskEvent::new(job.id, status, job.attempt, api::now())
        });
    }
}
