//! What one step holds: of the service as a whole, and of an origin's gate.

use redrive_core::State;
use redrive_core::store::Stats;
use redrive_delivery::gate::{OriginState, OriginStatus};
use serde::{Deserialize, Serialize};

use super::counters::Counts;
use super::ring::{Point, Step};
use crate::wire::origin::GateState;
use crate::wire::policy::ms;
use crate::wire::series::{OriginPoint, SeriesPoint};

/// What a node did in a step, and what the store held at its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Doing {
    #[serde(rename = "c")]
    pub(crate) counts: Counts,
    /// In the order of [`State::ALL`].
    #[serde(rename = "j")]
    pub(crate) jobs: Vec<u64>,
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_due_ms: Option<u64>,
}

impl Doing {
    pub(crate) fn new(counts: Counts, stats: &Stats) -> Self {
        let jobs = State::ALL.map(|state| stats.in_state(state)).into();
        let oldest_due_ms = stats.oldest_due.map(|due| ms(stats.now.since(due)));
        Self { counts, jobs, oldest_due_ms }
    }
}

impl Step for Doing {
    fn go_on(&mut self, later: Self) {
        self.counts.add(&later.counts);
        (self.jobs, self.oldest_due_ms) = (later.jobs, later.oldest_due_ms);
    }

    /// All nodes see the same store.
    fn join(&mut self, other: Self) {
        self.go_on(other);
    }
}

impl From<Point<Doing>> for SeriesPoint {
    fn from(Point { at, step }: Point<Doing>) -> Self {
        let Counts { succeeded, retried, exhausted, other, lags } = step.counts;
        Self {
            at,
            succeeded,
            retried,
            exhausted,
            other,
            start_lag_p50_ms: lags.quantile_ms(0.5),
            start_lag_p99_ms: lags.quantile_ms(0.99),
            jobs: State::ALL
                .iter()
                .zip(step.jobs)
                .map(|(state, jobs)| (state.name().to_owned(), jobs))
                .collect(),
            oldest_due_ms: step.oldest_due_ms,
        }
    }
}

/// A node's gate of an origin in a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Numbers", into = "Numbers")]
pub(crate) struct Gating {
    pub(crate) limit: u64,
    pub(crate) in_flight: u64,
    pub(crate) state: GateState,
    pub(crate) latency_ms: Option<u64>,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
}

/// The same, as short as it goes: limit, in flight, state, latency, answered, failed.
type Numbers = (u64, u64, u8, Option<u64>, u64, u64);

impl From<Numbers> for Gating {
    fn from((limit, in_flight, state, latency_ms, answered, failed): Numbers) -> Self {
        let state = match state {
            0 => GateState::Open,
            1 => GateState::Held,
            2 => GateState::Probing,
            _ => GateState::Closed,
        };
        Self { limit, in_flight, state, latency_ms, answered, failed }
    }
}

impl From<Gating> for Numbers {
    fn from(gating: Gating) -> Self {
        let Gating { limit, in_flight, state, latency_ms, answered, failed } = gating;
        (limit, in_flight, badness(state), latency_ms, answered, failed)
    }
}

fn badness(state: GateState) -> u8 {
    match state {
        GateState::Open => 0,
        GateState::Held => 1,
        GateState::Probing => 2,
        GateState::Closed => 3,
    }
}

impl Gating {
    /// As a gate shows itself; none while nothing happens at it.
    pub(crate) fn of(status: &OriginStatus) -> Option<Self> {
        let quiet = status.in_flight == 0 && status.answered == 0 && status.failed == 0;
        (!quiet || status.state != OriginState::Open).then(|| Self {
            limit: status.limit.into(),
            in_flight: status.in_flight.into(),
            state: status.state.into(),
            latency_ms: status.latency.map(ms),
            answered: status.answered.into(),
            failed: status.failed.into(),
        })
    }

    fn worse(&self, other: &Self) -> GateState {
        if badness(other.state) > badness(self.state) { other.state } else { self.state }
    }
}

impl Step for Gating {
    fn go_on(&mut self, later: Self) {
        self.state = self.worse(&later);
        self.limit = later.limit;
        self.in_flight = self.in_flight.max(later.in_flight);
        self.latency_ms = later.latency_ms.or(self.latency_ms);
        self.answered = self.answered.max(later.answered);
        self.failed = self.failed.max(later.failed);
    }

    /// Each node has a gate of its own.
    fn join(&mut self, other: Self) {
        self.state = self.worse(&other);
        self.limit += other.limit;
        self.in_flight += other.in_flight;
        self.latency_ms = self.latency_ms.max(other.latency_ms);
        self.answered += other.answered;
        self.failed += other.failed;
    }
}

impl From<Point<Gating>> for OriginPoint {
    fn from(Point { at, step }: Point<Gating>) -> Self {
        let Gating { limit, in_flight, state, latency_ms, answered, failed } = step;
        Self { at, limit, in_flight, state, latency_ms, answered, failed }
    }
}
