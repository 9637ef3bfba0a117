//! The only writer: a thread that runs the calls that have arrived in one transaction, commits, and then answers them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use redrive_core::panics::catch;
use redrive_core::{Clock, StoreError, Timestamp};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use crate::checkpoint::Checkpointer;
use crate::counts::CountChanges;
use crate::error::{Result, closed};
use crate::lanes::SharedLanes;
use crate::lifecycle::leased_rows::LeasedRows;
use crate::limits::CachedLimits;
use crate::records::PausedQueues;

/// How long one transaction accepts further calls. This limits how long a call waits for the others of its group.
const GROUP_MAX: Duration = Duration::from_millis(4);

/// The state that a call uses inside a transaction.
pub(crate) struct Tx<'a> {
    /// The connection, inside a transaction.
    pub(crate) conn: &'a Connection,
    /// The store's time, the same for the whole call.
    pub(crate) now: Timestamp,
    pub(crate) lanes: &'a SharedLanes,
    /// Changes of counts, which are written before the commit.
    pub(crate) counts: &'a mut CountChanges,
    /// The rows that this process has leased.
    pub(crate) leased: &'a mut LeasedRows,
    /// The queues that claims leave out.
    pub(crate) paused: &'a mut PausedQueues,
    pub(crate) limits: &'a mut CachedLimits,
    /// How many wake-ups there have been.
    pub(crate) wakes: u64,
    /// The maximum size of the database, in bytes. Only enqueues respect it.
    pub(crate) db_bytes_max: Option<u64>,
    /// Set if the call may have made a job claimable.
    pub(crate) wake: &'a mut bool,
    /// Set if the call has requested a cancel of a running job.
    pub(crate) cancel_requested: &'a mut bool,
}

/// The changes of counts, wake-ups and cancel requests that the calls of a transaction have collected for its end.
#[derive(Default)]
struct TransactionEffects {
    counts: CountChanges,
    wake: bool,
    cancel_requested: bool,
}

/// A call that waits for the writer.
pub(crate) trait WriteCall: Send {
    /// Runs the call. If the shared transaction fails, it runs again in one of its own.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()>;
    /// Answers the caller after the transaction has committed or failed.
    fn answer(self: Box<Self>, outcome: Result<()>);
}

/// Passes `run` to the writer and waits for the commit.
pub(crate) async fn submit<T, F>(sender: &Sender<Box<dyn WriteCall>>, run: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: FnMut(&mut Tx<'_>) -> Result<T> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    sender.send(Box::new(PendingCall { run, result: None, reply })).map_err(|_| closed())?;
    answer.await.unwrap_or_else(|_| Err(closed()))
}

struct PendingCall<F, T> {
    run: F,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> WriteCall for PendingCall<F, T>
where
    T: Send,
    F: FnMut(&mut Tx<'_>) -> Result<T> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        match (self.run)(tx).map_err(StoreError::from) {
            // Input is checked before the first write, so that invalid input needs no rollback.
            answer @ (Ok(_) | Err(StoreError::Invalid(_))) => self.result = Some(answer),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let Self { run, result, reply } = *self;
        let (answer, rolled_back) = match outcome {
            Ok(()) => (result.unwrap_or_else(|| Err(closed())), None),
            Err(error) => (Err(error.into()), result),
        };
        // A caller that has gone away does not get its answer; the call has taken effect anyway.
        let undelivered = reply.send(answer);
        drop_guarded(run);
        drop_guarded(rolled_back);
        drop_guarded(undelivered);
    }
}

/// Drops a caller's value. A panic in its destructor must not end the writer.
fn drop_guarded<T>(value: T) {
    if let Err(panic) = catch("the destructor of a caller's value", || drop(value)) {
        tracing::error!(%panic, "a destructor panicked after a write; the store continues");
    }
}

/// The state of the writer's thread.
pub(crate) struct Writer {
    pub(crate) conn: Connection,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) db_bytes_max: Option<u64>,
    pub(crate) lanes: SharedLanes,
    pub(crate) leased: LeasedRows,
    pub(crate) paused: PausedQueues,
    pub(crate) limits: CachedLimits,
    pub(crate) wakes: watch::Sender<u64>,
    /// How often a cancel of a running job was requested.
    pub(crate) cancels: watch::Sender<u64>,
    pub(crate) checkpointer: Option<Checkpointer>,
}

impl Writer {
    /// Runs calls until every sender is dropped.
    pub(crate) fn run(mut self, calls: &Receiver<Box<dyn WriteCall>>) {
        while let Ok(first) = calls.recv() {
            self.run_group(first, calls);
            if let Some(checkpointer) = &mut self.checkpointer {
                checkpointer.after_commit(&self.conn);
            }
        }
    }

    /// Runs a call, and those that arrive meanwhile, in one transaction.
    fn run_group(&mut self, first: Box<dyn WriteCall>, calls: &Receiver<Box<dyn WriteCall>>) {
        let mut group = Vec::new();
        let outcome = self.transaction(|writer, effects| {
            let started = Instant::now();
            let mut next = Some(first);
            while let Some(mut call) = next {
                let result = writer.run_call(call.as_mut(), effects);
                group.push(call);
                result?;
                next = if started.elapsed() < GROUP_MAX { calls.try_recv().ok() } else { None };
            }
            Ok(())
        });
        match outcome {
            Ok(()) => group.into_iter().for_each(|call| call.answer(Ok(()))),
            Err(_) => group.into_iter().for_each(|call| self.run_alone(call)),
        }
    }

    /// Runs a call in a transaction of its own, so that a call that fails does not affect the others of its group.
    fn run_alone(&mut self, mut call: Box<dyn WriteCall>) {
        let outcome = self.transaction(|writer, effects| writer.run_call(call.as_mut(), effects));
        call.answer(outcome);
    }

    fn run_call(&mut self, call: &mut dyn WriteCall, effects: &mut TransactionEffects) -> Result<()> {
        let run = || {
            let mut tx = Tx {
                conn: &self.conn,
                now: self.clock.now(),
                lanes: &self.lanes,
                leased: &mut self.leased,
                counts: &mut effects.counts,
                paused: &mut self.paused,
                limits: &mut self.limits,
                wakes: *self.wakes.borrow(),
                db_bytes_max: self.db_bytes_max,
                wake: &mut effects.wake,
                cancel_requested: &mut effects.cancel_requested,
            };
            call.run(&mut tx)
        };
        catch("a write", run).unwrap_or_else(|panic| Err(StoreError::Failed(Box::new(panic)).into()))
    }

    /// Commits the writes of `body`. If it fails, rolls all of them back and reloads the caches.
    fn transaction(
        &mut self,
        body: impl FnOnce(&mut Self, &mut TransactionEffects) -> Result<()>,
    ) -> Result<()> {
        let mut effects = TransactionEffects::default();
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        let outcome = body(self, &mut effects).and_then(|()| {
            effects.counts.write(&self.conn)?;
            self.leased.ranges.write(&self.conn)?;
            Ok(self.conn.execute_batch("COMMIT")?)
        });
        match outcome {
            Ok(()) => {
                self.leased.ranges.commit();
                self.notify(&effects);
            }
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
        // SQLite has rolled back already after some errors, such as a full disk.
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "rollback failed");
        }
        self.leased.ranges.roll_back();
        if let Err(error) = self.reload_caches() {
            tracing::error!(error = %StoreError::from(error), "caches could not be reloaded after a rollback");
        }
    }

    fn reload_caches(&mut self) -> Result<()> {
        self.lanes.reload(&self.conn)?;
        self.paused.reload(&self.conn)?;
        self.limits.reload(&self.conn)
    }
}
