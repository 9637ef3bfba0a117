//! Writes the results of one lane: everything that has gathered goes to the store in one call. A result is held back for a
//! moment only when settlements follow each other closely. One that the store cannot take now is offered again until the store
//! answers; meanwhile its lease is renewed like any other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Settled, Settlement, StoreError};
use redrive_core::{CatchPanic, Invalid, Job, Kind, Lease};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::backlog::Backlog;
use super::{Finished, RESULTS_MAX, reject};
use crate::engine::{Causes, Engine};
use crate::handler::Settler;
use crate::resume::{concerned, resume};
use crate::storage_retry::Tries;

/// How long a result may be held back for the sake of a larger batch, when the one before has only just been written.
const GATHER: Duration = Duration::from_millis(2);
/// As many are worth a commit of their own.
const GATHER_ITEMS: usize = 256;
/// As many go through a handler's own settler at once: each may cost it statements of its own in one transaction.
const SETTLER_ITEMS_MAX: usize = 64;

/// Results that are settled by the same means.
pub(crate) struct Lane {
    /// The kind of all of them, if its handler settles them in the store's place.
    through: Option<Kind>,
    results: mpsc::Receiver<Finished>,
    /// No more results can come.
    is_drained: bool,
}

/// What a lane does next.
enum Step {
    /// Settles results that have just come.
    Settle,
    /// Offers results again.
    Offer,
    /// Takes no more results: every attempt has ended.
    Close,
    /// Has seen the last result.
    Drained,
    /// Stops: the shutdown has waited for long enough.
    GiveUp,
    /// Everything is settled, and no more can come.
    End,
}

impl Lane {
    pub(super) fn new(through: Option<Kind>, results: mpsc::Receiver<Finished>) -> Self {
        Self { through, results, is_drained: false }
    }

    /// Settles results until the engine is told to flush, then what is left.
    pub(crate) async fn run(mut self, engine: Arc<Engine>) {
        let mut backlog = Backlog::new(self.batch_max());
        let mut gathered = Vec::new();
        let mut last: Option<Instant> = None;
        loop {
            match self.next_step(&engine, &backlog, &mut gathered).await {
                Step::Settle => {
                    self.gather(&mut gathered, last).await;
                    self.settle(&engine, std::mem::take(&mut gathered), &mut backlog).await;
                    last = Some(Instant::now());
                }
                Step::Offer => self.offer(&engine, &mut backlog).await,
                Step::Close => self.results.close(),
                Step::Drained => self.is_drained = true,
                Step::GiveUp => return give_up(&engine, backlog),
                Step::End => return,
            }
        }
    }

    /// Waits for the next step. A backlog that is full keeps results where they are, and with them the slots of attempts.
    async fn next_step(&mut self, engine: &Engine, backlog: &Backlog, gathered: &mut Vec<Finished>) -> Step {
        let (open, waiting) = (!self.results.is_closed(), !backlog.is_empty());
        let has_room = backlog.len() < RESULTS_MAX;
        if self.is_drained && !waiting {
            return Step::End;
        }
        tokio::select! {
            biased;
            () = engine.give_up.cancelled(), if waiting => Step::GiveUp,
            () = sleep_until(backlog.due()), if waiting => Step::Offer,
            count = self.results.recv_many(gathered, BATCH_ITEMS_MAX), if has_room && !self.is_drained => match count {
                0 => Step::Drained,
                _ => Step::Settle,
            },
            () = engine.flush.cancelled(), if open => Step::Close,
        }
    }

    /// Waits a little for more when one settlement follows the other: then it is for many, at the price of one commit.
    async fn gather(&mut self, gathered: &mut Vec<Finished>, last: Option<Instant>) {
        if last.is_some_and(|last| last.elapsed() < GATHER) && gathered.len() < GATHER_ITEMS {
            tokio::time::sleep(GATHER).await;
            while gathered.len() < BATCH_ITEMS_MAX
                && let Ok(finished) = self.results.try_recv()
            {
                gathered.push(finished);
            }
        }
    }

    /// Settles results, and keeps those that the store cannot take now.
    async fn settle(&self, engine: &Engine, results: Vec<Finished>, backlog: &mut Backlog) {
        let mut results = results.into_iter();
        loop {
            let batch: Batch = results.by_ref().take(self.batch_max()).collect();
            if batch.is_empty() {
                return;
            }
            if let Err(Unsettled { batch, error }) = self.write(engine, batch, Tries::ByPolicy).await {
                // What is left is not tried: it would wait as long for the same answer.
                let kept: Vec<Finished> = batch.into_iter().chain(results).collect();
                backlog.keep(engine, kept, &error);
                return;
            }
        }
    }

    /// Offers some of the backlog again.
    async fn offer(&self, engine: &Engine, backlog: &mut Backlog) {
        let batch: Batch = backlog.take().into_iter().collect();
        match self.write(engine, batch, Tries::One).await {
            Ok(()) => backlog.taken(),
            Err(Unsettled { batch, error }) => backlog.put_back(engine, batch.into_iter().collect(), &error),
        }
    }

    /// Settles a batch, or returns what the store cannot take now. Where one result spoils the batch, that is split until the
    /// culprit stands alone.
    async fn write(&self, engine: &Engine, batch: Batch, tries: Tries) -> Result<(), Unsettled> {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            let mut answer = self.apply(engine, &part, tries).await;
            if part.settlements.len() == 1
                && let Err(StoreError::Invalid(problem)) = &answer
            {
                part.reject(engine, problem);
                answer = self.apply(engine, &part, tries).await;
            }
            match answer {
                Ok(answers) => conclude(engine, &part, &answers).await,
                Err(error) if self.waits_for(&error) => {
                    let batch = std::iter::once(part).chain(parts).flatten().collect();
                    return Err(Unsettled { batch, error });
                }
                Err(error) if self.is_spoilt_by_one(&part, &error) => parts.extend(part.split()),
                Err(error) if self.through.is_some() => {
                    if let Err(mut unsettled) = self.settle_failed_ending(engine, part, error, tries).await {
                        unsettled.batch.extend(parts.into_iter().flatten());
                        return Err(unsettled);
                    }
                }
                Err(error) => drop_batch(engine, &part.settlements, &error),
            }
        }
        Ok(())
    }

    pub(super) async fn apply(
        &self,
        engine: &Engine,
        batch: &Batch,
        tries: Tries,
    ) -> Result<Vec<Settled>, StoreError> {
        match self.settler(engine) {
            Some(settler) => {
                // One without a job is never in a lane with a settler.
                let jobs: Vec<Arc<Job>> = batch.jobs.iter().flatten().cloned().collect();
                let settle = engine.store.settle_through(settler, tries, &jobs, &batch.settlements);
                let settled = CatchPanic::new("the handler's settler", settle).await;
                settled.unwrap_or_else(|panic| Err(StoreError::Failed(Box::new(panic))))
            }
            None => engine.store.settle_by(tries, &batch.settlements).await,
        }
    }

    fn settler<'a>(&self, engine: &'a Engine) -> Option<&'a dyn Settler> {
        let kind = self.through.as_ref()?;
        engine.handlers.get(kind).and_then(|handler| handler.settler())
    }

    fn batch_max(&self) -> usize {
        if self.through.is_some() { SETTLER_ITEMS_MAX } else { BATCH_ITEMS_MAX }
    }

    /// Whether results are kept after `error`: the store cannot take any now, and it or its operator can change that. Dropped
    /// results would make jobs run twice.
    pub(super) fn waits_for(&self, error: &StoreError) -> bool {
        match error {
            StoreError::Unavailable(_) | StoreError::Busy(_) | StoreError::Full(_) => true,
            // A settler may refuse one job for a reason of its own.
            StoreError::Refused(_) => self.through.is_none(),
            StoreError::Invalid(_) | StoreError::Corrupt(_) | StoreError::Failed(_) => false,
        }
    }

    /// Whether a smaller batch could work. A store refuses what is illegal; a settler may fail over anything of its own.
    fn is_spoilt_by_one(&self, batch: &Batch, error: &StoreError) -> bool {
        batch.settlements.len() > 1 && (self.through.is_some() || matches!(error, StoreError::Invalid(_)))
    }
}

/// What the store could not take, and why.
pub(super) struct Unsettled {
    pub(super) batch: Batch,
    pub(super) error: StoreError,
}

/// Results that go to the store in one call, with their jobs beside them.
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

    fn reject(&mut self, engine: &Engine, problem: &Invalid) {
        for settlement in &mut self.settlements {
            *settlement = reject(engine, settlement, problem);
        }
    }
}

impl FromIterator<Finished> for Batch {
    fn from_iter<I: IntoIterator<Item = Finished>>(results: I) -> Self {
        let mut batch = Self::default();
        batch.extend(results);
        batch
    }
}

impl Extend<Finished> for Batch {
    fn extend<I: IntoIterator<Item = Finished>>(&mut self, results: I) {
        for Finished { job, settlement } in results {
            self.settlements.push(settlement);
            self.jobs.push(job);
        }
    }
}

impl IntoIterator for Batch {
    type Item = Finished;
    type IntoIter = std::iter::Map<
        std::iter::Zip<std::vec::IntoIter<Settlement>, std::vec::IntoIter<Option<Arc<Job>>>>,
        fn((Settlement, Option<Arc<Job>>)) -> Finished,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.settlements.into_iter().zip(self.jobs).map(|(settlement, job)| Finished { job, settlement })
    }
}

pub(super) async fn conclude(engine: &Engine, batch: &Batch, answers: &[Settled]) {
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

/// The leases are no longer renewed: they run out and the jobs are reclaimed.
pub(super) fn drop_batch(engine: &Engine, batch: &[Settlement], error: &StoreError) {
    engine.held.remove(batch.iter().map(|settlement| settlement.lease));
    engine.counts.dropped.add(batch.len());
    let (count, error) = (batch.len(), Causes(error));
    tracing::error!(count, %error, "settle failed: results dropped, leases will run out");
}

/// The same for results that still wait when the shutdown cannot wait any longer.
fn give_up(engine: &Engine, backlog: Backlog) {
    let leases: Vec<Lease> = backlog.into_leases();
    engine.counts.dropped.add(leases.len());
    tracing::error!(
        count = leases.len(),
        "shutdown during an outage of the store: results dropped, leases will run out"
    );
    engine.held.remove(leases);
}
