//! Mutations of enqueue.

use redrive_core::store::EnqueueResult;
use redrive_core::{NewJob, Store, StoreError};

use super::{MutantStore, Mutation};

impl MutantStore {
    pub(super) async fn mutated_enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        if self.mutation == Mutation::EnqueueForgets && self.tick().is_multiple_of(5) {
            return self.pretend_to_enqueue(jobs);
        }
        if self.mutation == Mutation::KeyIgnored {
            let without_keys = jobs.into_iter().map(|job| NewJob { idempotency: None, ..job });
            return self.store.enqueue(without_keys.collect()).await;
        }
        if self.mutation == Mutation::UniqueIgnored {
            let without_unique = jobs.into_iter().map(|job| NewJob { unique: None, ..job });
            return self.store.enqueue(without_unique.collect()).await;
        }
        if self.mutation == Mutation::FingerprintIgnored {
            let answers = self.store.enqueue(jobs).await?;
            return Ok(answers.into_iter().map(hide_conflict).collect());
        }
        if self.mutation == Mutation::BatchHalfApplied {
            let mut answers = Vec::new();
            for job in jobs {
                answers.extend(self.store.enqueue(vec![job]).await?);
            }
            return Ok(answers);
        }
        self.store.enqueue(jobs).await
    }

    pub(super) async fn mutated_find(
        &self,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        if self.mutation == Mutation::FindNeverFinds {
            let without_keys = jobs.into_iter().map(|job| NewJob { idempotency: None, ..job });
            return self.store.find(without_keys.collect()).await;
        }
        self.store.find(jobs).await
    }

    /// Reports success and adds nothing.
    fn pretend_to_enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        self.store.step(|model, _| {
            let answer = |job: &NewJob| match model.knows(job) {
                true => EnqueueResult::Existing(job.id),
                false => EnqueueResult::Created(job.id),
            };
            Ok(jobs.iter().map(answer).collect())
        })
    }
}

fn hide_conflict(answer: EnqueueResult) -> EnqueueResult {
    match answer {
        EnqueueResult::Conflict(id) => EnqueueResult::Existing(id),
        EnqueueResult::Created(_) | EnqueueResult::Existing(_) | EnqueueResult::Replaced(_) => answer,
    }
}
