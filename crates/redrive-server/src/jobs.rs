//! What the routes about jobs of any kind share: finding, showing and telling.

use redrive_core::store::PageRequest;
use redrive_core::{Job, JobId};

use crate::api::Api;
use crate::auth::Caller;
use crate::error::{Answer, Problem};
use crate::walk::{PATIENCE, walk};
use crate::wire::content::Detail;
use crate::wire::filter::Wanted;
use crate::wire::job;
use crate::wire::page::Page;

impl Api {
    /// A job of any kind that the caller may know of.
    pub(crate) async fn find_job(&self, caller: &Caller, id: JobId) -> Answer<Job> {
        let job = self.store.get(vec![id]).await?.pop().flatten();
        job.filter(|job| caller.sees_job(job)).ok_or_else(|| no_job(id))
    }

    /// A job as it is shown.
    pub(crate) async fn job(&self, job: &Job, detail: Detail) -> Answer<job::Job> {
        let policy = self.policies.content(&job.policy).await?;
        Ok(job::Job::show(job, policy.map(|policy| policy.max_attempts.get()), detail))
    }

    /// A page of jobs as they are listed.
    pub(crate) async fn jobs(
        &self,
        caller: &Caller,
        wanted: &Wanted,
        page: PageRequest,
    ) -> Answer<Page<job::Job>> {
        let walked = walk(&*self.store, wanted, page, PATIENCE).await?;
        let mut items = Vec::with_capacity(walked.items.len());
        for job in &walked.items {
            items.push(self.job(job, caller.detail(Detail::Listed)).await?);
        }
        Ok(walked.page(items, &self.cursors(caller)))
    }

    /// A job that the caller has just changed; listeners hear of it if it is a task.
    pub(crate) async fn changed_job(&self, caller: &Caller, id: JobId) -> Answer<job::Job> {
        let job = self.find_job(caller, id).await?;
        if self.is_task(&job) {
            self.tell(&job);
        }
        self.job(&job, caller.detail(Detail::Whole)).await
    }
}

/// There is no such job, as far as the caller may know.
pub(crate) fn no_job(id: JobId) -> Problem {
    Problem::not_found("job", &id.to_string())
}
