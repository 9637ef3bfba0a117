//! Runs transactions for an application on the store's own connections: what it writes, enqueues, settles and cancels is
//! there together or not at all.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive_core::store::{Cancelled, Enqueued, Settled, Settlement, check_batch};
use redrive_core::{CatchPanic, JobId, NewJob, StoreError};
use tokio_postgres::Client;

use crate::PostgresStore;
use crate::cancel;
use crate::enqueue;
use crate::error::Sorted;
use crate::open::Inner;
use crate::settle;
use crate::trees::{self, Tree};

/// What a transaction does, as a future that may borrow it.
pub type Work<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// A transaction on one of the store's connections, open to an application.
pub struct OpenTransaction<'a> {
    inner: &'a Inner,
    client: &'a Client,
    due: Mutex<Due>,
}

/// What is to be done once it is committed.
#[derive(Default)]
struct Due {
    wake: bool,
    /// What was ended, with everything below it.
    ended: Vec<Tree>,
}

impl OpenTransaction<'_> {
    /// The connection, for the application's own tables. It must not be told to begin, commit or roll back.
    pub fn client(&self) -> &Client {
        self.client
    }

    /// Enqueues jobs: with the commit they are there, and rolled back they never were.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::check(jobs)?;
        let lanes = self.inner.lanes.with(&self.inner.pool, jobs).await?;
        self.inner.expect(jobs);
        let enqueued = enqueue::add_all(&mut &*self.client, &lanes, self.inner.manual_now(), jobs).await?;
        self.due().wake |= enqueued.iter().any(enqueue::wakes);
        Ok(enqueued)
    }

    /// Settles as [`redrive_core::Store::settle`] does: with the commit it has happened, and rolled back it has not.
    pub async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        let settled = settle::settle_in(self.inner, self.client, settlements).await?;
        let goes_on = |each: &Settled| matches!(each, Settled::Applied(state) if state.is_claimable());
        let follow_ups = settlements.iter().any(|settlement| !settlement.follow_ups.is_empty());
        let mut due = self.due();
        due.wake |= follow_ups || settled.made_room || settled.results.iter().any(goes_on);
        due.ended.push(settled.tree);
        Ok(settled.results)
    }

    /// Cancels as [`redrive_core::Store::cancel`] does: with the commit it has happened, and rolled back it has not.
    pub async fn cancel(&self, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
        check_batch(ids.len())?;
        let (cancelled, tree) = cancel::cancel_in(self.client, self.inner.manual_now(), ids).await?;
        self.due().ended.push(tree);
        Ok(cancelled)
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostgresStore {
    /// Runs `body` in a transaction on one of the store's connections, which is committed if it returns well and rolled
    /// back if it does not. It is given up on after the store's patience.
    ///
    /// A statement that fails spoils the whole transaction, as always on Postgres, even where `body` goes on and returns
    /// well: the answer is an error then.
    ///
    /// If `body` panics, the transaction is rolled back and the error is [`StoreError::Failed`] with the
    /// [`redrive_core::Panic`] as its source.
    pub async fn transact<T, E, F>(&self, body: F) -> Result<Result<T, E>, StoreError>
    where
        F: for<'a> FnOnce(&'a OpenTransaction<'a>) -> Work<'a, T, E> + Send,
        T: Send,
        E: Send,
    {
        let mut refused = None;
        let inner = &*self.inner;
        let committed = inner
            .pool
            .transaction(async |client| {
                let tx = OpenTransaction { inner, client, due: Mutex::default() };
                let what = "the closure passed to transact_postgres";
                let answer = CatchPanic::new(what, async { body(&tx).await }).await;
                let due = tx.due.into_inner().unwrap_or_else(PoisonError::into_inner);
                match answer.map_err(|panic| StoreError::Failed(Box::new(panic)))? {
                    Ok(answer) => {
                        // The server takes a COMMIT of a spoilt transaction for a rollback, and says nothing.
                        client.batch_execute("SELECT").await.sorted()?;
                        Ok((answer, due))
                    }
                    Err(error) => {
                        refused = Some(error);
                        Err(StoreError::Failed("the caller wants nothing of it".into()))
                    }
                }
            })
            .await;
        match (committed, refused) {
            (_, Some(refused)) => Ok(Err(refused)),
            (Err(error), None) => Err(error),
            (Ok((answer, due)), None) => {
                let mut wake = due.wake;
                for tree in &due.ended {
                    wake |= trees::settle_down(inner, tree).await;
                }
                inner.wake_if(wake);
                Ok(Ok(answer))
            }
        }
    }

    /// Gives the queues and kinds of these jobs their numbers, so that an enqueue in a transaction needs no second
    /// connection.
    pub async fn expect(&self, jobs: &[NewJob]) -> Result<(), StoreError> {
        self.inner.lanes.with(&self.inner.pool, jobs).await.map(|_| ())
    }
}
