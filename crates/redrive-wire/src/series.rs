//! Counts over time, for charts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::origin::GateState;

/// The length of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
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

    /// The largest number of points.
    pub fn points_max(self) -> usize {
        match self {
            Self::Hour => 360,
            Self::Day => 288,
        }
    }
}

/// Selects the length of a series.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SeriesQuery {
    /// The length of the series; an hour when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub span: Option<Span>,
}

/// Attempts of all nodes, and jobs in the store, over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Series {
    /// The time from one point to the next.
    pub step_ms: i64,
    /// The points, oldest first; steps without data are left out.
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
    /// Attempts that failed and were retried.
    pub retried: u64,
    /// Attempts after which the job was dead.
    pub dead: u64,
    /// Attempts with another outcome, such as a cancel.
    pub other: u64,
    /// The median time from due to started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_lag_p50_ms: Option<u64>,
    /// The 99th percentile of the time from due to started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_lag_p99_ms: Option<u64>,
    /// Jobs in the store by state.
    pub jobs: BTreeMap<String, u64>,
    /// How long the oldest due job had been due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_due_ms: Option<u64>,
}

/// Selects the origin and the length of a series.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OriginSeriesQuery {
    /// The origin, as `GET /v1/origins` names it.
    pub origin: String,
    /// The length of the series; an hour when absent.
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
    /// The points, oldest first; steps without calls are left out.
    pub points: Vec<OriginPoint>,
}

/// One step of an origin's gate, over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OriginPoint {
    /// When the step began, in epoch ms.
    pub at: i64,
    /// The largest number of concurrent calls that the gates allow, on all nodes together.
    pub limit: u64,
    /// The highest number of concurrent calls within the step, on all nodes together.
    pub in_flight: u64,
    /// The state of the gate; the worst of all nodes.
    pub state: GateState,
    /// The smoothed duration of calls; the longest of all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// The highest number of recent answers within the step, on all nodes together.
    pub answered: u64,
    /// The highest number of recent failures within the step, on all nodes together.
    pub failed: u64,
}
