//! Flaws of enqueue.

use redrive_core::store::Enqueued;
use redrive_core::{NewJob, Store, StoreError};

use super::{Flaw, Mutant};

impl Mutant {
    pub(super) async fn flawed_enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        if self.flaw == Flaw::EnqueueForgets && self.tick().is_multiple_of(5) {
            return self.pretend(jobs);
        }
        if self.flaw == Flaw::KeyIgnored {
            let keyless = jobs.into_iter().map(|job| NewJob { idempotency: None, ..job });
            return self.store.enqueue(keyless.collect()).await;
        }
        if self.flaw == Flaw::UniqueIgnored {
            let free = jobs.into_iter().map(|job| NewJob { unique: None, ..job });
            return self.store.enqueue(free.collect()).await;
        }
        if self.flaw == Flaw::FingerprintIgnored {
            let answers = self.store.enqueue(jobs).await?;
            return Ok(answers.into_iter().map(blind).collect());
        }
        if self.flaw == Flaw::BatchHalfApplied {
            let mut answers = Vec::new();
            for job in jobs {
                answers.extend(self.store.enqueue(vec![job]).await?);
            }
            return Ok(answers);
        }
        self.store.enqueue(jobs).await
    }

    pub(super) async fn flawed_find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        if self.flaw == Flaw::FindBlind {
            let keyless = jobs.into_iter().map(|job| NewJob { idempotency: None, ..job });
            return self.store.find(keyless.collect()).await;
        }
        self.store.find(jobs).await
    }

    /// Says that all is well and adds nothing.
    fn pretend(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        self.store.step(|model, _| {
            let answer = |job: &NewJob| match model.knows(job) {
                true => Enqueued::Existing(job.id),
                false => Enqueued::Created(job.id),
            };
            Ok(jobs.iter().map(answer).collect())
        })
    }
}

fn blind(answer: Enqueued) -> Enqueued {
    match answer {
        Enqueued::Conflict(id) => Enqueued::Existing(id),
        Enqueued::Created(_) | Enqueued::Existing(_) | Enqueued::Replaced(_) => answer,
    }
}
