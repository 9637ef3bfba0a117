//! Runs transactions of an application on the store's own connections. The application's writes, enqueues, settlements and cancels in
//! one transaction are committed together or not at all.

mod enqueue_in;
#[cfg(feature = "sqlx")]
mod sqlx;

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive_core::store::{CancelResult, EnqueueResult, SettleResult, Settlement, check_batch};
use redrive_core::{CatchPanic, JobId, NewJob, StoreError};
use tokio_postgres::Client;

use crate::PostgresStore;
use crate::error::Error;
use crate::lifecycle::enqueue;
use crate::lifecycle::job_tree::{self, JobTree};
use crate::lifecycle::settle;
use crate::open::Inner;
use crate::operate;

/// The future of a transaction's body, which may borrow the transaction.
pub type TransactionFuture<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// An open transaction of an application, on one of the store's connections.
pub struct OpenTransaction<'a> {
    inner: &'a Inner,
    client: &'a Client,
    after_commit: Mutex<AfterCommit>,
}

/// Work that the store does after the commit.
#[derive(Default)]
struct AfterCommit {
    wake: bool,
    /// The jobs that were ended, with their descendants.
    ended: Vec<JobTree>,
}

impl OpenTransaction<'_> {
    /// The connection, for the application's own tables. Do not begin, commit or roll back on it.
    pub fn client(&self) -> &Client {
        self.client
    }

    /// Enqueues jobs. They exist after the commit, and never if the transaction is rolled back.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<EnqueueResult>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::check(jobs)?;
        let lanes = self.inner.use_lanes(jobs).await?;
        self.inner.lower_positions(jobs);
        let enqueued = enqueue::add_all(&mut &*self.client, &lanes, self.inner.manual_now(), jobs).await?;
        self.after_commit().wake |= enqueued.iter().any(enqueue::wakes);
        Ok(enqueued)
    }

    /// Settles jobs as [`redrive_core::Store::settle`] does, as part of the transaction.
    pub async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        let settled = settle::settle_in(self.inner, self.client, settlements).await?;
        let follow_ups = settlements.iter().any(|settlement| !settlement.follow_ups.is_empty());
        let mut after_commit = self.after_commit();
        after_commit.wake |=
            follow_ups || settled.slot_freed || settled.results.iter().any(settle::is_claimable);
        after_commit.ended.push(settled.tree);
        Ok(settled.results)
    }

    /// Cancels jobs as [`redrive_core::Store::cancel`] does, as part of the transaction.
    pub async fn cancel(&self, ids: &[JobId]) -> Result<Vec<CancelResult>, StoreError> {
        check_batch(ids.len())?;
        let (cancelled, tree) = operate::cancel_in(self.client, self.inner.manual_now(), ids).await?;
        self.after_commit().ended.push(tree);
        Ok(cancelled)
    }

    fn after_commit(&self) -> MutexGuard<'_, AfterCommit> {
        self.after_commit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostgresStore {
    /// Runs `body` in a transaction on one of the store's connections. Commits if `body` returns `Ok`, and rolls back otherwise. The whole
    /// call may take as long as [`Options::call_timeout`](crate::Options::call_timeout).
    ///
    /// As always on Postgres, a failed statement aborts the transaction. The result is an error then, even if `body` ignores the
    /// failure and returns `Ok`.
    ///
    /// If `body` panics, the transaction is rolled back and the error is [`StoreError::Failed`] with the
    /// [`redrive_core::Panic`] as its source.
    pub async fn transact<T, E, F>(&self, body: F) -> Result<Result<T, E>, StoreError>
    where
        F: for<'a> FnOnce(&'a OpenTransaction<'a>) -> TransactionFuture<'a, T, E> + Send,
        T: Send,
        E: Send,
    {
        let mut refused = None;
        let inner = &*self.inner;
        let committed = inner
            .pool
            .transaction(async |client| {
                let tx = OpenTransaction { inner, client, after_commit: Mutex::default() };
                let what = "the closure passed to transact_postgres";
                let result = CatchPanic::new(what, async { body(&tx).await }).await;
                let after_commit = tx.after_commit.into_inner().unwrap_or_else(PoisonError::into_inner);
                match result.map_err(Error::failed)? {
                    Ok(answer) => {
                        // Fails if the transaction is aborted. The server would silently turn COMMIT into a rollback.
                        client.batch_execute("SELECT").await?;
                        Ok((answer, after_commit))
                    }
                    Err(error) => {
                        refused = Some(error);
                        Err(Error::failed("the caller rolled the transaction back"))
                    }
                }
            })
            .await;
        match (committed, refused) {
            (_, Some(refused)) => Ok(Err(refused)),
            (Err(error), None) => Err(error.into()),
            (Ok((answer, after_commit)), None) => {
                let mut wake = after_commit.wake;
                for tree in &after_commit.ended {
                    wake |= job_tree::after_commit(inner, tree).await;
                }
                inner.wake_if(wake);
                Ok(Ok(answer))
            }
        }
    }

    /// Gives the lanes of these jobs their numbers, so that a later enqueue in a transaction needs no second connection.
    pub async fn register_lanes(&self, jobs: &[NewJob]) -> Result<(), StoreError> {
        self.inner.use_lanes(jobs).await?;
        Ok(())
    }
}
