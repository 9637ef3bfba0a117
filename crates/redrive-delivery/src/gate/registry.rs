//! The gates of this node by origin, and the permit that a call carries.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::Chance;
use tokio::time::Instant;

use super::origin::{Decision, Gate, Pass};
use super::{Admission, GateRules, Hold, OriginStatus, Signal, Turn};

/// Every origin's gate, in memory and for this node only.
///
/// ```
/// use std::time::Duration;
/// use redrive_delivery::gate::{Admission, GateRules, Gates, Signal, Turn};
/// use tokio::time::Instant;
///
/// let gates = Gates::new(GateRules::default());
/// match gates.enter("https://example.com:443", "/hook", Turn::First, Instant::now(), &mut || 0.5) {
///     Admission::Go(permit) => permit.leave(Signal::Success, Duration::from_millis(20), Instant::now()),
///     Admission::Park { wait, hold } => println!("{:?}, back in {wait:?}", hold.kind),
/// }
/// ```
#[derive(Debug)]
pub struct Gates {
    rules: GateRules,
    /// Keyed at random, so that nobody can choose paths that collide.
    paths: RandomState,
    origins: Mutex<HashMap<Arc<str>, Arc<Mutex<Gate>>>>,
}

impl Gates {
    /// No origin is known yet.
    pub fn new(rules: GateRules) -> Self {
        Self { rules, paths: RandomState::new(), origins: Mutex::new(HashMap::new()) }
    }

    /// Lets a call to `path` of `origin` in, or says when to come back.
    pub fn enter(
        &self,
        origin: &str,
        path: &str,
        turn: Turn,
        now: Instant,
        chance: &mut dyn Chance,
    ) -> Admission {
        let path = self.paths.hash_one(path);
        let gate = self.gate(origin, now);
        let decision = lock(&gate).enter(turn, path, now, chance);
        match decision {
            Decision::Go(pass) => Admission::Go(Permit { gate, pass: Some(pass) }),
            Decision::Park { wait, hold } => Admission::Park { wait, hold },
        }
    }

    /// What would hold back a first attempt now, if anything.
    pub fn hold(&self, origin: &str, now: Instant) -> Option<Hold> {
        let gate = lock(&self.origins).get(origin).cloned()?;
        lock(&gate).obstacle(Turn::First, now)
    }

    /// What is known of each origin, by name.
    pub fn status(&self, now: Instant) -> Vec<OriginStatus> {
        let gates: Vec<_> =
            lock(&self.origins).iter().map(|(name, gate)| (name.clone(), gate.clone())).collect();
        let mut all: Vec<_> = gates.iter().map(|(name, gate)| lock(gate).status(name, now)).collect();
        all.sort_by(|a, b| a.origin.cmp(&b.origin));
        all
    }

    fn gate(&self, origin: &str, now: Instant) -> Arc<Mutex<Gate>> {
        let mut origins = lock(&self.origins);
        if let Some(gate) = origins.get(origin) {
            return gate.clone();
        }
        if origins.len() >= self.rules.origins_max {
            forget_unused(&mut origins, now);
        }
        let gate = Arc::new(Mutex::new(Gate::new(self.rules.origin_concurrency, now)));
        origins.insert(origin.into(), gate.clone());
        gate
    }
}

/// The right to one call. Dropped without [`Permit::leave`], it frees its place and judges nothing.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once lets nobody wait for the call"]
pub struct Permit {
    gate: Arc<Mutex<Gate>>,
    pass: Option<Pass>,
}

impl Permit {
    /// Says what came of the call and how long it took.
    pub fn leave(mut self, signal: Signal, took: Duration, now: Instant) {
        if let Some(pass) = self.pass.take() {
            lock(&self.gate).leave(&pass, signal, took, now);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            lock(&self.gate).abandon(&pass);
        }
    }
}

/// Drops a tenth at once, since looking for them costs as much as all of them: the idle and open ones that were
/// unused for longest, then idle ones that are shut. A gate with a call under way is kept.
fn forget_unused(origins: &mut HashMap<Arc<str>, Arc<Mutex<Gate>>>, now: Instant) {
    let mut idle: Vec<_> = origins
        .iter()
        .filter(|(_, gate)| Arc::strong_count(gate) == 1)
        .filter_map(|(name, gate)| {
            let gate = lock(gate);
            gate.is_idle().then(|| (gate.worth(now), name.clone()))
        })
        .collect();
    idle.sort();
    for (_, name) in idle.into_iter().take(origins.len().div_ceil(10)) {
        origins.remove(&name);
    }
}

/// A gate is left in order even by a panic: every change is made of plain assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{HoldKind, OriginState};

    const DOWN: Signal = Signal::Struggle(None);

    fn enter(gates: &Gates, origin: &str, now: Instant) -> Admission {
        gates.enter(origin, "/", Turn::First, now, &mut || 0.5)
    }

    fn close(gates: &Gates, origin: &str, now: Instant) {
        for _ in 0..1_000 {
            match enter(gates, origin, now) {
                Admission::Go(permit) => permit.leave(DOWN, Duration::from_millis(20), now),
                Admission::Park { .. } => return,
            }
        }
        panic!("{origin} does not close");
    }

    #[test]
    fn a_dropped_permit_frees_its_place_and_judges_nothing() {
        let gates = Gates::new(GateRules::default().with_origin_concurrency(1));
        let now = Instant::now();
        for _ in 0..100 {
            let Admission::Go(permit) = enter(&gates, "a", now) else { panic!("the place was not freed") };
            assert!(matches!(enter(&gates, "a", now), Admission::Park { .. }));
            assert_eq!(gates.hold("a", now).map(|hold| hold.kind), Some(HoldKind::Full));
            drop(permit);
        }
        let status = &gates.status(now)[0];
        assert_eq!((status.in_flight, status.answered, status.failed, status.latency), (0, 0, 0, None));
    }

    #[test]
    fn one_origin_does_not_disturb_another() {
        let gates = Gates::new(GateRules::default());
        let now = Instant::now();
        close(&gates, "a", now);
        assert_eq!(gates.hold("a", now).map(|hold| hold.kind), Some(HoldKind::Closed));
        assert_eq!(gates.hold("b", now), None);
        assert!(matches!(enter(&gates, "b", now), Admission::Go(_)));
        let states: Vec<_> =
            gates.status(now).into_iter().map(|status| (status.origin, status.state)).collect();
        assert_eq!(states, [("a".into(), OriginState::Closed), ("b".into(), OriginState::Open)]);
    }

    #[test]
    fn forgets_the_longest_unused_and_keeps_closed_and_busy_ones() {
        let gates = Gates::new(GateRules { origins_max: 100, ..GateRules::default() });
        let start = Instant::now();
        close(&gates, "closed", start);
        let Admission::Go(permit) = enter(&gates, "busy", start) else { panic!("new") };
        for origin in 0..10_000_u64 {
            drop(enter(&gates, &origin.to_string(), start + Duration::from_micros(origin)));
        }
        let status = gates.status(start);
        assert!(status.len() <= 100, "{} origins", status.len());
        for kept in ["closed", "busy", "9999", "9950"] {
            assert!(status.iter().any(|status| status.origin == kept), "{kept} was forgotten");
        }
        permit.leave(Signal::Success, Duration::ZERO, start);
    }

    #[test]
    fn stays_bounded_when_every_origin_is_closed() {
        let gates = Gates::new(GateRules { origins_max: 50, ..GateRules::default() });
        let now = Instant::now();
        for origin in 0..200 {
            close(&gates, &origin.to_string(), now);
        }
        assert!(gates.status(now).len() <= 50);
    }

    #[test]
    fn entering_and_leaving_cost_little() {
        let gates = Gates::new(GateRules::default());
        let start = Instant::now();
        let calls = 100_000;
        for _ in 0..calls {
            let Admission::Go(permit) = enter(&gates, "https://example.com:443", start) else {
                panic!("open")
            };
            permit.leave(Signal::Success, Duration::from_millis(1), start);
        }
        let each = start.elapsed() / calls;
        println!("{each:?} for both");
        assert!(each < Duration::from_micros(20), "{each:?}: generous, since the machine may be busy");
    }
}
