//! Settles jobs together with the writes of an on_end closure, in one transaction.

use std::sync::Arc;

use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{Job, Outcome, Reason, State, StoreError};
use redrive_worker::Settler;
use serde::de::DeserializeOwned;

use crate::{Error, Redrive, Task, json};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "postgres")]
pub(crate) use postgres::PostgresSettler;
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::SqliteSettler;

/// A job that has ended, as an on_end closure sees it. See [`crate::TaskWorker::on_end`].
#[derive(Debug, Clone)]
pub struct EndedJob {
    /// The job as it was claimed.
    pub job: Arc<Job>,
    /// Its state: succeeded, dead or cancelled.
    pub state: State,
    /// Why it is dead.
    pub reason: Option<Reason>,
    /// The error of the last attempt.
    pub error: Option<String>,
    output: Option<Vec<u8>>,
}

impl EndedJob {
    fn new(job: &Arc<Job>, settlement: &Settlement, state: State) -> Self {
        Self {
            job: job.clone(),
            state,
            reason: settlement.verdict.reason(),
            error: settlement.error.clone(),
            output: settlement.verdict.output().map(<[u8]>::to_vec),
        }
    }

    /// The output of the handler, if the job has succeeded.
    pub fn output<O: DeserializeOwned>(&self) -> Option<O> {
        let output = self.output.as_deref().unwrap_or(b"null");
        serde_json::from_slice(output).ok().filter(|_| self.state == State::Succeeded)
    }
}

/// A settlement, with the task of its job if the settlement may end the job.
struct TaskSettlement<T> {
    job: Arc<Job>,
    settlement: Settlement,
    task: Option<T>,
}

impl<T> TaskSettlement<T> {
    /// The arguments of the closure, if the job has ended.
    fn ended_job(&self, result: SettleResult) -> Option<(&T, EndedJob)> {
        match (result, &self.task) {
            (SettleResult::Applied(state), Some(task)) if state.is_final() => {
                Some((task, EndedJob::new(&self.job, &self.settlement, state)))
            }
            (SettleResult::Applied(_) | SettleResult::LeaseLost, _) => None,
        }
    }
}

/// Reads the tasks of the jobs that may end now.
async fn with_tasks<T: Task>(
    redrive: &Redrive,
    jobs: &[Arc<Job>],
    settlements: &[Settlement],
) -> Result<Vec<TaskSettlement<T>>, StoreError> {
    let mut with_tasks = Vec::with_capacity(jobs.len());
    for (job, settlement) in jobs.iter().zip(settlements) {
        let effect = settlement.verdict.effect();
        let may_end = effect.state.is_final() || effect.state_if_cancelling.is_final();
        let task = if may_end { read_task(redrive, job).await? } else { None };
        with_tasks.push(TaskSettlement { job: job.clone(), settlement: settlement.clone(), task });
    }
    Ok(with_tasks)
}

/// The task of a job. None if its payload is lost or cannot be parsed: the attempt was rejected for the same reason.
async fn read_task<T: Task>(redrive: &Redrive, job: &Job) -> Result<Option<T>, StoreError> {
    let fetched = match redrive.fetch_payload(job).await {
        Ok(fetched) => fetched,
        Err(Outcome::Reject(_)) => return Ok(None),
        Err(outcome) => {
            let why = outcome.error().unwrap_or("the payload cannot be read at the moment").to_owned();
            return Err(StoreError::Unavailable(why.into()));
        }
    };
    let read = json::read(T::KIND, fetched.as_deref().unwrap_or(&job.payload));
    if let Err(error) = &read {
        tracing::error!(job = %job.id, %error, "the job ends without its on_end closure because its payload cannot be read");
    }
    Ok(read.ok())
}

/// The name of the closure of a kind, in errors.
fn closure_name<T: Task>() -> String {
    format!("the on_end closure of a {} job", T::KIND)
}

/// Converts the error of a closure for the worker, which retries the settlement after a temporary error.
fn settle_error(error: Error) -> StoreError {
    match error {
        Error::Store(error) if error.is_transient() => error,
        Error::Panicked(panic) => StoreError::Failed(Box::new(panic)),
        error => StoreError::Failed(Box::new(error)),
    }
}

/// Builds the settler of a kind. Returns none if the closure is for a different store than the one of the handle.
pub(crate) type BuildSettler = Box<dyn FnOnce(&Redrive) -> Option<Arc<dyn Settler>> + Send>;
