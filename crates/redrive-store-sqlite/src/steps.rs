//! What durable jobs add to the store.

use async_trait::async_trait;
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::check_batch;
use redrive_core::{JobId, Lease, SignalName, Steps, StoreError};
use uuid::Uuid;

use crate::SqliteStore;
use crate::{forget, hold, recall, remember, resume, signal};

#[async_trait]
impl Steps for SqliteStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.inner.read(move |conn, _| recall::recall(conn, id, from, limit)).await
    }

    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError> {
        Memory::check_all(&memories)?;
        self.inner.write(move |tx| remember::remember(tx, &memories)).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
        Signal::check_all(&signals)?;
        self.inner.write(move |tx| signal::signal(tx, &signals)).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.inner.read(move |conn, _| signal::pending(conn, job, &names, limit)).await
    }

    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        check_batch(signals.len())?;
        self.inner.write(move |tx| remember::set_aside(tx, lease, &signals)).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| resume::resume(tx, &ids)).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
        check_batch(limit)?;
        self.inner.write(move |tx| resume::sweep(tx, after, limit)).await
    }

    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| hold::hold(tx, &ids)).await
    }

    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| hold::unhold(tx, &ids)).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| forget::forget(tx, &ids)).await
    }
}
