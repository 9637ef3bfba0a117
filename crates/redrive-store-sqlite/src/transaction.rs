//! Lets an application enqueue, settle and cancel together with its own writes: its tables are in the same file, and
//! one commit covers both.

use redrive_core::panics::catch;
use redrive_core::store::{CancelResult, EnqueueResult, SettleResult, Settlement, check_batch};
use redrive_core::{JobId, NewJob, Panic, StoreError};
use rusqlite::Connection;

use crate::SqliteStore;
use crate::error::Result;
use crate::lifecycle::{enqueue, settle};
use crate::operate;
use crate::writer::Tx;

/// A transaction of the store's writer that an application can use.
pub struct Transaction<'a, 'tx> {
    tx: &'a mut Tx<'tx>,
}

impl Transaction<'_, '_> {
    /// The connection, for the application's own tables. Their names must not begin with `redrive_`, and the
    /// application must not begin, commit or roll back on it.
    pub fn connection(&self) -> &Connection {
        self.tx.conn
    }

    /// Enqueues jobs as [`redrive_core::Store::enqueue`] does. They exist from the commit on.
    pub fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<EnqueueResult>, StoreError> {
        check_batch(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        Ok(enqueue::enqueue(self.tx, jobs)?)
    }

    /// Settles attempts as [`redrive_core::Store::settle`] does. It takes effect with the commit.
    pub fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        Ok(settle::settle(self.tx, settlements)?)
    }

    /// Cancels jobs as [`redrive_core::Store::cancel`] does. It takes effect with the commit.
    pub fn cancel(&mut self, ids: &[JobId]) -> Result<Vec<CancelResult>, StoreError> {
        check_batch(ids.len())?;
        Ok(operate::cancel(self.tx, ids)?)
    }
}

impl SqliteStore {
    /// Runs `body` in a transaction of the writer. Commits if it returns `Ok`, and rolls back if it returns `Err`.
    ///
    /// Every other write waits meanwhile, so `body` should be short. `body` shares its commit with other calls. If that
    /// commit fails, the writes are rolled back and `body` is called a second time.
    ///
    /// If `body` panics, its writes are rolled back and the error is [`StoreError::Failed`] with the [`Panic`] as its
    /// source. Other writes are not affected.
    pub async fn transact<T, E, F>(&self, mut body: F) -> Result<Result<T, E>, StoreError>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnMut(&mut Transaction<'_, '_>) -> Result<T, E> + Send + 'static,
    {
        let outcome = self.inner.write(move |tx| transact(tx, &mut body)).await?;
        outcome.map_err(|panic| StoreError::Failed(Box::new(panic)))
    }
}

fn transact<T, E>(
    tx: &mut Tx<'_>,
    body: &mut impl FnMut(&mut Transaction<'_, '_>) -> Result<T, E>,
) -> Result<Result<Result<T, E>, Panic>> {
    let counts = tx.counts.clone();
    let ranges = tx.leased.ranges.savepoint();
    tx.conn.execute_batch("SAVEPOINT caller")?;
    let outcome = catch("the closure passed to transact", || body(&mut Transaction { tx: &mut *tx }));
    if matches!(outcome, Ok(Ok(_))) {
        tx.conn.execute_batch("RELEASE caller")?;
    } else {
        // Other calls share the transaction, so only the writes of this one are rolled back.
        tx.conn.execute_batch("ROLLBACK TO caller; RELEASE caller")?;
        *tx.counts = counts;
        tx.leased.ranges.roll_back_to(ranges);
        tx.lanes.reload(tx.conn)?;
    }
    Ok(outcome)
}
