//! The metrics of the service, in the OpenMetrics text format. Each service has its own registry; nothing is global.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use redrive_core::store::Stats;
use redrive_core::{PolicyRef, State, Timestamp};

use crate::series::counters::Counters;

/// The media type of [`Metrics::render`].
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The label of all inline policies. With a label for each of them, the number of series would be unbounded.
const INLINE: &str = "inline";

/// The metrics of one service.
pub struct Metrics {
    /// The counters for the series, which each sample resets.
    pub(crate) counters: Counters,
    registry: Registry,
    attempts: Family<AttemptLabels, Counter>,
    attempt_duration: Family<OutcomeLabel, Histogram, fn() -> Histogram>,
    task_age: Histogram,
    start_lag: Histogram,
    created: Counter,
    store_call: Family<VerbLabel, Histogram, fn() -> Histogram>,
    store_batch: Family<VerbLabel, Histogram, fn() -> Histogram>,
    store_errors: Family<VerbLabel, Counter>,
    http: Family<HttpLabels, Counter>,
    http_duration: Family<RouteLabel, Histogram, fn() -> Histogram>,
    node_paused: Gauge,
}

/// The state of the store and of the gates. Each scrape has its own gauges, so that concurrent scrapes do not mix their values.
#[derive(Default)]
struct Gauges {
    tasks: Family<StateLabel, Gauge>,
    oldest_due: Gauge<f64, AtomicU64>,
    gate_state: Family<OriginLabel, Gauge>,
    gate_limit: Family<OriginLabel, Gauge>,
    gate_in_flight: Family<OriginLabel, Gauge>,
}

/// The state of a gate, as the numbers that the gauges show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateNumbers {
    /// The origin, for example `http://example.com:80`.
    pub origin: String,
    /// 0 passing, 1 held or probing, 2 blocked.
    pub state: i64,
    /// Calls that may run at once.
    pub limit: i64,
    /// Calls in progress.
    pub in_flight: i64,
}

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Self {
        let metrics = Self {
            counters: Counters::default(),
            registry: Registry::default(),
            attempts: Family::default(),
            attempt_duration: Family::new_with_constructor(seconds),
            task_age: ages(),
            start_lag: seconds(),
            created: Counter::default(),
            store_call: Family::new_with_constructor(seconds),
            store_batch: Family::new_with_constructor(items),
            store_errors: Family::default(),
            http: Family::default(),
            http_duration: Family::new_with_constructor(seconds),
            node_paused: Gauge::default(),
        };
        metrics.register()
    }

    fn register(mut self) -> Self {
        let mut registry = std::mem::take(&mut self.registry);
        registry.register("retry_attempts", "Attempts settled, by outcome and policy", self.attempts.clone());
        registry.register(
            "retry_attempt_duration_seconds",
            "Duration of attempts",
            self.attempt_duration.clone(),
        );
        registry.register(
            "retry_task_age_seconds",
            "Age of a task when an attempt is settled",
            self.task_age.clone(),
        );
        registry.register("retry_start_lag_seconds", "Time from due to claimed", self.start_lag.clone());
        registry.register("retry_tasks_created", "Tasks created by this node", self.created.clone());
        registry.register(
            "retry_store_call_seconds",
            "Duration of calls to the store",
            self.store_call.clone(),
        );
        registry.register(
            "retry_store_batch_items",
            "Items in one call to the store",
            self.store_batch.clone(),
        );
        registry.register("retry_store_errors", "Calls to the store that failed", self.store_errors.clone());
        registry.register("retry_http_requests", "Requests answered", self.http.clone());
        registry.register("retry_http_request_seconds", "Duration of requests", self.http_duration.clone());
        registry.register(
            "retry_node_paused",
            "1 while this node claims nothing because of a problem of its own",
            self.node_paused.clone(),
        );
        self.registry = registry;
        self
    }

    /// Counts a settled attempt.
    pub fn attempt(&self, outcome: &'static str, policy: &PolicyRef, took: Duration, age: Duration) {
        let policy = policy_label(policy);
        self.attempts.get_or_create(&AttemptLabels { outcome, policy }).inc();
        self.attempt_duration.get_or_create(&OutcomeLabel { outcome }).observe(took.as_secs_f64());
        self.task_age.observe(age.as_secs_f64());
        self.counters.attempt(outcome);
    }

    /// Counts how late a task was claimed.
    pub fn started(&self, lag: Duration) {
        self.start_lag.observe(lag.as_secs_f64());
        self.counters.started(lag);
    }

    /// Counts tasks that were created.
    pub fn created(&self, tasks: usize) {
        self.created.inc_by(tasks as u64);
    }

    /// Sets whether this node claims nothing because of a problem of its own.
    pub fn node_paused(&self, paused: bool) {
        self.node_paused.set(i64::from(paused));
    }

    /// Counts a call to the store.
    pub fn store_call(&self, verb: &'static str, items: usize, took: Duration, ok: bool) {
        let label = VerbLabel { verb };
        self.store_call.get_or_create(&label).observe(took.as_secs_f64());
        self.store_batch.get_or_create(&label).observe(items as f64);
        if !ok {
            self.store_errors.get_or_create(&label).inc();
        }
    }

    /// Counts an answered request.
    pub fn request(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        let labels = HttpLabels { method, route: route.to_owned(), status };
        self.http.get_or_create(&labels).inc();
        self.http_duration.get_or_create(&RouteLabel { route: labels.route }).observe(took.as_secs_f64());
    }

    /// All metrics as text, with the current state of the store and of the gates.
    pub fn render(&self, stats: &Stats, gates: &[GateNumbers]) -> String {
        let gauges = Gauges::read(stats, gates).register();
        let mut written = String::new();
        // Writing into a string does not fail.
        let _ = text::encode_registry(&mut written, &self.registry);
        let _ = text::encode_registry(&mut written, &gauges);
        let _ = text::encode_eof(&mut written);
        written
    }
}

impl Gauges {
    fn read(stats: &Stats, gates: &[GateNumbers]) -> Self {
        let gauges = Self::default();
        for state in State::ALL {
            let count = i64::try_from(stats.in_state(state)).unwrap_or(i64::MAX);
            gauges.tasks.get_or_create(&StateLabel { state: state.name() }).set(count);
        }
        let late = |due: Timestamp| stats.now.since(due).as_secs_f64();
        gauges.oldest_due.set(stats.oldest_due.map_or(0.0, late));
        for gate in gates {
            let label = OriginLabel { origin: gate.origin.clone() };
            gauges.gate_state.get_or_create(&label).set(gate.state);
            gauges.gate_limit.get_or_create(&label).set(gate.limit);
            gauges.gate_in_flight.get_or_create(&label).set(gate.in_flight);
        }
        gauges
    }

    fn register(self) -> Registry {
        let mut registry = Registry::default();
        registry.register("retry_tasks", "Jobs in the store, by state", self.tasks);
        registry.register(
            "retry_oldest_due_age_seconds",
            "How long the oldest due job has been due",
            self.oldest_due,
        );
        registry.register("retry_gate_state", "0 passing, 1 held or probing, 2 blocked", self.gate_state);
        registry.register("retry_gate_limit", "Calls that may run at once to an origin", self.gate_limit);
        registry.register("retry_gate_in_flight", "Calls in progress to an origin", self.gate_in_flight);
        registry
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn policy_label(policy: &PolicyRef) -> String {
    let name = policy.name.as_str();
    if name.starts_with("inline:") { INLINE } else { name }.to_owned()
}

/// From half a millisecond to two minutes.
fn seconds() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0,
    ])
}

/// From a hundredth of a second to a day.
fn ages() -> Histogram {
    Histogram::new([0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0])
}

fn items() -> Histogram {
    Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_000.0])
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    outcome: &'static str,
    policy: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabel {
    verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OriginLabel {
    origin: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[cfg(test)]
mod tests {
    use redrive_core::{Policy, PolicyName};

    use super::*;

    #[test]
    fn the_rendered_names_are_the_documented_ones() {
        let metrics = Metrics::new();
        let second = Duration::from_secs(1);
        let named = PolicyRef::first(PolicyName::new("orders").unwrap());
        metrics.attempt("done", &named, second, second);
        for attempts in [1, 2] {
            let inline = PolicyRef::inline(&Policy::default().with_max_attempts(attempts).unwrap());
            metrics.attempt("failed", &inline, second, second);
        }
        metrics.store_call("claim", 3, second, true);
        metrics.created(2);
        let gate = GateNumbers { origin: "http://a:80".into(), state: 2, limit: 1, in_flight: 0 };
        let text = metrics.render(&Stats::default(), &[gate]);
        for line in [
            "retry_attempts_total{outcome=\"done\",policy=\"orders\"} 1",
            "retry_attempts_total{outcome=\"failed\",policy=\"inline\"} 2",
            "retry_task_age_seconds_count 3",
            "retry_attempt_duration_seconds_count{outcome=\"done\"} 1",
            "retry_store_batch_items_sum{verb=\"claim\"} 3.0",
            "retry_tasks_created_total 2",
            "retry_tasks{state=\"dead\"} 0",
            "retry_node_paused 0",
            "retry_gate_state{origin=\"http://a:80\"} 2",
            "# EOF",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
        }
        let without = metrics.render(&Stats::default(), &[]);
        assert!(!without.contains("http://a:80"));
    }
}
