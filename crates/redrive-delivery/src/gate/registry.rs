//! The gates of this node by origin, and the permit that a call carries.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::Chance;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::origin::{Decision, Gate, Pass};
use super::{Admission, GateRules, Hold, HoldKind, OriginStatus, Signal, Turn};

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
    origins: Mutex<HashMap<Arc<str>, Arc<Place>>>,
}

/// An origin's gate, and who waits before it.
#[derive(Debug)]
struct Place {
    gate: Mutex<Gate>,
    freed: Notify,
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
        let place = self.place(origin, now);
        let decision = lock(&place.gate).enter(turn, path, now, chance);
        match decision {
            Decision::Go(pass) => Admission::Go(Permit { place, pass: Some(pass) }),
            Decision::Park { wait, hold } => Admission::Park { wait, hold },
        }
    }

    /// Waits before a gate that is full, and only full, until a call has left or `deadline` has come.
    ///
    /// A place that is free within milliseconds is not worth a way through the store.
    pub async fn wait_for_room(&self, origin: &str, turn: Turn, deadline: Instant) {
        let Some(place) = lock(&self.origins).get(origin).cloned() else { return };
        loop {
            let mut freed = pin!(place.freed.notified());
            // Enlisted before the look, so that a call that leaves between them wakes too.
            freed.as_mut().enable();
            let obstacle = lock(&place.gate).obstacle(turn, Instant::now());
            if !obstacle.is_some_and(|hold| hold.kind == HoldKind::Full) {
                return;
            }
            if timeout_at(deadline, freed).await.is_err() {
                return;
            }
        }
    }

    /// What would hold back a first attempt now, if anything.
    pub fn hold(&self, origin: &str, now: Instant) -> Option<Hold> {
        let place = lock(&self.origins).get(origin).cloned()?;
        lock(&place.gate).obstacle(Turn::First, now)
    }

    /// What is known of each origin, by name.
    pub fn status(&self, now: Instant) -> Vec<OriginStatus> {
        let places: Vec<_> =
            lock(&self.origins).iter().map(|(name, place)| (name.clone(), place.clone())).collect();
        let mut all: Vec<_> =
            places.iter().map(|(name, place)| lock(&place.gate).status(name, now)).collect();
        all.sort_by(|a, b| a.origin.cmp(&b.origin));
        all
    }

    fn place(&self, origin: &str, now: Instant) -> Arc<Place> {
        let mut origins = lock(&self.origins);
        if let Some(place) = origins.get(origin) {
            return place.clone();
        }
        if origins.len() >= self.rules.origins_max {
            forget_unused(&mut origins, now);
        }
        let gate = Mutex::new(Gate::new(self.rules.origin_concurrency, now));
        let place = Arc::new(Place { gate, freed: Notify::new() });
        origins.insert(origin.into(), place.clone());
        place
    }
}

/// The right to one call. Dropped without [`Permit::leave`], it frees its place and judges nothing.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once lets nobody wait for the call"]
pub struct Permit {
    place: Arc<Place>,
    pass: Option<Pass>,
}

impl Permit {
    /// Says what came of the call and how long it took.
    pub fn leave(mut self, signal: Signal, took: Duration, now: Instant) {
        if let Some(pass) = self.pass.take() {
            lock(&self.place.gate).leave(&pass, signal, took, now);
            self.place.freed.notify_one();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            lock(&self.place.gate).abandon(&pass);
            self.place.freed.notify_one();
        }
    }
}

/// Drops a tenth at once, since looking for them costs as much as all of them: the idle and open ones that were
/// unused for longest, then idle ones that are shut. A gate with a call under way is kept.
fn forget_unused(origins: &mut HashMap<Arc<str>, Arc<Place>>, now: Instant) {
    let mut idle: Vec<_> = origins
        .iter()
        .filter(|(_, place)| Arc::strong_count(place) == 1)
        .filter_map(|(name, place)| {
            let gate = lock(&place.gate);
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
    use crate::gate::OriginState;

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

    /// Who waits for a place gets it when a call leaves, waits no longer than it said, and does not wait before a gate that
    /// is closed.
    #[tokio::test(start_paused = true)]
    async fn a_full_gate_is_worth_a_short_wait_and_a_closed_one_is_not() {
        let gates = Arc::new(Gates::new(GateRules::default().with_origin_concurrency(1)));
        let (began, ms) = (Instant::now(), Duration::from_millis(1));
        let Admission::Go(permit) = enter(&gates, "a", began) else { panic!("the gate is new") };
        gates.wait_for_room("a", Turn::First, began + 5 * ms).await;
        assert_eq!(began.elapsed(), 5 * ms, "nobody left");
        let waiting = tokio::spawn({
            let gates = gates.clone();
            async move { gates.wait_for_room("a", Turn::First, began + 1_000 * ms).await }
        });
        tokio::time::sleep(ms).await;
        permit.leave(Signal::Success, ms, Instant::now());
        waiting.await.expect("it waits");
        assert_eq!(began.elapsed(), 6 * ms);
        assert!(matches!(enter(&gates, "a", Instant::now()), Admission::Go(_)));
        close(&gates, "down", Instant::now());
        gates.wait_for_room("down", Turn::First, began + 1_000 * ms).await;
        assert_eq!(began.elapsed(), 6 * ms);
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
