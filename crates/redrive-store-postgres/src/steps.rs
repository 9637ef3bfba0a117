//! Durable jobs: steps, signals, and the jobs that wait for something.

pub(crate) mod remember;
pub(crate) mod resume;
mod signals;

use async_trait::async_trait;
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, Steps, SweepResult,
};
use redrive_core::store::check_batch;
use redrive_core::{JobId, Lease, SignalName, StoreError};
use uuid::Uuid;

use crate::{PostgresStore, operate};

#[async_trait]
impl Steps for PostgresStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        Ok(remember::recall(&self.inner, id, from, limit).await?)
    }

    async fn remember(&self, new_steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        NewStep::check_all(&new_steps)?;
        let has_children = new_steps.iter().any(|new_step| !new_step.children.is_empty());
        let remembered = remember::remember(&self.inner, new_steps).await?;
        self.inner.wake_if(has_children);
        Ok(remembered)
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        Signal::check_all(&signals)?;
        Ok(signals::signal(&self.inner, &signals).await?)
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        Ok(signals::pending(&self.inner, job, &names, limit).await?)
    }

    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        check_batch(signals.len())?;
        Ok(signals::skip_signals(&self.inner, lease, &signals).await?)
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        check_batch(ids.len())?;
        let resumed = resume::resume(&self.inner, &ids).await?;
        self.inner.wake_if(resumed.contains(&true));
        Ok(resumed)
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        check_batch(limit)?;
        let swept = resume::sweep(&self.inner, after, limit).await?;
        self.inner.wake_if(!swept.resumed.is_empty());
        Ok(swept)
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        check_batch(ids.len())?;
        Ok(operate::pause(&self.inner, &ids).await?)
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        check_batch(ids.len())?;
        let (unpaused, resumed) = operate::unpause(&self.inner, &ids).await?;
        self.inner.wake_if(resumed);
        Ok(unpaused)
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        check_batch(ids.len())?;
        Ok(operate::forget(&self.inner, &ids).await?)
    }
}
