//! The content of the points: samples of the service, and samples of a gate.

use redrive_core::State;
use redrive_core::store::Stats;
use redrive_delivery::gate::{OriginState, OriginStatus};
use serde::{Deserialize, Serialize};

use super::counters::Counts;
use super::ring::{Point, Sample};
use crate::present;
use redrive_wire::millis::ms;
use redrive_wire::origin::GateState;
use redrive_wire::series::{OriginPoint, SeriesPoint};

/// The attempts of a node in a step, and the state of the store at the end of the step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServiceSample {
    #[serde(rename = "c")]
    pub(crate) counts: Counts,
    /// In the order of [`State::ALL`].
    #[serde(rename = "j")]
    pub(crate) jobs: Vec<u64>,
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_due_ms: Option<u64>,
}

impl ServiceSample {
    pub(crate) fn new(counts: Counts, stats: &Stats) -> Self {
        let jobs = State::ALL.map(|state| stats.in_state(state)).into();
        let oldest_due_ms = stats.oldest_due.map(|due| ms(stats.now.since(due)));
        Self { counts, jobs, oldest_due_ms }
    }
}

impl Sample for ServiceSample {
    fn extend(&mut self, later: Self) {
        self.counts.add(&later.counts);
        (self.jobs, self.oldest_due_ms) = (later.jobs, later.oldest_due_ms);
    }

    /// Counts add up. The state of the store is the same for all nodes.
    fn merge_node(&mut self, other: Self) {
        self.extend(other);
    }
}

impl From<Point<ServiceSample>> for SeriesPoint {
    fn from(Point { at, sample }: Point<ServiceSample>) -> Self {
        let Counts { succeeded, retried, dead, other, lags } = sample.counts;
        Self {
            at,
            succeeded,
            retried,
            dead,
            other,
            start_lag_p50_ms: lags.quantile_ms(0.5),
            start_lag_p99_ms: lags.quantile_ms(0.99),
            jobs: State::ALL
                .iter()
                .zip(sample.jobs)
                .map(|(state, jobs)| (state.name().to_owned(), jobs))
                .collect(),
            oldest_due_ms: sample.oldest_due_ms,
        }
    }
}

/// The gate of an origin on one node in a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "OriginNumbers", into = "OriginNumbers")]
pub(crate) struct OriginSample {
    pub(crate) limit: u64,
    pub(crate) in_flight: u64,
    pub(crate) state: GateState,
    pub(crate) latency_ms: Option<u64>,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
}

/// The stored form of an [`OriginSample`]: limit, in flight, state, latency, answered, failed.
type OriginNumbers = (u64, u64, u8, Option<u64>, u64, u64);

impl From<OriginNumbers> for OriginSample {
    fn from((limit, in_flight, state, latency_ms, answered, failed): OriginNumbers) -> Self {
        let state = match state {
            0 => GateState::Passing,
            1 => GateState::Held,
            2 => GateState::Probing,
            _ => GateState::Blocked,
        };
        Self { limit, in_flight, state, latency_ms, answered, failed }
    }
}

impl From<OriginSample> for OriginNumbers {
    fn from(sample: OriginSample) -> Self {
        let OriginSample { limit, in_flight, state, latency_ms, answered, failed } = sample;
        (limit, in_flight, severity(state), latency_ms, answered, failed)
    }
}

fn severity(state: GateState) -> u8 {
    match state {
        GateState::Passing => 0,
        GateState::Held => 1,
        GateState::Probing => 2,
        GateState::Blocked => 3,
    }
}

impl OriginSample {
    /// The sample of a gate; `None` if the gate is passing and has no calls.
    pub(crate) fn of(status: &OriginStatus) -> Option<Self> {
        let is_idle = status.in_flight == 0 && status.answered == 0 && status.failed == 0;
        (!is_idle || status.state != OriginState::Passing).then(|| Self {
            limit: status.limit.into(),
            in_flight: status.in_flight.into(),
            state: present::gate_state(status.state),
            latency_ms: status.latency.map(ms),
            answered: status.answered.into(),
            failed: status.failed.into(),
        })
    }

    fn worse_state(&self, other: &Self) -> GateState {
        if severity(other.state) > severity(self.state) { other.state } else { self.state }
    }
}

impl Sample for OriginSample {
    fn extend(&mut self, later: Self) {
        self.state = self.worse_state(&later);
        self.limit = later.limit;
        self.in_flight = self.in_flight.max(later.in_flight);
        self.latency_ms = later.latency_ms.or(self.latency_ms);
        self.answered = self.answered.max(later.answered);
        self.failed = self.failed.max(later.failed);
    }

    /// Each node has its own gate, so limits and calls add up.
    fn merge_node(&mut self, other: Self) {
        self.state = self.worse_state(&other);
        self.limit += other.limit;
        self.in_flight += other.in_flight;
        self.latency_ms = self.latency_ms.max(other.latency_ms);
        self.answered += other.answered;
        self.failed += other.failed;
    }
}

impl From<Point<OriginSample>> for OriginPoint {
    fn from(Point { at, sample }: Point<OriginSample>) -> Self {
        let OriginSample { limit, in_flight, state, latency_ms, answered, failed } = sample;
        Self { at, limit, in_flight, state, latency_ms, answered, failed }
    }
}
