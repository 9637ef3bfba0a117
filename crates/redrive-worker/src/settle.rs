//! Writes results: everything that has gathered goes to the store in one call. A result is held back for a moment only
//! when settlements follow each other closely.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::limits::{BATCH_ITEMS_MAX, cut_error};
use redrive_core::store::{Settled, Settlement, StoreError};
use redrive_core::{Entry, Invalid, Job, Kind, Lease, Outcome, Queue, Timestamp, Verdict};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::Instant;

use crate::engine::{Causes, Engine};
use crate::handler::{Note, Settler};
use crate::resume::{concerned, resume};
use crate::settings::KeepLog;

/// Results that may wait for the store; beyond that attempts keep their slots, so that no more are claimed.
pub(crate) const RESULTS_MAX: usize = 2 * BATCH_ITEMS_MAX;

/// How long a result may be held back for the sake of a larger batch, when the one before has only just been written.
const GATHER: Duration = Duration::from_millis(2);
/// As many are worth a commit of their own.
const GATHER_ITEMS: usize = 256;
/// As many go through a handler's own settler at once: each may cost it statements of its own in one transaction.
const SETTLER_ITEMS_MAX: usize = 64;

/// A result on its way to the store.
pub(crate) struct Finished {
    /// The job as it was claimed; none when its row cannot be read.
    pub(crate) job: Option<Arc<Job>>,
    pub(crate) settlement: Settlement,
}

/// Settles results until the engine is told to flush, then what is left.
pub(crate) async fn run(engine: Arc<Engine>, mut results: mpsc::Receiver<Finished>) {
    let mut gathering = Vec::new();
    let mut last: Option<Instant> = None;
    loop {
        let open = !results.is_closed();
        let gathered = tokio::select! {
            biased;
            gathered = results.recv_many(&mut gathering, BATCH_ITEMS_MAX) => gathered,
            () = engine.flush.cancelled(), if open => {
                results.close();
                continue;
            }
        };
        if gathered == 0 {
            return;
        }
        if last.is_some_and(|last| last.elapsed() < GATHER) && gathering.len() < GATHER_ITEMS {
            // One settlement follows the other: a little later it is for many, at the price of one commit.
            tokio::time::sleep(GATHER).await;
            while gathering.len() < BATCH_ITEMS_MAX
                && let Ok(finished) = results.try_recv()
            {
                gathering.push(finished);
            }
        }
        settle(&engine, std::mem::take(&mut gathering)).await;
        last = Some(Instant::now());
    }
}

/// The attempt that a settlement is about.
pub(crate) struct Evidence<'a> {
    pub(crate) lease: Lease,
    pub(crate) run: u32,
    pub(crate) attempt: u32,
    /// None when the row cannot be read.
    pub(crate) job: Option<&'a Job>,
    pub(crate) started_at: Timestamp,
    pub(crate) duration: Duration,
    /// What the attempt left beside its outcome.
    pub(crate) note: Option<Note>,
}

impl<'a> Evidence<'a> {
    /// An attempt of `job` that took `duration`; `now` stands in for a start that the store did not note.
    pub(crate) fn of(job: &'a Job, now: Timestamp, duration: Duration) -> Self {
        Self {
            lease: job.lease(),
            run: job.run,
            attempt: job.attempt,
            job: Some(job),
            started_at: job.started_at.unwrap_or(now),
            duration,
            note: None,
        }
    }
}

impl Engine {
    /// Makes the settlement of an attempt, with the log entry that the settings ask for.
    pub(crate) fn settlement(&self, of: Evidence<'_>, outcome: &Outcome, verdict: Verdict) -> Settlement {
        let error = outcome.error().map(|error| cut_error(error.to_owned()));
        let note = of.note.as_ref();
        let follow_ups = of.job.map(|job| self.follow_ups(job, outcome, &verdict, note)).unwrap_or_default();
        Settlement {
            lease: of.lease,
            verdict,
            status: note.and_then(|note| note.status),
            follow_ups,
            entry: self.logs(of.job.map(|job| &job.queue), outcome).then(|| Entry {
                run: of.run,
                attempt: of.attempt,
                started_at: of.started_at,
                duration: of.duration,
                outcome: outcome.name().to_owned(),
                error: error.clone(),
                detail: of.note.and_then(|note| note.detail),
            }),
            error,
        }
    }

    /// Puts a result into the queue; once that is closed it is dropped, and the lease runs out.
    pub(crate) async fn hand_over(&self, job: Option<Arc<Job>>, settlement: Settlement) {
        let lease = settlement.lease;
        let queued = match self.results.try_send(Finished { job, settlement }) {
            Ok(()) => return,
            // Boxed, so that the future of every attempt need not have room for a wait that is rare.
            Err(TrySendError::Full(finished)) => Box::pin(self.results.send(finished)).await.is_ok(),
            Err(TrySendError::Closed(_)) => false,
        };
        if !queued {
            tracing::warn!(job = %lease.id, "result came after the shutdown: its lease will run out");
            self.held.remove([lease]);
        }
    }

    fn logs(&self, queue: Option<&Queue>, outcome: &Outcome) -> bool {
        if !outcome.was_attempted() {
            return false;
        }
        match queue.map_or(self.settings.log, |queue| self.settings.log_of(queue)) {
            KeepLog::All => true,
            KeepLog::Failures => outcome.is_failure(),
            KeepLog::None => false,
        }
    }
}

/// Results that go to the store in one call, with their jobs beside them.
#[derive(Default)]
struct Batch {
    settlements: Vec<Settlement>,
    jobs: Vec<Option<Arc<Job>>>,
    /// The kind of them all, if its handler settles them in the store's place.
    through: Option<Kind>,
}

impl Batch {
    fn push(&mut self, Finished { job, settlement }: Finished) {
        self.settlements.push(settlement);
        self.jobs.push(job);
    }

    fn split(mut self) -> [Self; 2] {
        let half = self.settlements.len() / 2;
        let rest = Self {
            settlements: self.settlements.split_off(half),
            jobs: self.jobs.split_off(half),
            through: self.through.clone(),
        };
        [rest, self]
    }
}

impl Engine {
    /// Puts together what is settled by the same means.
    fn batches(&self, finished: impl IntoIterator<Item = Finished>) -> Vec<Batch> {
        let mut plain = Batch::default();
        let mut own: Vec<Batch> = Vec::new();
        for one in finished {
            let Some(kind) =
                one.job.as_ref().map(|job| &job.kind).filter(|kind| self.settler(kind).is_some())
            else {
                plain.push(one);
                continue;
            };
            let fits = |batch: &&mut Batch| {
                batch.through.as_ref() == Some(kind) && batch.settlements.len() < SETTLER_ITEMS_MAX
            };
            match own.iter_mut().find(fits) {
                Some(batch) => batch.push(one),
                None => {
                    let mut batch = Batch { through: Some(kind.clone()), ..Batch::default() };
                    batch.push(one);
                    own.push(batch);
                }
            }
        }
        own.push(plain);
        own.retain(|batch| !batch.settlements.is_empty());
        own
    }

    fn settler(&self, kind: &Kind) -> Option<&dyn Settler> {
        self.handlers.get(kind).and_then(|handler| handler.settler())
    }

    async fn apply(&self, batch: &Batch) -> Result<Vec<Settled>, StoreError> {
        match batch.through.as_ref().and_then(|kind| self.settler(kind)) {
            Some(settler) => {
                // One without a job is never in a batch with a settler.
                let jobs: Vec<Arc<Job>> = batch.jobs.iter().flatten().cloned().collect();
                self.store.settle_through(settler, &jobs, &batch.settlements).await
            }
            None => self.store.settle_all(&batch.settlements).await,
        }
    }
}

/// Settles results. Where one of them spoils a batch, that is split until the culprit stands alone.
async fn settle(engine: &Engine, finished: Vec<Finished>) {
    let mut parts = engine.batches(finished);
    while let Some(mut part) = parts.pop() {
        match engine.apply(&part).await {
            Ok(answers) => conclude(engine, &part, &answers).await,
            Err(error) if is_spoilt_by_one(&part, &error) => parts.extend(part.split()),
            Err(StoreError::Invalid(problem)) => {
                let rejected = part.settlements.iter().map(|settlement| reject(engine, settlement, &problem));
                part.settlements = rejected.collect();
                settle_plainly(engine, part).await;
            }
            Err(error) => drop_batch(engine, &part.settlements, &error),
        }
    }
}

/// Whether a smaller batch could work. A store refuses what is illegal; a settler may fail over anything of its own.
fn is_spoilt_by_one(batch: &Batch, error: &StoreError) -> bool {
    let own = batch.through.is_some() && !error.may_pass();
    batch.settlements.len() > 1 && (own || matches!(error, StoreError::Invalid(_)))
}

/// Settles without another way out.
async fn settle_plainly(engine: &Engine, batch: Batch) {
    match engine.apply(&batch).await {
        Ok(answers) => conclude(engine, &batch, &answers).await,
        Err(error) => drop_batch(engine, &batch.settlements, &error),
    }
}

async fn conclude(engine: &Engine, batch: &Batch, answers: &[Settled]) {
    engine.held.remove(batch.settlements.iter().map(|settlement| settlement.lease));
    let mut waiting = BTreeSet::new();
    for ((settlement, job), answer) in batch.settlements.iter().zip(&batch.jobs).zip(answers) {
        waiting.extend(concerned(settlement, job.as_deref(), *answer));
        engine.counts.settled(settlement, *answer);
        if let Some(job) = job {
            engine.observer.settled(job, settlement, *answer);
        }
        if *answer == Settled::LeaseLost {
            let Lease { id, epoch } = settlement.lease;
            tracing::warn!(job = %id, epoch, "settle came too late: lease lost");
        }
    }
    tracing::debug!(count = batch.settlements.len(), "settle");
    resume(engine, waiting).await;
}

/// Instead of what the store would never take, so that the job ends with a reason and is not run again and again.
fn reject(engine: &Engine, settlement: &Settlement, problem: &Invalid) -> Settlement {
    tracing::error!(job = %settlement.lease.id, %problem, "settle was refused: job rejected");
    let outcome = Outcome::reject(format!("its result cannot be stored: {problem}"));
    let error = outcome.error().map(|error| cut_error(error.to_owned()));
    Settlement {
        lease: settlement.lease,
        verdict: engine.decide_without_policy(&outcome),
        status: settlement.status,
        follow_ups: Vec::new(),
        entry: settlement.entry.as_ref().map(|entry| Entry {
            outcome: outcome.name().to_owned(),
            error: error.clone(),
            detail: None,
            ..entry.clone()
        }),
        error,
    }
}

/// The leases are no longer renewed: they run out and the jobs are reclaimed.
fn drop_batch(engine: &Engine, batch: &[Settlement], error: &StoreError) {
    engine.held.remove(batch.iter().map(|settlement| settlement.lease));
    engine.counts.dropped.add(batch.len());
    let (count, error) = (batch.len(), Causes(error));
    tracing::error!(count, %error, "settle failed: results dropped, leases will run out");
}
