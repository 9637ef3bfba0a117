//! Turns the claims and settlements of the worker into metrics and events.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{Job, State, Timestamp, Verdict};
use redrive_worker::Observer;

use crate::api;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::node_monitor::LocalProblem;
use redrive_wire::event::TaskEvent;
use redrive_wire::state::JobState;

/// Observes the worker of this node.
pub(crate) struct WorkerObserver {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    pub(crate) node_problem: Arc<LocalProblem>,
}

impl Observer for WorkerObserver {
    fn claimed(&self, jobs: &[Arc<Job>], now: Timestamp) {
        for job in jobs {
            self.metrics.started(now.since(job.next_run_at));
            self.events
                .publish(job.id, &job.tenant, || TaskEvent::new(job.id, JobState::Running, job.attempt, now));
        }
    }

    fn settled(&self, job: &Job, settlement: &Settlement, result: SettleResult) {
        let SettleResult::Applied(state) = result else { return };
        let now = api::now();
        if let Some(outcome) = outcome(&settlement.verdict) {
            let took = settlement.entry.as_ref().map_or(Duration::ZERO, |entry| entry.duration);
            self.metrics.attempt(outcome, &job.policy, took, now.since(job.created_at));
        }
        self.events.publish(job.id, &job.tenant, || event(job, settlement, state, now));
    }

    fn store_call(&self, verb: &'static str, items: usize, took: Duration, ok: bool) {
        self.metrics.store_call(verb, items, took, ok);
    }

    fn node_problem(&self, problem: Option<&str>) {
        self.metrics.node_paused(problem.is_some());
        self.node_problem.set(problem, api::now());
    }
}

/// The label of an attempt in the metrics; `None` if the attempt was not charged or not finished.
fn outcome(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Complete(_) => Some("succeeded"),
        Verdict::Retry(_) => Some("retried"),
        Verdict::DeadLetter(_) => Some("dead"),
        Verdict::Cancel => Some("cancelled"),
        Verdict::Snooze(_) | Verdict::Hold(_) | Verdict::Wait(_) | Verdict::Release => None,
    }
}

fn event(job: &Job, settlement: &Settlement, state: State, now: Timestamp) -> TaskEvent {
    let next = settlement.verdict.effect().wait.filter(|_| state.is_claimable());
    TaskEvent {
        next_attempt_at: next.map(|wait| now.after(wait).as_ms()),
        reason: settlement.verdict.reason().map(Into::into),
        error: settlement.error.clone(),
        response_status: settlement.status,
        ..TaskEvent::new(job.id, state.into(), job.attempt, now)
    }
}
