//! What durable jobs ask of a store, one file for each verb.

use async_trait::async_trait;
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Steps, Swept};
use redrive_core::store::check_batch;
use redrive_core::{JobId, Lease, SignalName, StoreError};
use uuid::Uuid;

use crate::{PostgresStore, forget, hold, recall, remember, resume, signal, sweep};

#[async_trait]
impl Steps for PostgresStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        recall::recall(&self.inner, id, from, limit).await
    }

    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError> {
        Memory::check_all(&memories)?;
        let children = memories.iter().any(|memory| !memory.children.is_empty());
        let remembered = remember::remember(&self.inner, memories).await?;
        self.inner.wake_if(children);
        Ok(remembered)
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
        Signal::check_all(&signals)?;
        signal::signal(&self.inner, &signals).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        signal::pending(&self.inner, job, &names, limit).await
    }

    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        check_batch(signals.len())?;
        signal::set_aside(&self.inner, lease, &signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        check_batch(ids.len())?;
        let resumed = resume::resume(&self.inner, &ids).await?;
        self.inner.wake_if(resumed.contains(&true));
        Ok(resumed)
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
        check_batch(limit)?;
        let swept = sweep::sweep(&self.inner, after, limit).await?;
        self.inner.wake_if(!swept.resumed.is_empty());
        Ok(swept)
    }

    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        check_batch(ids.len())?;
        hold::hold(&self.inner, &ids).await
    }

    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        check_batch(ids.len())?;
        let (unheld, resumed) = hold::unhold(&self.inner, &ids).await?;
        self.inner.wake_if(resumed);
        Ok(unheld)
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        check_batch(ids.len())?;
        forget::forget(&self.inner, &ids).await
    }
}
