//! Numbers over time, as charts draw them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::origin::GateState;

/// How far back a series goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Span {
    /// An hour, in steps of 10 seconds.
    #[default]
    Hour,
    /// A day, in steps of 5 minutes.
    Day,
}

impl Span {
    /// The time from one point to the next.
    pub fn step_ms(self) -> i64 {
        match self {
            Self::Hour => 10_000,
            Self::Day => 300_000,
        }
    }

    /// How many points it has at most.
    pub fn points_max(self) -> usize {
        match self {
            Self::Hour => 360,
            Self::Day => 288,
        }
    }
}

/// How far back to look.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SeriesQuery {
    /// How far back; an hour when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub span: Option<Span>,
}

/// What the nodes of the service did and what the store held, over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Series {
    /// The time from one point to the next.
    pub step_ms: i64,
    /// The points, oldest first; steps of which nothing is known are left out.
    pub points: Vec<SeriesPoint>,
}

/// One step of a series, over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeriesPoint {
    /// When the step began, in epoch ms.
    pub at: i64,
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed and are followed by another.
    pub retried: u64,
    /// Attempts that ended their task as a dead letter.
    pub exhausted: u64,
    /// Attempts that ended otherwise, as by a cancel.
    pub other: u64,
    /// How long after it was due the middle one of the attempts was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_lag_p50_ms: Option<u64>,
    /// The same of the latest in a hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_lag_p99_ms: Option<u64>,
    /// Jobs in the store by state.
    pub jobs: BTreeMap<String, u64>,
    /// How late the job was that had been due for longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_due_ms: Option<u64>,
}

/// Of which origin, and how far back.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OriginSeriesQuery {
    /// The origin, as `GET /origins` names it.
    pub origin: String,
    /// How far back; an hour when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub span: Option<Span>,
}

/// The gate of an origin over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OriginSeries {
    /// The time from one point to the next.
    pub step_ms: i64,
    /// The points, oldest first; steps in which it was not called are left out.
    pub points: Vec<OriginPoint>,
}

/// One step of an origin's gate, over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OriginPoint {
    /// When the step began, in epoch ms.
    pub at: i64,
    /// How many calls may be under way, on all nodes together.
    pub limit: u64,
    /// How many were, at most.
    pub in_flight: u64,
    /// Where the gate stood; the worst of the nodes.
    pub state: GateState,
    /// The smoothed duration of calls; the longest of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// Answers of late, at most.
    pub answered: u64,
    /// Failures of late, at most.
    pub failed: u64,
}
