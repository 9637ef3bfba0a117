//! Answers that are read field by field: what a service of another version leaves out is shown as missing.

use std::collections::BTreeMap;

use serde::Deserialize;

/// How a service fares, as `GET /overview` tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Overview {
    /// Its time, in epoch ms.
    pub(crate) now: i64,
    /// Jobs by state.
    pub(crate) jobs: BTreeMap<String, u64>,
    /// How long the oldest due job has waited.
    pub(crate) oldest_due_ms: Option<u64>,
    /// Attempts by outcome.
    pub(crate) attempts_per_second: BTreeMap<String, f64>,
    /// From when a job is due to when its attempt starts.
    pub(crate) start_lag: StartLag,
    /// The share of attempts that succeed, from 0 to 1.
    pub(crate) success_rate: Option<f64>,
    /// Queues from which nothing is claimed.
    pub(crate) paused_queues: Vec<String>,
    /// What is wrong, in words.
    pub(crate) problems: Vec<Trouble>,
}

/// From when a job is due to when its attempt starts.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StartLag {
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
}

/// Something that is wrong.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trouble {
    /// `bad` or `warn`.
    pub(crate) severity: String,
    /// In words.
    pub(crate) text: String,
    /// The page of the console that shows it.
    #[serde(default)]
    pub(crate) page: String,
}

/// A process that works on the store.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) service: bool,
    pub(crate) version: Option<String>,
    pub(crate) started_at: Option<i64>,
    pub(crate) seen_at: Option<i64>,
    #[serde(default)]
    pub(crate) leases: u64,
    pub(crate) oldest_lease_at: Option<i64>,
    #[serde(default)]
    pub(crate) kinds: Vec<String>,
}

/// What enqueues a job again and again.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Schedule {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) queue: String,
    pub(crate) timing: String,
    #[serde(default)]
    pub(crate) paused: bool,
    #[serde(default)]
    pub(crate) upcoming: Vec<i64>,
}
