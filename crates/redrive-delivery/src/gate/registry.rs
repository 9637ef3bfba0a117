//! The gates of this node by origin, and the permit that a call carries.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::RandomSource;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::origin::{AdmittedCall, Decision, Gate};
use super::{AttemptKind, EnterResult, GateRules, Hold, HoldKind, OriginHealth, OriginStatus};

/// Every origin's gate, in memory and for this node only.
///
/// ```
/// use std::time::Duration;
/// use redrive_delivery::gate::{EnterResult, GateRules, Gates, OriginHealth, AttemptKind};
/// use tokio::time::Instant;
///
/// let gates = Gates::new(GateRules::default());
/// match gates.enter("https://example.com:443", "/hook", AttemptKind::First, Instant::now(), &mut || 0.5) {
///     EnterResult::Admitted(permit) => permit.report(OriginHealth::Working, Duration::from_millis(20), Instant::now()),
///     EnterResult::Held { wait, hold } => println!("{:?}, back in {wait:?}", hold.kind),
/// }
/// ```
#[derive(Debug)]
pub struct Gates {
    rules: GateRules,
    /// Hashes paths with a random key, so that nobody can choose paths that collide.
    paths: RandomState,
    origins: Mutex<HashMap<Arc<str>, Arc<GateEntry>>>,
}

/// The gate of an origin, and a notification for calls that wait at it.
#[derive(Debug)]
struct GateEntry {
    gate: Mutex<Gate>,
    freed: Notify,
}

impl Gates {
    /// An empty registry.
    pub fn new(rules: GateRules) -> Self {
        Self { rules, paths: RandomState::new(), origins: Mutex::new(HashMap::new()) }
    }

    /// Admits a call to `path` of `origin`, or holds it for a while.
    pub fn enter(
        &self,
        origin: &str,
        path: &str,
        kind: AttemptKind,
        now: Instant,
        random_source: &mut dyn RandomSource,
    ) -> EnterResult {
        let path = self.paths.hash_one(path);
        let entry = self.entry(origin, now);
        let decision = lock(&entry.gate).enter(kind, path, now, random_source);
        match decision {
            Decision::Admit(call) => EnterResult::Admitted(Permit { entry, call: Some(call) }),
            Decision::Hold { wait, hold } => EnterResult::Held { wait, hold },
        }
    }

    /// Waits while the gate has reached its limit, until a call ends or until `deadline`. Returns at once if something else holds calls.
    ///
    /// This saves a round trip through the store for a task that can be sent within milliseconds.
    pub async fn wait_while_full(&self, origin: &str, kind: AttemptKind, deadline: Instant) {
        let Some(entry) = lock(&self.origins).get(origin).cloned() else { return };
        loop {
            let mut freed = pin!(entry.freed.notified());
            // Subscribes before the check, so that a call that ends in between wakes it too.
            freed.as_mut().enable();
            let current_hold = lock(&entry.gate).current_hold(kind, Instant::now());
            if !current_hold.is_some_and(|hold| hold.kind == HoldKind::Full) {
                return;
            }
            if timeout_at(deadline, freed).await.is_err() {
                return;
            }
        }
    }

    /// Why a first attempt would be held now, or none if it would be admitted.
    pub fn hold(&self, origin: &str, now: Instant) -> Option<Hold> {
        let entry = lock(&self.origins).get(origin).cloned()?;
        lock(&entry.gate).current_hold(AttemptKind::First, now)
    }

    /// The state of each origin, sorted by name.
    pub fn status(&self, now: Instant) -> Vec<OriginStatus> {
        let entries: Vec<_> =
            lock(&self.origins).iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
        let mut all: Vec<_> =
            entries.iter().map(|(name, entry)| lock(&entry.gate).status(name, now)).collect();
        all.sort_by(|a, b| a.origin.cmp(&b.origin));
        all
    }

    fn entry(&self, origin: &str, now: Instant) -> Arc<GateEntry> {
        let mut origins = lock(&self.origins);
        if let Some(entry) = origins.get(origin) {
            return entry.clone();
        }
        if origins.len() >= self.rules.origins_max {
            drop_least_used(&mut origins, now);
        }
        let gate = Mutex::new(Gate::new(self.rules.origin_concurrency, now));
        let entry = Arc::new(GateEntry { gate, freed: Notify::new() });
        origins.insert(origin.into(), entry.clone());
        entry
    }
}

/// The right to make one call. If it is dropped without [`Permit::report`], the call no longer counts, and the origin is not judged.
#[derive(Debug)]
#[must_use = "a dropped permit ends the call"]
pub struct Permit {
    entry: Arc<GateEntry>,
    call: Option<AdmittedCall>,
}

impl Permit {
    /// Reports how the call went and how long it took.
    pub fn report(mut self, health: OriginHealth, took: Duration, now: Instant) {
        if let Some(call) = self.call.take() {
            lock(&self.entry.gate).leave(&call, health, took, now);
            self.entry.freed.notify_one();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            lock(&self.entry.gate).abandon(&call);
            self.entry.freed.notify_one();
        }
    }
}

/// Drops a tenth of the origins, because finding them costs a scan of all. Drops the least recently used passing gates first, then the
/// others. A gate with calls in progress stays.
fn drop_least_used(origins: &mut HashMap<Arc<str>, Arc<GateEntry>>, now: Instant) {
    let mut idle: Vec<_> = origins
        .iter()
        .filter(|(_, entry)| Arc::strong_count(entry) == 1)
        .filter_map(|(name, entry)| {
            let gate = lock(&entry.gate);
            gate.is_idle().then(|| (gate.eviction_rank(now), name.clone()))
        })
        .collect();
    idle.sort();
    for (_, name) in idle.into_iter().take(origins.len().div_ceil(10)) {
        origins.remove(&name);
    }
}

/// A panic leaves a gate in a valid state, because every change consists of plain assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::OriginState;

    const DOWN: OriginHealth = OriginHealth::Struggling(None);

    fn enter(gates: &Gates, origin: &str, now: Instant) -> EnterResult {
        gates.enter(origin, "/", AttemptKind::First, now, &mut || 0.5)
    }

    fn block(gates: &Gates, origin: &str, now: Instant) {
        for _ in 0..1_000 {
            match enter(gates, origin, now) {
                EnterResult::Admitted(permit) => permit.report(DOWN, Duration::from_millis(20), now),
                EnterResult::Held { .. } => return,
            }
        }
        panic!("{origin} does not block");
    }

    /// A waiting call continues when another call ends, waits no longer than its deadline, and does not wait at a blocked gate.
    #[tokio::test(start_paused = true)]
    async fn a_call_waits_at_a_full_gate_but_not_at_a_blocked_one() {
        let gates = Arc::new(Gates::new(GateRules::default().with_origin_concurrency(1)));
        let (began, ms) = (Instant::now(), Duration::from_millis(1));
        let EnterResult::Admitted(permit) = enter(&gates, "a", began) else {
            panic!("a new gate admits calls")
        };
        gates.wait_while_full("a", AttemptKind::First, began + 5 * ms).await;
        assert_eq!(began.elapsed(), 5 * ms, "no call has ended");
        let waiting = tokio::spawn({
            let gates = gates.clone();
            async move { gates.wait_while_full("a", AttemptKind::First, began + 1_000 * ms).await }
        });
        tokio::time::sleep(ms).await;
        permit.report(OriginHealth::Working, ms, Instant::now());
        waiting.await.expect("the waiting task does not panic");
        assert_eq!(began.elapsed(), 6 * ms);
        assert!(matches!(enter(&gates, "a", Instant::now()), EnterResult::Admitted(_)));
        block(&gates, "down", Instant::now());
        gates.wait_while_full("down", AttemptKind::First, began + 1_000 * ms).await;
        assert_eq!(began.elapsed(), 6 * ms);
    }

    #[test]
    fn a_dropped_permit_counts_neither_as_a_call_nor_as_a_result() {
        let gates = Gates::new(GateRules::default().with_origin_concurrency(1));
        let now = Instant::now();
        for _ in 0..100 {
            let EnterResult::Admitted(permit) = enter(&gates, "a", now) else {
                panic!("the dropped call still counts")
            };
            assert!(matches!(enter(&gates, "a", now), EnterResult::Held { .. }));
            assert_eq!(gates.hold("a", now).map(|hold| hold.kind), Some(HoldKind::Full));
            drop(permit);
        }
        let status = &gates.status(now)[0];
        assert_eq!((status.in_flight, status.answered, status.failed, status.latency), (0, 0, 0, None));
    }

    #[test]
    fn one_origin_does_not_affect_another() {
        let gates = Gates::new(GateRules::default());
        let now = Instant::now();
        block(&gates, "a", now);
        assert_eq!(gates.hold("a", now).map(|hold| hold.kind), Some(HoldKind::Blocked));
        assert_eq!(gates.hold("b", now), None);
        assert!(matches!(enter(&gates, "b", now), EnterResult::Admitted(_)));
        let states: Vec<_> =
            gates.status(now).into_iter().map(|status| (status.origin, status.state)).collect();
        assert_eq!(states, [("a".into(), OriginState::Blocked), ("b".into(), OriginState::Passing)]);
    }

    #[test]
    fn the_least_recently_used_gates_are_dropped_but_not_blocked_or_busy_ones() {
        let gates = Gates::new(GateRules { origins_max: 100, ..GateRules::default() });
        let start = Instant::now();
        block(&gates, "blocked", start);
        let EnterResult::Admitted(permit) = enter(&gates, "busy", start) else {
            panic!("a new gate admits calls")
        };
        for origin in 0..10_000_u64 {
            drop(enter(&gates, &origin.to_string(), start + Duration::from_micros(origin)));
        }
        let status = gates.status(start);
        assert!(status.len() <= 100, "{} origins", status.len());
        for kept in ["blocked", "busy", "9999", "9950"] {
            assert!(status.iter().any(|status| status.origin == kept), "{kept} was dropped");
        }
        permit.report(OriginHealth::Working, Duration::ZERO, start);
    }

    #[test]
    fn the_number_of_gates_is_bounded_even_if_every_origin_is_blocked() {
        let gates = Gates::new(GateRules { origins_max: 50, ..GateRules::default() });
        let now = Instant::now();
        for origin in 0..200 {
            block(&gates, &origin.to_string(), now);
        }
        assert!(gates.status(now).len() <= 50);
    }

    #[test]
    fn an_enter_and_a_report_take_less_than_20_microseconds() {
        let gates = Gates::new(GateRules::default());
        let start = Instant::now();
        let calls = 100_000;
        for _ in 0..calls {
            let EnterResult::Admitted(permit) = enter(&gates, "https://example.com:443", start) else {
                panic!("the gate holds a call")
            };
            permit.report(OriginHealth::Working, Duration::from_millis(1), start);
        }
        let each = start.elapsed() / calls;
        println!("{each:?} for an enter and a report");
        assert!(
            each < Duration::from_micros(20),
            "{each:?}; the limit is generous because the machine may be busy"
        );
    }
}
