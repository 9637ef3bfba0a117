//! The one writer: a thread that gathers what has arrived, runs it in one transaction, commits, then answers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use redrive_core::panics::catch;
use redrive_core::{Clock, StoreError, Timestamp};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use crate::checkpoint::Checkpointer;
use crate::error::{Sorted, closed};
use crate::lanes::SharedLanes;
use crate::leases::Leases;
use crate::quotas::Quotas;
use crate::records::Paused;
use crate::tally::Tally;

/// How long one transaction may go on gathering; bounds what a caller waits behind others.
const GATHER: Duration = Duration::from_millis(4);

/// What an operation works with.
pub(crate) struct Tx<'a> {
    /// The connection, inside a transaction.
    pub(crate) conn: &'a Connection,
    /// The store's time, the same for the whole operation.
    pub(crate) now: Timestamp,
    /// Pairs of queue and kind.
    pub(crate) lanes: &'a SharedLanes,
    /// Changes of counts, written at the end of the transaction.
    pub(crate) tally: &'a mut Tally,
    /// Where leased rows are.
    pub(crate) leases: &'a mut Leases,
    /// What claims leave alone.
    pub(crate) paused: &'a mut Paused,
    /// How much of a queue may run.
    pub(crate) quotas: &'a mut Quotas,
    /// How far wake-ups have come.
    pub(crate) wakes: u64,
    /// The size that the database may reach by enqueues.
    pub(crate) db_bytes_max: Option<u64>,
    /// Whether the operation may have made something claimable.
    pub(crate) wake: &'a mut bool,
    /// Whether the operation has requested the end of a running job.
    pub(crate) cancel_requested: &'a mut bool,
}

/// What the operations of a transaction leave for its end.
#[derive(Default)]
struct TransactionEffects {
    tally: Tally,
    wake: bool,
    cancel_requested: bool,
}

/// An operation on its way through the writer.
pub(crate) trait Operation: Send {
    /// Runs it. It may be run again in a transaction of its own when the shared one fails.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError>;
    /// Answers the caller, once the transaction has committed or failed.
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);
}

/// Hands `run` to the writer and waits for the commit.
pub(crate) async fn submit<T, F>(sender: &Sender<Box<dyn Operation>>, run: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: FnMut(&mut Tx<'_>) -> Result<T, StoreError> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    sender.send(Box::new(Call { run, result: None, reply })).map_err(|_| closed())?;
    answer.await.unwrap_or_else(|_| Err(closed()))
}

struct Call<F, T> {
    run: F,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Operation for Call<F, T>
where
    T: Send,
    F: FnMut(&mut Tx<'_>) -> Result<T, StoreError> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        match (self.run)(tx) {
            // A refusal comes before the first write, so it is an answer like any other and spoils nothing.
            answer @ (Ok(_) | Err(StoreError::Invalid(_))) => self.result = Some(answer),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { run, result, reply } = *self;
        let (answer, rolled_back) = match outcome {
            Ok(()) => (result.unwrap_or_else(|| Err(closed())), None),
            Err(error) => (Err(error), result),
        };
        // A caller that has gone away no longer cares; what it asked for is done all the same.
        let unheard = reply.send(answer);
        discard(run);
        discard(rolled_back);
        discard(unheard);
    }
}

/// Drops what a caller has handed over. A panic in a caller's destructor must not end the writer.
fn discard<T>(value: T) {
    if let Err(panic) = catch("the destructor of a caller's value", || drop(value)) {
        tracing::error!(%panic, "a write has ended, and the store continues");
    }
}

/// The writer's own state.
pub(crate) struct Writer {
    pub(crate) conn: Connection,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) db_bytes_max: Option<u64>,
    pub(crate) lanes: SharedLanes,
    pub(crate) leases: Leases,
    pub(crate) paused: Paused,
    pub(crate) quotas: Quotas,
    pub(crate) wakes: watch::Sender<u64>,
    /// How often the end of a running job was requested.
    pub(crate) cancels: watch::Sender<u64>,
    pub(crate) checkpointer: Option<Checkpointer>,
}

impl Writer {
    /// Serves operations until every sender is gone.
    pub(crate) fn serve(mut self, arrivals: &Receiver<Box<dyn Operation>>) {
        while let Ok(first) = arrivals.recv() {
            self.group(first, arrivals);
            if let Some(checkpointer) = &mut self.checkpointer {
                checkpointer.after_commit(&self.conn);
            }
        }
    }

    /// Runs one group in one transaction.
    fn group(&mut self, first: Box<dyn Operation>, arrivals: &Receiver<Box<dyn Operation>>) {
        let mut done = Vec::new();
        let outcome = self.transaction(|writer, effects| {
            let started = Instant::now();
            let mut next = Some(first);
            while let Some(mut operation) = next {
                let result = writer.run(operation.as_mut(), effects);
                done.push(operation);
                result?;
                next = if started.elapsed() < GATHER { arrivals.try_recv().ok() } else { None };
            }
            Ok(())
        });
        match outcome {
            Ok(()) => done.into_iter().for_each(|operation| operation.answer(Ok(()))),
            Err(_) => done.into_iter().for_each(|operation| self.alone(operation)),
        }
    }

    /// Runs an operation in a transaction of its own, so that one that fails takes no other with it.
    fn alone(&mut self, mut operation: Box<dyn Operation>) {
        let outcome = self.transaction(|writer, effects| writer.run(operation.as_mut(), effects));
        operation.answer(outcome);
    }

    fn run(
        &mut self,
        operation: &mut dyn Operation,
        effects: &mut TransactionEffects,
    ) -> Result<(), StoreError> {
        let run = || {
            let mut tx = Tx {
                conn: &self.conn,
                now: self.clock.now(),
                lanes: &self.lanes,
                leases: &mut self.leases,
                tally: &mut effects.tally,
                paused: &mut self.paused,
                quotas: &mut self.quotas,
                wakes: *self.wakes.borrow(),
                db_bytes_max: self.db_bytes_max,
                wake: &mut effects.wake,
                cancel_requested: &mut effects.cancel_requested,
            };
            operation.run(&mut tx)
        };
        catch("a write", run).unwrap_or_else(|panic| Err(StoreError::Failed(Box::new(panic))))
    }

    /// Commits what `body` does, or rolls all of it back and forgets what it cached.
    fn transaction(
        &mut self,
        body: impl FnOnce(&mut Self, &mut TransactionEffects) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut effects = TransactionEffects::default();
        self.conn.execute_batch("BEGIN IMMEDIATE").sorted()?;
        let outcome = body(self, &mut effects)
            .and_then(|()| effects.tally.write(&self.conn))
            .and_then(|()| self.conn.execute_batch("COMMIT").sorted());
        match outcome {
            Ok(()) => self.notify(&effects),
            Err(_) => self.roll_back(),
        }
        outcome
    }

    fn notify(&self, effects: &TransactionEffects) {
        if effects.wake {
            self.wakes.send_modify(|wakes| *wakes += 1);
        }
        if effects.cancel_requested {
            self.cancels.send_modify(|cancels| *cancels += 1);
        }
    }

    fn roll_back(&mut self) {
        // SQLite rolls back by itself on some errors, a full disk among them; then there is nothing left to do.
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "rollback failed");
        }
        let reloaded = self.lanes.reload(&self.conn).and_then(|()| self.paused.reload(&self.conn));
        let reloaded = reloaded.and_then(|()| self.quotas.reload(&self.conn));
        if let Err(error) = reloaded {
            tracing::error!(%error, "caches could not be read again after a rollback");
        }
    }
}
