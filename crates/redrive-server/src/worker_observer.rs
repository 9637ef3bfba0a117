//! Counts and tells what the worker does while it does it.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::{Settled, Settlement};
use redrive_core::{Job, State, Timestamp, Verdict};
use redrive_worker::Observer;

use crate::api;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::node_problem::CurrentProblem;
use crate::wire::event::TaskEvent;
use crate::wire::status::Status;

/// Hears of what the worker does.
pub(crate) struct Watch {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    pub(crate) node_problem: Arc<CurrentProblem>,
}

impl Observer for Watch {
    fn claimed(&self, jobs: &[Arc<Job>], now: Timestamp) {
        for job in jobs {
            self.metrics.started(now.since(job.next_run_at));
            self.events
                .tell(job.id, &job.tenant, || TaskEvent::new(job.id, Status::InFlight, job.attempt, now));
        }
    }

    fn settled(&self, job: &Job, settlement: &Settlement, answer: Settled) {
        let Settled::Applied(state) = answer else { return };
        let now = api::now();
        if let Some(outcome) = outcome(&settlement.verdict) {
            let took = settlement.entry.as_ref().map_or(Duration::ZERO, |entry| entry.duration);
            self.metrics.attempt(outcome, &job.policy, took, now.since(job.created_at));
        }
        self.events.tell(job.id, &job.tenant, || event(job, settlement, state, now));
    }

    fn store_call(&self, verb: &'static str, items: usize, took: Duration, ok: bool) {
        self.metrics.store_call(verb, items, took, ok);
    }

    fn node_problem(&self, problem: Option<&str>) {
        self.metrics.node_paused(problem.is_some());
        self.node_problem.set(problem, api::now());
    }
}

/// The label of an attempt; what was put off was none.
fn outcome(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Complete(_) => Some("succeeded"),
        Verdict::Retry(_) => Some("retried"),
        Verdict::DeadLetter(_) => Some("exhausted"),
        Verdict::Cancel => Some("cancelled"),
        Verdict::Snooze(_) | Verdict::Park(_) | Verdict::Wait(_) | Verdict::Release => None,
    }
}

fn event(job: &Job, settlement: &Settlement, state: State, now: Timestamp) -> TaskEvent {
    let next = settlement.verdict.effect().wait.filter(|_| state.is_claimable());
    TaskEvent {
        next_attempt_at: next.map(|wait| now.after(wait).as_ms()),
        reason: settlement.verdict.reason().map(|reason| reason.name().to_owned()),
        error: settlement.error.clone(),
        response_status: settlement.status,
        ..TaskEvent::new(job.id, state.into(), job.attempt, now)
    }
}
