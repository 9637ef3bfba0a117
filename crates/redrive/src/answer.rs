//! The answer to an enqueue: the job that it led to, or the conflict that kept the task out.

use redrive_core::store::Enqueued;
use redrive_core::{JobId, NewJob};

use crate::Error;

/// The job that an enqueue led to. The job carries out the task of the caller; a key that belongs to a different task is an
/// [`Error::Conflict`] instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnqueuedJob {
    /// The enqueue created this job.
    Created(JobId),
    /// This job existed before: the same task was enqueued under the same idempotency key, or the unique key belongs to it.
    Existing(JobId),
    /// This job had not started, and will run the new task instead of its former one: see [`crate::Enqueue::replace`].
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

    /// What a store's answer means for `job`.
    pub(crate) fn of(answer: Enqueued, job: &NewJob) -> Result<Self, Conflict> {
        Self::under_key(answer, key_of(job))
    }

    /// What a store's answer means for a job with this idempotency key.
    pub(crate) fn under_key(answer: Enqueued, key: Option<String>) -> Result<Self, Conflict> {
        match answer {
            Enqueued::Created(id) => Ok(Self::Created(id)),
            Enqueued::Existing(id) => Ok(Self::Existing(id)),
            Enqueued::Replaced(id) => Ok(Self::Replaced(id)),
            Enqueued::Conflict(existing) => Err(Conflict { key: key.unwrap_or_default(), existing }),
        }
    }
}

/// The idempotency key of a job.
pub(crate) fn key_of(job: &NewJob) -> Option<String> {
    job.idempotency.as_ref().map(|idempotency| idempotency.key.to_string())
}

/// A task that was not enqueued, because its idempotency key belongs to a job with a different task, queue, priority or policy.
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

/// A call of [`crate::Redrive::enqueue_all`] in which some keys belong to different tasks. Every other task is enqueued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct BatchConflict {
    /// The answer to each task, in the order of the tasks.
    pub answers: Vec<Result<EnqueuedJob, Conflict>>,
}

impl BatchConflict {
    /// The tasks that were not enqueued, each by its position in the batch, counted from 0.
    pub fn conflicts(&self) -> impl Iterator<Item = (usize, &Conflict)> {
        let answers = self.answers.iter().enumerate();
        answers.filter_map(|(position, answer)| Some((position, answer.as_ref().err()?)))
    }

    fn message(&self) -> String {
        let count = self.conflicts().count();
        let first = self.conflicts().next();
        let first =
            first.map_or(String::new(), |(position, conflict)| format!("task {position}: {conflict}"));
        format!(
            "{count} of {} tasks were not enqueued, all others were; the first conflict is {first}",
            self.answers.len()
        )
    }
}

/// The jobs that a batch led to, or all answers if one of them is a conflict.
pub(crate) fn all_enqueued(answers: Vec<Result<EnqueuedJob, Conflict>>) -> Result<Vec<EnqueuedJob>, Error> {
    if answers.iter().any(Result::is_err) {
        return Err(BatchConflict { answers }.into());
    }
    Ok(answers.into_iter().flatten().collect())
}
