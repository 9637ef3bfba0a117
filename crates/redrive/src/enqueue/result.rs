//! The result of an enqueue: a job, or a conflict.

use redrive_core::store::EnqueueResult;
use redrive_core::{JobId, NewJob};

use crate::Error;

/// The result of an enqueue: the job that does the work. If the key belongs to a different task, the result is an
/// [`Error::Conflict`] instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnqueuedJob {
    /// The enqueue created this job.
    Created(JobId),
    /// This job existed before, with the same idempotency key and task, or with the same unique key.
    Existing(JobId),
    /// This job had not started, and now has the new payload. See [`crate::Enqueue::replace`].
    Replaced(JobId),
}

impl EnqueuedJob {
    /// The id of the job.
    pub fn id(self) -> JobId {
        match self {
            Self::Created(id) | Self::Existing(id) | Self::Replaced(id) => id,
        }
    }

    /// Whether the enqueue created the job.
    pub fn is_new(self) -> bool {
        matches!(self, Self::Created(_))
    }

    /// Converts the store's result for `job`.
    pub(crate) fn of(result: EnqueueResult, job: &NewJob) -> Result<Self, Conflict> {
        Self::with_key(result, key_of(job))
    }

    /// Converts the store's result for a job with this idempotency key.
    pub(crate) fn with_key(result: EnqueueResult, key: Option<String>) -> Result<Self, Conflict> {
        match result {
            EnqueueResult::Created(id) => Ok(Self::Created(id)),
            EnqueueResult::Existing(id) => Ok(Self::Existing(id)),
            EnqueueResult::Replaced(id) => Ok(Self::Replaced(id)),
            EnqueueResult::Conflict(existing) => Err(Conflict { key: key.unwrap_or_default(), existing }),
        }
    }
}

/// The idempotency key of a job.
pub(crate) fn key_of(job: &NewJob) -> Option<String> {
    job.idempotency.as_ref().map(|idempotency| idempotency.key.to_string())
}

/// The task was not enqueued, because its idempotency key belongs to a job with a different task, queue, priority or policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the idempotency key {key:?} belongs to job {existing}, which was enqueued with a different task, queue, priority or policy; \
     use another key, or send exactly the same request"
)]
pub struct Conflict {
    /// The idempotency key of the task.
    pub key: String,
    /// The job that the key belongs to.
    pub existing: JobId,
}

/// The result of a [`crate::Redrive::enqueue_all`] in which some keys belong to different tasks. All other tasks are enqueued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct BatchConflict {
    /// The result for each task, in the order of the tasks.
    pub results: Vec<Result<EnqueuedJob, Conflict>>,
}

impl BatchConflict {
    /// The conflicts, each with the position of its task in the batch, counted from 0.
    pub fn conflicts(&self) -> impl Iterator<Item = (usize, &Conflict)> {
        let results = self.results.iter().enumerate();
        results.filter_map(|(position, result)| Some((position, result.as_ref().err()?)))
    }

    fn message(&self) -> String {
        let count = self.conflicts().count();
        let first = self.conflicts().next();
        let first =
            first.map_or(String::new(), |(position, conflict)| format!("task {position}: {conflict}"));
        format!(
            "{count} of {} tasks were not enqueued, and all others were; the first conflict is {first}",
            self.results.len()
        )
    }
}

/// The jobs of a batch. If one of the results is a conflict, the error has all of them.
pub(crate) fn all_enqueued(results: Vec<Result<EnqueuedJob, Conflict>>) -> Result<Vec<EnqueuedJob>, Error> {
    if results.iter().any(Result::is_err) {
        return Err(BatchConflict { results }.into());
    }
    Ok(results.into_iter().flatten().collect())
}
