//! Writes the settlements of one queue: all that have accumulated go to the store in one call. A settlement is delayed only when
//! settlements follow each other closely, to make the batch larger. While the store is unavailable, settlements are kept and
//! retried, and their leases are renewed like any other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::limits::{BATCH_ITEMS_MAX, truncate_error};
use redrive_core::store::{SettleResult, Settlement, StoreError};
use redrive_core::{AttemptReport, CatchPanic, Invalid, Job, Kind, Lease, Outcome};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::backlog::Backlog;
use super::{PendingSettlement, QUEUED_MAX};
use crate::engine::{Engine, ErrorChain};
use crate::handler::Settler;
use crate::resume::{job_to_resume, resume_jobs};
use crate::storage_retry::RetryMode;

/// How long a settlement may be delayed to make the batch larger, if the previous batch has only just been written.
const BATCH_DELAY: Duration = Duration::from_millis(2);
/// A batch of this size is written without a delay.
const BATCH_ENOUGH: usize = 256;
/// The largest batch for a handler's settler, which may run several statements for each job in one transaction.
const SETTLER_ITEMS_MAX: usize = 64;

/// Writes the settlements of one queue, through the store or through the settler of one kind.
pub(crate) struct SettlementWriter {
    /// The kind whose handler has a settler. None for the writer that uses the store.
    settler_kind: Option<Kind>,
    queue: mpsc::Receiver<PendingSettlement>,
    /// The queue is closed and empty.
    is_drained: bool,
}

/// What a writer does next.
enum WriterAction {
    /// Writes settlements that have just been received.
    WriteReceived,
    /// Retries a batch of the backlog.
    RetryBacklog,
    /// Closes the queue, because every attempt has ended.
    CloseQueue,
    /// Notes that the queue is closed and empty.
    MarkDrained,
    /// Drops the backlog, because the shutdown has waited long enough.
    GiveUp,
    /// Ends: everything is written.
    End,
}

impl SettlementWriter {
    pub(super) fn new(settler_kind: Option<Kind>, queue: mpsc::Receiver<PendingSettlement>) -> Self {
        Self { settler_kind, queue, is_drained: false }
    }

    /// Writes settlements until the shutdown closes the queue, and then those that are left.
    pub(crate) async fn run(mut self, engine: Arc<Engine>) {
        let mut backlog = Backlog::new(self.batch_max());
        let mut received = Vec::new();
        let mut last_write: Option<Instant> = None;
        loop {
            match self.next_action(&engine, &backlog, &mut received).await {
                WriterAction::WriteReceived => {
                    self.receive_more(&mut received, last_write).await;
                    self.write_received(&engine, std::mem::take(&mut received), &mut backlog).await;
                    last_write = Some(Instant::now());
                }
                WriterAction::RetryBacklog => self.retry_backlog(&engine, &mut backlog).await,
                WriterAction::CloseQueue => self.queue.close(),
                WriterAction::MarkDrained => self.is_drained = true,
                WriterAction::GiveUp => return drop_backlog(&engine, backlog),
                WriterAction::End => return,
            }
        }
    }

    /// Waits for the next action. While the backlog is full, settlements stay in the queue, and attempts keep their slots.
    async fn next_action(
        &mut self,
        engine: &Engine,
        backlog: &Backlog,
        received: &mut Vec<PendingSettlement>,
    ) -> WriterAction {
        let (is_open, has_backlog) = (!self.queue.is_closed(), !backlog.is_empty());
        let can_receive = backlog.len() < QUEUED_MAX && !self.is_drained;
        if self.is_drained && !has_backlog {
            return WriterAction::End;
        }
        tokio::select! {
            biased;
            () = engine.give_up.cancelled(), if has_backlog => WriterAction::GiveUp,
            () = sleep_until(backlog.retry_at()), if has_backlog => WriterAction::RetryBacklog,
            count = self.queue.recv_many(received, BATCH_ITEMS_MAX), if can_receive => match count {
                0 => WriterAction::MarkDrained,
                _ => WriterAction::WriteReceived,
            },
            () = engine.flush.cancelled(), if is_open => WriterAction::CloseQueue,
        }
    }

    /// Waits briefly for more settlements if the previous batch was written just before, so that one commit serves many.
    async fn receive_more(&mut self, received: &mut Vec<PendingSettlement>, last_write: Option<Instant>) {
        if last_write.is_some_and(|last| last.elapsed() < BATCH_DELAY) && received.len() < BATCH_ENOUGH {
            tokio::time::sleep(BATCH_DELAY).await;
            while received.len() < BATCH_ITEMS_MAX
                && let Ok(pending) = self.queue.try_recv()
            {
                received.push(pending);
            }
        }
    }

    /// Writes settlements, and moves those that cannot be written now to the backlog.
    async fn write_received(&self, engine: &Engine, received: Vec<PendingSettlement>, backlog: &mut Backlog) {
        let mut received = received.into_iter();
        loop {
            let batch: Batch = received.by_ref().take(self.batch_max()).collect();
            if batch.is_empty() {
                return;
            }
            if let Err(failed) = self.write(engine, batch, RetryMode::StoragePolicy).await {
                // The rest is not tried: it would wait just as long and fail in the same way.
                let unwritten: Vec<PendingSettlement> = failed.batch.into_iter().chain(received).collect();
                backlog.add(engine, unwritten, &failed.error);
                return;
            }
        }
    }

    async fn retry_backlog(&self, engine: &Engine, backlog: &mut Backlog) {
        let batch: Batch = backlog.take_batch().into_iter().collect();
        match self.write(engine, batch, RetryMode::Once).await {
            Ok(()) => backlog.batch_succeeded(),
            Err(failed) => backlog.batch_failed(engine, failed.batch.into_iter().collect(), &failed.error),
        }
    }

    /// Writes a batch, or returns the settlements that cannot be written now. If one settlement may be the cause of an error, the
    /// batch is split until that one is alone.
    async fn write(&self, engine: &Engine, batch: Batch, mode: RetryMode) -> Result<(), UnwrittenBatch> {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            let mut written = self.settle(engine, &part, mode).await;
            if part.settlements.len() == 1
                && let Err(StoreError::Invalid(problem)) = &written
            {
                part.reject_all(engine, problem);
                written = self.settle(engine, &part, mode).await;
            }
            match written {
                Ok(results) => record_results(engine, &part, &results).await,
                Err(error) if self.should_wait_after(&error) => {
                    let batch = std::iter::once(part).chain(parts).flatten().collect();
                    return Err(UnwrittenBatch { batch, error });
                }
                Err(error) if self.should_split(&part, &error) => parts.extend(part.split()),
                Err(error) if self.settler_kind.is_some() => {
                    if let Err(mut failed) = self.handle_settler_failure(engine, part, error, mode).await {
                        failed.batch.extend(parts.into_iter().flatten());
                        return Err(failed);
                    }
                }
                Err(error) => drop_settlements(engine, &part.settlements, &error),
            }
        }
        Ok(())
    }

    /// Calls the settler or the store.
    pub(super) async fn settle(
        &self,
        engine: &Engine,
        batch: &Batch,
        mode: RetryMode,
    ) -> Result<Vec<SettleResult>, StoreError> {
        match self.settler(engine) {
            Some(settler) => {
                // Settlements without a job always use the store.
                let jobs: Vec<Arc<Job>> = batch.jobs.iter().flatten().cloned().collect();
                let settle = engine.store.settle_with_settler(settler, mode, &jobs, &batch.settlements);
                let settled = CatchPanic::new("the handler's settler", settle).await;
                settled.unwrap_or_else(|panic| Err(StoreError::Failed(Box::new(panic))))
            }
            None => engine.store.settle_with_mode(mode, &batch.settlements).await,
        }
    }

    fn settler<'a>(&self, engine: &'a Engine) -> Option<&'a dyn Settler> {
        let kind = self.settler_kind.as_ref()?;
        engine.handlers.get(kind).and_then(|handler| handler.settler())
    }

    fn batch_max(&self) -> usize {
        if self.settler_kind.is_some() { SETTLER_ITEMS_MAX } else { BATCH_ITEMS_MAX }
    }

    /// Whether to keep settlements after `error`: the store accepts none now, but that can change. Dropping them would make jobs
    /// run twice.
    pub(super) fn should_wait_after(&self, error: &StoreError) -> bool {
        match error {
            StoreError::Unavailable(_) | StoreError::Busy(_) | StoreError::Full(_) => true,
            // A settler may refuse a single job.
            StoreError::Refused(_) => self.settler_kind.is_none(),
            StoreError::Invalid(_) | StoreError::Corrupt(_) | StoreError::Failed(_) => false,
        }
    }

    /// Whether a smaller batch may succeed. In the store only an invalid settlement fails a whole batch; in a settler any error of
    /// the application may concern a single job.
    fn should_split(&self, batch: &Batch, error: &StoreError) -> bool {
        batch.settlements.len() > 1
            && (self.settler_kind.is_some() || matches!(error, StoreError::Invalid(_)))
    }
}

/// Settlements that cannot be written now, and the error.
pub(super) struct UnwrittenBatch {
    pub(super) batch: Batch,
    pub(super) error: StoreError,
}

/// Settlements for one call of the store, and their jobs in the same order.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) settlements: Vec<Settlement>,
    pub(super) jobs: Vec<Option<Arc<Job>>>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.settlements.is_empty()
    }

    fn split(mut self) -> [Self; 2] {
        let half = self.settlements.len() / 2;
        let rest = Self { settlements: self.settlements.split_off(half), jobs: self.jobs.split_off(half) };
        [rest, self]
    }

    fn reject_all(&mut self, engine: &Engine, problem: &Invalid) {
        for settlement in &mut self.settlements {
            *settlement = rejected_settlement(engine, settlement, problem);
        }
    }
}

impl FromIterator<PendingSettlement> for Batch {
    fn from_iter<I: IntoIterator<Item = PendingSettlement>>(pending: I) -> Self {
        let mut batch = Self::default();
        batch.extend(pending);
        batch
    }
}

impl Extend<PendingSettlement> for Batch {
    fn extend<I: IntoIterator<Item = PendingSettlement>>(&mut self, pending: I) {
        for PendingSettlement { job, settlement } in pending {
            self.settlements.push(settlement);
            self.jobs.push(job);
        }
    }
}

impl IntoIterator for Batch {
    type Item = PendingSettlement;
    type IntoIter = std::iter::Map<
        std::iter::Zip<std::vec::IntoIter<Settlement>, std::vec::IntoIter<Option<Arc<Job>>>>,
        fn((Settlement, Option<Arc<Job>>)) -> PendingSettlement,
    >;

    fn into_iter(self) -> Self::IntoIter {
        let pairs = self.settlements.into_iter().zip(self.jobs);
        pairs.map(|(settlement, job)| PendingSettlement { job, settlement })
    }
}

/// Replaces a settlement that the store will never accept with a rejection, so that the job ends with a reason and does not run
/// again and again.
fn rejected_settlement(engine: &Engine, settlement: &Settlement, problem: &Invalid) -> Settlement {
    tracing::error!(job = %settlement.lease.id, %problem, "the settlement is invalid: the job is rejected");
    let outcome = Outcome::reject(format!("its result cannot be stored: {problem}"));
    let error = outcome.error().map(|error| truncate_error(error.to_owned()));
    Settlement {
        lease: settlement.lease,
        verdict: engine.decide_without_policy(&outcome),
        status: settlement.status,
        follow_ups: Vec::new(),
        entry: settlement.entry.as_ref().map(|entry| AttemptReport {
            outcome: outcome.name().to_owned(),
            error: error.clone(),
            detail: None,
            ..entry.clone()
        }),
        error,
    }
}

/// Removes the leases of a written batch, counts and reports the results, and resumes jobs whose wait may be over.
pub(super) async fn record_results(engine: &Engine, batch: &Batch, results: &[SettleResult]) {
    engine.leases.remove(batch.settlements.iter().map(|settlement| settlement.lease));
    let mut to_resume = BTreeSet::new();
    for ((settlement, job), result) in batch.settlements.iter().zip(&batch.jobs).zip(results) {
        to_resume.extend(job_to_resume(settlement, job.as_deref(), *result));
        engine.counts.count_settled(settlement, *result);
        if let Some(job) = job {
            engine.observer.settled(job, settlement, *result);
        }
        if *result == SettleResult::LeaseLost {
            let Lease { id, epoch } = settlement.lease;
            tracing::warn!(job = %id, epoch, "settle came too late: lease lost");
        }
    }
    tracing::debug!(count = batch.settlements.len(), "settle");
    resume_jobs(engine, to_resume).await;
}

/// Drops settlements that cannot be written. Their leases run out, and the jobs are reclaimed.
pub(super) fn drop_settlements(engine: &Engine, settlements: &[Settlement], error: &StoreError) {
    engine.leases.remove(settlements.iter().map(|settlement| settlement.lease));
    engine.counts.dropped.add(settlements.len());
    let (count, error) = (settlements.len(), ErrorChain(error));
    tracing::error!(count, %error, "settle failed: settlements dropped, their leases will run out");
}

/// Drops the settlements that still wait for the store when the shutdown gives up.
fn drop_backlog(engine: &Engine, backlog: Backlog) {
    let leases: Vec<Lease> = backlog.into_leases();
    engine.counts.dropped.add(leases.len());
    tracing::error!(
        count = leases.len(),
        "the store is unavailable at the shutdown: settlements dropped, their leases will run out"
    );
    engine.leases.remove(leases);
}
