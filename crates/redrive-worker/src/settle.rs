//! Builds settlements and queues them for writing. One writer uses the store; each kind of job whose handler has a settler gets a
//! writer of its own, so that a slow settler delays no other kind.

mod backlog;
mod settler_failure;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::limits::{BATCH_ITEMS_MAX, FOLLOW_UPS_MAX, truncate_error};
use redrive_core::panics::catch;
use redrive_core::store::Settlement;
use redrive_core::{AttemptReport, Job, Kind, Lease, NewJob, Outcome, Queue, Timestamp, Verdict};
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::engine::{Engine, ErrorChain, Handlers};
use crate::handler::{AttemptNote, JobEnd};
use crate::policy_cache::PolicyError;
use crate::settings::AttemptLogging;

pub(crate) use writer::SettlementWriter;

/// Settlements that may wait in the queue of one writer. Beyond that, attempts keep their slots, so that fewer jobs are claimed.
const QUEUED_MAX: usize = 2 * BATCH_ITEMS_MAX;

/// A settlement that is not written yet.
pub(crate) struct PendingSettlement {
    /// The job as it was claimed. None if its row is damaged.
    pub(crate) job: Option<Arc<Job>>,
    pub(crate) settlement: Settlement,
}

/// The sending ends of the writers' queues.
pub(crate) struct SettlementQueues {
    store: mpsc::Sender<PendingSettlement>,
    /// The queues of kinds whose handler has a settler.
    by_kind: BTreeMap<Kind, mpsc::Sender<PendingSettlement>>,
}

impl SettlementQueues {
    /// Creates the queues that `handlers` need, and their writers.
    pub(crate) fn new(handlers: &Handlers) -> (Self, Vec<SettlementWriter>) {
        let (store, receiver) = mpsc::channel(QUEUED_MAX);
        let mut writers = vec![SettlementWriter::new(None, receiver)];
        let mut by_kind = BTreeMap::new();
        for (kind, _) in handlers.iter().filter(|(_, handler)| handler.settler().is_some()) {
            let (sender, receiver) = mpsc::channel(QUEUED_MAX);
            by_kind.insert(kind.clone(), sender);
            writers.push(SettlementWriter::new(Some(kind.clone()), receiver));
        }
        (Self { store, by_kind }, writers)
    }

    fn queue_for(&self, job: Option<&Job>) -> &mpsc::Sender<PendingSettlement> {
        job.and_then(|job| self.by_kind.get(&job.kind)).unwrap_or(&self.store)
    }
}

/// The facts about an ended attempt that go into its settlement.
pub(crate) struct EndedAttempt<'a> {
    pub(crate) lease: Lease,
    pub(crate) run: u32,
    pub(crate) attempt: u32,
    /// None if the row is damaged.
    pub(crate) job: Option<&'a Job>,
    pub(crate) started_at: Timestamp,
    pub(crate) duration: Duration,
    /// The handler's note about the attempt.
    pub(crate) note: Option<AttemptNote>,
}

impl<'a> EndedAttempt<'a> {
    /// Describes an attempt of `job` that took `duration`. If the store recorded no start, the attempt started at `now`.
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
    /// Builds the settlement of an attempt, with follow-ups, and with a log entry if the settings ask for one.
    pub(crate) fn build_settlement(
        &self,
        ended: EndedAttempt<'_>,
        outcome: &Outcome,
        verdict: Verdict,
    ) -> Settlement {
        let error = outcome.error().map(|error| truncate_error(error.to_owned()));
        let note = ended.note.as_ref();
        let follow_ups =
            ended.job.map(|job| self.follow_ups(job, outcome, &verdict, note)).unwrap_or_default();
        Settlement {
            lease: ended.lease,
            verdict,
            status: note.and_then(|note| note.status),
            follow_ups,
            entry: self.is_logged(ended.job.map(|job| &job.queue), outcome).then(|| AttemptReport {
                run: ended.run,
                attempt: ended.attempt,
                started_at: ended.started_at,
                duration: ended.duration,
                outcome: outcome.name().to_owned(),
                error: error.clone(),
                detail: ended.note.and_then(|note| note.detail),
            }),
            error,
        }
    }

    /// Decides by the job's policy what follows an attempt whose lease expired or whose settler failed, and builds the
    /// settlement. Returns none while the policy cannot be loaded; the lease then runs out, and the job is reclaimed
    /// again.
    pub(crate) async fn settlement_by_policy(
        &self,
        job: &Job,
        outcome: &Outcome,
        now: Timestamp,
    ) -> Option<Settlement> {
        let started_at = job.started_at.unwrap_or(now);
        let ended = EndedAttempt::of(job, now, now.since(started_at));
        match self.policies.get(&job.policy).await {
            Ok(policy) => {
                let run = job.as_run(&policy, self.estimates.get(&self.estimate_key(job)));
                let verdict = self.decide(&run, outcome, now);
                Some(self.build_settlement(ended, outcome, verdict))
            }
            Err(error @ (PolicyError::Missing(_) | PolicyError::Damaged(..))) => {
                let outcome = Outcome::reject(error);
                let verdict = self.decide_without_policy(&outcome);
                Some(self.build_settlement(ended, &outcome, verdict))
            }
            Err(error @ PolicyError::Unavailable(..)) => {
                let error = ErrorChain(&error);
                tracing::warn!(job = %job.id, %error, "job not settled: it is reclaimed when its lease has run out");
                None
            }
        }
    }

    /// Queues a settlement for its writer. After the writer has ended, the settlement is dropped, and the lease runs out.
    pub(crate) async fn submit(&self, job: Option<Arc<Job>>, settlement: Settlement) {
        let lease = settlement.lease;
        let queue = self.settlements.queue_for(job.as_deref());
        let queued = match queue.try_send(PendingSettlement { job, settlement }) {
            Ok(()) => return,
            // Boxed, because a full queue is rare and the future of every attempt would otherwise reserve space for the wait.
            Err(TrySendError::Full(pending)) => Box::pin(queue.send(pending)).await.is_ok(),
            Err(TrySendError::Closed(_)) => false,
        };
        if !queued {
            tracing::warn!(job = %lease.id, "attempt ended after the shutdown: its lease will run out");
            self.leases.remove([lease]);
        }
    }

    fn is_logged(&self, queue: Option<&Queue>, outcome: &Outcome) -> bool {
        if !outcome.was_attempted() {
            return false;
        }
        match queue.map_or(self.settings.log, |queue| self.settings.log_of(queue)) {
            AttemptLogging::All => true,
            AttemptLogging::Failures => outcome.is_failure(),
            AttemptLogging::None => false,
        }
    }

    /// Returns the handler's follow-ups if the verdict ends the job. Invalid follow-ups are left out, because they must not prevent
    /// the end of the job.
    fn follow_ups(
        &self,
        job: &Job,
        outcome: &Outcome,
        verdict: &Verdict,
        note: Option<&AttemptNote>,
    ) -> Vec<NewJob> {
        let is_end = matches!(verdict, Verdict::Complete(_) | Verdict::DeadLetter(_));
        let Some(handler) = self.handlers.get(&job.kind).filter(|_| is_end) else {
            return Vec::new();
        };
        let end = JobEnd { outcome, verdict, note };
        let returned = catch("the handler's follow_ups", || handler.follow_ups(job, &end));
        let mut follow_ups = returned.unwrap_or_else(|panic| {
            tracing::error!(job = %job.id, %panic, "follow_ups panicked: the job ends without follow-ups");
            Vec::new()
        });
        follow_ups.retain(|follow_up| match follow_up.check() {
            Ok(()) => true,
            Err(problem) => {
                tracing::error!(job = %job.id, %problem, "an invalid follow-up was left out");
                false
            }
        });
        follow_ups.truncate(FOLLOW_UPS_MAX);
        follow_ups
    }
}
