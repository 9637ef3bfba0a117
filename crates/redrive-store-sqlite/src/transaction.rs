//! Enqueues, settles and cancels together with an application's own writes: its tables live in the same file, and one commit
//! covers both.

use redrive_core::panics::catch;
use redrive_core::store::{Cancelled, Enqueued, Settled, Settlement, check_batch};
use redrive_core::{JobId, NewJob, Panic, StoreError};
use rusqlite::Connection;

use crate::error::Sorted;
use crate::writer::Tx;
use crate::{SqliteStore, cancel, enqueue, settle};

/// A transaction of the store's writer, open to an application.
pub struct Transaction<'a, 'tx> {
    tx: &'a mut Tx<'tx>,
}

impl Transaction<'_, '_> {
    /// The connection, for the application's own tables. Their names must not begin with `redrive_`, and it must not be
    /// told to begin, commit or roll back.
    pub fn connection(&self) -> &Connection {
        self.tx.conn
    }

    /// Enqueues jobs: with the commit they are there, and rolled back they never were.
    pub fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
        check_batch(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        enqueue::enqueue(self.tx, jobs)
    }

    /// Settles as [`redrive_core::Store::settle`] does: with the commit it has happened, and rolled back it has not.
    pub fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        settle::settle(self.tx, settlements)
    }

    /// Cancels as [`redrive_core::Store::cancel`] does: with the commit it has happened, and rolled back it has not.
    pub fn cancel(&mut self, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
        check_batch(ids.len())?;
        cancel::cancel(self.tx, ids)
    }
}

impl SqliteStore {
    /// Runs `body` in a transaction of the writer, which is committed if it returns well and rolled back if it does not.
    ///
    /// It holds up every other write, so it should be short. It may be called a second time, when the commit that it shared
    /// with others has failed; nothing of the first call is left then.
    ///
    /// If `body` panics, what it wrote is rolled back and the error is [`StoreError::Failed`] with the [`Panic`] as its
    /// source. Other writes are not affected.
    pub async fn transact<T, E, F>(&self, mut body: F) -> Result<Result<T, E>, StoreError>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnMut(&mut Transaction<'_, '_>) -> Result<T, E> + Send + 'static,
    {
        let answer = self.inner.write(move |tx| transact(tx, &mut body)).await?;
        answer.map_err(|panic| StoreError::Failed(Box::new(panic)))
    }
}

fn transact<T, E>(
    tx: &mut Tx<'_>,
    body: &mut impl FnMut(&mut Transaction<'_, '_>) -> Result<T, E>,
) -> Result<Result<Result<T, E>, Panic>, StoreError> {
    let tally = tx.tally.clone();
    tx.conn.execute_batch("SAVEPOINT caller").sorted()?;
    let answer = catch("the closure passed to transact", || body(&mut Transaction { tx: &mut *tx }));
    if matches!(answer, Ok(Ok(_))) {
        tx.conn.execute_batch("RELEASE caller").sorted()?;
    } else {
        // Others share the transaction: only what the caller has written goes.
        tx.conn.execute_batch("ROLLBACK TO caller; RELEASE caller").sorted()?;
        *tx.tally = tally;
        tx.lanes.reload(tx.conn)?;
    }
    Ok(answer)
}
