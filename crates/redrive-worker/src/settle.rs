//! Makes settlements and hands them over to those who write them: one lane for the store, and one for each kind of job whose
//! handler settles in the store's place, so that none holds up another.

mod backlog;
mod failed_ending;
mod lane;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::limits::{BATCH_ITEMS_MAX, cut_error};
use redrive_core::store::Settlement;
use redrive_core::{Entry, Invalid, Job, Kind, Lease, Outcome, Queue, Timestamp, Verdict};
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::engine::{Engine, Handlers};
use crate::handler::Note;
use crate::settings::KeepLog;

pub(crate) use lane::Lane;

/// Results that may wait in a lane; beyond that attempts keep their slots, so that no more are claimed.
const RESULTS_MAX: usize = 2 * BATCH_ITEMS_MAX;

/// A result on its way to the store.
pub(crate) struct Finished {
    /// The job as it was claimed; none when its row cannot be read.
    pub(crate) job: Option<Arc<Job>>,
    pub(crate) settlement: Settlement,
}

/// Where results are handed over.
pub(crate) struct Results {
    plain: mpsc::Sender<Finished>,
    /// The lanes of kinds whose handler settles in the store's place.
    own: BTreeMap<Kind, mpsc::Sender<Finished>>,
}

impl Results {
    /// The lanes that `handlers` need, and their ends.
    pub(crate) fn new(handlers: &Handlers) -> (Self, Vec<Lane>) {
        let (plain, results) = mpsc::channel(RESULTS_MAX);
        let mut lanes = vec![Lane::new(None, results)];
        let mut own = BTreeMap::new();
        for (kind, _) in handlers.iter().filter(|(_, handler)| handler.settler().is_some()) {
            let (sender, results) = mpsc::channel(RESULTS_MAX);
            own.insert(kind.clone(), sender);
            lanes.push(Lane::new(Some(kind.clone()), results));
        }
        (Self { plain, own }, lanes)
    }

    fn lane_of(&self, job: Option<&Job>) -> &mpsc::Sender<Finished> {
        job.and_then(|job| self.own.get(&job.kind)).unwrap_or(&self.plain)
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
        let lane = self.results.lane_of(job.as_deref());
        let queued = match lane.try_send(Finished { job, settlement }) {
            Ok(()) => return,
            // Boxed, so that the future of every attempt need not have room for a wait that is rare.
            Err(TrySendError::Full(finished)) => Box::pin(lane.send(finished)).await.is_ok(),
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
