//! What is written with the end of a job: in the transaction that ends it, or not at all.

use std::sync::Arc;

use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, Outcome, Reason, State, StoreError};
use redrive_worker::Settler;
use serde::de::DeserializeOwned;

use crate::{Error, Redrive, Task, json};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "postgres")]
pub(crate) use postgres::InPostgres;
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::InSqlite;

/// How a job has ended.
#[derive(Debug, Clone)]
pub struct End {
    /// The job as it was claimed.
    pub job: Arc<Job>,
    /// Succeeded, dead or cancelled.
    pub state: State,
    /// Why it is dead.
    pub reason: Option<Reason>,
    /// What went wrong in the last attempt.
    pub error: Option<String>,
    output: Option<Vec<u8>>,
}

impl End {
    fn new(job: &Arc<Job>, settlement: &Settlement, state: State) -> Self {
        Self {
            job: job.clone(),
            state,
            reason: settlement.verdict.reason(),
            error: settlement.error.clone(),
            output: settlement.verdict.output().map(<[u8]>::to_vec),
        }
    }

    /// What the handler returned, if the job has succeeded.
    pub fn output<O: DeserializeOwned>(&self) -> Option<O> {
        let output = self.output.as_deref().unwrap_or(b"null");
        serde_json::from_slice(output).ok().filter(|_| self.state == State::Succeeded)
    }
}

/// A settlement with what its ending needs, if it may end the job.
struct Ending<T> {
    job: Arc<Job>,
    settlement: Settlement,
    task: Option<T>,
}

impl<T> Ending<T> {
    /// The task and how it ended, if it has.
    fn ended(&self, answer: Settled) -> Option<(&T, End)> {
        match (answer, &self.task) {
            (Settled::Applied(state), Some(task)) if state.is_final() => {
                Some((task, End::new(&self.job, &self.settlement, state)))
            }
            (Settled::Applied(_) | Settled::LeaseLost, _) => None,
        }
    }
}

/// Reads the tasks of jobs that may end now.
async fn endings<T: Task>(
    redrive: &Redrive,
    jobs: &[Arc<Job>],
    settlements: &[Settlement],
) -> Result<Vec<Ending<T>>, StoreError> {
    let mut endings = Vec::with_capacity(jobs.len());
    for (job, settlement) in jobs.iter().zip(settlements) {
        let effect = settlement.verdict.effect();
        let may_end = effect.state.is_final() || effect.state_if_cancelling.is_final();
        let task = if may_end { read(redrive, job).await? } else { None };
        endings.push(Ending { job: job.clone(), settlement: settlement.clone(), task });
    }
    Ok(endings)
}

/// The task of a job; none where it is lost or no task of the kind, which its attempt has died of as well.
async fn read<T: Task>(redrive: &Redrive, job: &Job) -> Result<Option<T>, StoreError> {
    let fetched = match redrive.fetch(job).await {
        Ok(fetched) => fetched,
        Err(Outcome::Reject(_)) => return Ok(None),
        Err(outcome) => {
            let why = outcome.error().unwrap_or("its payload cannot be had for now").to_owned();
            return Err(StoreError::Unavailable(why.into()));
        }
    };
    let read = json::read(T::KIND, fetched.as_deref().unwrap_or(&job.payload));
    if let Err(error) = &read {
        tracing::error!(job = %job.id, %error, "ends without what belongs to its end: the payload cannot be read");
    }
    Ok(read.ok())
}

/// The name of a kind's ending in errors.
fn ending_of<T: Task>() -> String {
    format!("the ending of a {} job", T::KIND)
}

/// What a failed ending means for the settlement: it is tried again if it may pass, and is never the fault of the result.
fn unwritten(error: Error) -> StoreError {
    match error {
        Error::Store(error) if error.may_pass() => error,
        Error::Panicked(panic) => StoreError::Failed(Box::new(panic)),
        error => StoreError::Failed(Box::new(error)),
    }
}

/// The ending of a kind for one store; none where the handle is on another.
pub(crate) type Make = Box<dyn FnOnce(&Redrive) -> Option<Arc<dyn Settler>> + Send>;
