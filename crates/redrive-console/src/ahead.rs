//! Answers of routes that the service is about to have.
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rates {
    pub(crate) succeeded: f64,
    pub(crate) retried: f64,
    pub(crate) exhausted: f64,
    pub(crate) other: f64,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lag {
    pub(crate) p50_ms: Option<u64>,
    pub(crate) p99_ms: Option<u64>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Wrong {
    pub(crate) severity: String,
    pub(crate) text: String,
    pub(crate) page: String,
    #[serde(default)]
    pub(crate) query: BTreeMap<String, String>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Overview {
    pub(crate) now: i64,
    pub(crate) jobs: BTreeMap<String, u64>,
    pub(crate) oldest_due_ms: Option<u64>,
    pub(crate) attempts_per_second: Rates,
    pub(crate) start_lag: Lag,
    pub(crate) success_rate: Option<f64>,
    pub(crate) paused_queues: Vec<String>,
    pub(crate) problems: Vec<Wrong>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Series {
    pub(crate) step_ms: i64,
    pub(crate) points: Vec<Point>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Point {
    pub(crate) at: i64,
    pub(crate) succeeded: f64,
    pub(crate) retried: f64,
    pub(crate) exhausted: f64,
    pub(crate) other: f64,
    pub(crate) start_lag_p50_ms: Option<u64>,
    pub(crate) start_lag_p99_ms: Option<u64>,
    #[serde(default)]
    pub(crate) jobs: BTreeMap<String, u64>,
    pub(crate) oldest_due_ms: Option<u64>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OriginSeries {
    pub(crate) step_ms: i64,
    pub(crate) points: Vec<OriginPoint>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OriginPoint {
    pub(crate) at: i64,
    pub(crate) limit: f64,
    pub(crate) in_flight: f64,
    pub(crate) state: String,
    pub(crate) latency_ms: Option<u64>,
    pub(crate) answered: f64,
    pub(crate) failed: f64,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Nodes {
    pub(crate) items: Vec<Node>,
    pub(crate) looked_at: u64,
    pub(crate) complete: bool,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) service: bool,
    pub(crate) version: Option<String>,
    pub(crate) started_at: Option<i64>,
    pub(crate) seen_at: Option<i64>,
    pub(crate) leases: u64,
    pub(crate) oldest_lease_at: Option<i64>,
    pub(crate) kinds: Vec<String>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Schedules {
    pub(crate) items: Vec<Schedule>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Schedule {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) queue: String,
    #[serde(default)]
    pub(crate) tenant: Option<String>,
    pub(crate) timing: String,
    pub(crate) missed: String,
    pub(crate) paused: bool,
    pub(crate) settled_until: Option<i64>,
    pub(crate) upcoming: Vec<i64>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Begun {
    pub(crate) job_id: String,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    pub(crate) attempts: u64,
    pub(crate) exhausted: u64,
    pub(crate) succeeded: u64,
    pub(crate) mean_ms_to_success: Option<u64>,
}
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Replay {
    pub(crate) looked_at: u64,
    pub(crate) complete: bool,
    pub(crate) tasks: u64,
    pub(crate) actual: Outcome,
    pub(crate) replayed: Outcome,
}
