//! Signals: first in, first out, each taken once.

use redrive_core::limits::STEP_BYTES_MAX;
use redrive_core::steps::{NewStep, RememberResult, Signal, SignalResult, Step, StepKind};
use redrive_core::{JobId, Lease, SignalName, State};
use uuid::Uuid;

use super::chapter;
use super::fixture::{LEASE, StoreFixture, concurrently, job_id, only, rejected};
use super::steps::step;

chapter!("signals":
    are_taken_in_the_order_of_arrival,
    are_taken_by_name_and_job,
    are_taken_once_by_sixteen,
    with_several_names_are_listed_in_the_order_of_arrival,
    are_listed_until_they_are_taken,
    are_kept_once_under_an_id,
    are_not_pending_again_after_they_were_taken,
    are_not_taken_under_a_lost_lease,
    are_not_taken_by_a_step_that_exists_already,
    that_are_skipped_are_not_taken,
    are_not_skipped_under_a_lost_lease,
    are_accepted_by_every_live_job,
    are_rejected_if_oversized,
);

pub(super) fn signal_name(name: &str) -> SignalName {
    SignalName::new(name).expect("a legal name")
}

fn signal(job: JobId, id: u128, name: &str, value: &[u8]) -> Signal {
    Signal { job, id: Uuid::from_u128(id), name: signal_name(name), value: value.to_vec() }
}

impl StoreFixture {
    pub(super) async fn signal(&self, job: JobId, id: u128, name: &str, value: &[u8]) -> SignalResult {
        only(self.store.signal(vec![signal(job, id, name, value)]).await.expect("signal"))
    }

    pub(super) async fn pending(&self, job: JobId, names: &[&str]) -> Vec<Signal> {
        let names = names.iter().map(|name| signal_name(name)).collect();
        self.store.pending_signals(job, names, 100).await.expect("pending_signals")
    }

    /// Takes the oldest signal as the step at `place`, and returns its value.
    async fn take(&self, lease: Lease, place: u32, name: &str) -> Option<Vec<u8>> {
        let oldest = self.pending(lease.id, &[name]).await.into_iter().next()?;
        match only(self.store.remember(vec![step_taking(lease, place, &oldest)]).await.expect("remember")) {
            RememberResult::Stored(step) => Some(step.value),
            other => panic!("{other:?}"),
        }
    }
}

/// A step that takes `signal`.
pub(super) fn step_taking(lease: Lease, place: u32, signal: &Signal) -> NewStep {
    let step = Step { kind: StepKind::Signal, ..step(place, &signal.value) };
    NewStep { takes: Some(signal.id), ..NewStep::new(lease, step) }
}

async fn are_taken_in_the_order_of_arrival(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    for (id, value) in [(9, b"first"), (3, b"secnd"), (7, b"third")] {
        assert_eq!(fixture.signal(lease.id, id, "go", value).await, SignalResult::Stored);
    }
    for (place, value) in [(0, Some(&b"first"[..])), (1, Some(b"secnd")), (2, Some(b"third")), (3, None)] {
        assert_eq!(fixture.take(lease, place, "go").await.as_deref(), value);
    }
    let values: Vec<Vec<u8>> = fixture.recall(lease).await.into_iter().map(|step| step.value).collect();
    assert_eq!(values, [b"first", b"secnd", b"third"]);
}

async fn are_taken_by_name_and_job(fixture: StoreFixture) {
    let (lease, other) = (fixture.running().await.lease(), fixture.running().await.lease());
    fixture.signal(lease.id, 1, "go", b"mine").await;
    fixture.signal(other.id, 2, "stop", b"other").await;
    assert_eq!(fixture.take(lease, 0, "stop").await, None);
    assert_eq!(fixture.take(other, 0, "go").await, None);
    assert_eq!(fixture.take(lease, 0, "go").await.as_deref(), Some(&b"mine"[..]));
}

async fn are_taken_once_by_sixteen(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    let wanted = signal(lease.id, 1, "go", b"a");
    fixture.signal(lease.id, 1, "go", b"a").await;
    let answers = concurrently(16, |place| {
        let (store, new_step) = (fixture.store.clone(), step_taking(lease, place as u32, &wanted));
        async move { only(store.remember(vec![new_step]).await.expect("remember")) }
    })
    .await;
    let kept = answers.iter().filter(|answer| matches!(answer, RememberResult::Stored(_))).count();
    let late = answers.iter().filter(|answer| **answer == RememberResult::NoSignal).count();
    assert_eq!((kept, late), (1, 15), "{answers:?}");
    assert_eq!(fixture.recall(lease).await.len(), 1);
}

async fn with_several_names_are_listed_in_the_order_of_arrival(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    for (id, name) in [(9, "b"), (3, "a"), (5, "c"), (1, "b")] {
        fixture.signal(lease.id, id, name, b"x").await;
    }
    let listed = fixture.pending(lease.id, &["a", "b"]).await;
    let expected = [(9, "b"), (3, "a"), (1, "b")].map(|(id, name)| signal(lease.id, id, name, b"x"));
    assert_eq!(listed, expected);
    let two = fixture.store.pending_signals(lease.id, vec![signal_name("a"), signal_name("b")], 2).await;
    assert_eq!(two.expect("pending_signals"), expected[..2]);
    assert_eq!(fixture.pending(lease.id, &[]).await, []);
    assert_eq!(fixture.pending(job_id(99), &["a"]).await, []);
}

async fn are_listed_until_they_are_taken(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    fixture.signal(lease.id, 1, "go", b"a").await;
    for _ in 0..2 {
        assert_eq!(fixture.pending(lease.id, &["go"]).await, [signal(lease.id, 1, "go", b"a")]);
    }
    fixture.take(lease, 0, "go").await;
    assert_eq!(fixture.pending(lease.id, &["go"]).await, []);
}

async fn are_kept_once_under_an_id(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    fixture.signal(lease.id, 1, "go", b"a").await;
    assert_eq!(fixture.signal(lease.id, 1, "go", b"b").await, SignalResult::Stored);
    assert_eq!(fixture.take(lease, 0, "go").await.as_deref(), Some(&b"a"[..]));
    assert_eq!(fixture.take(lease, 1, "go").await, None);
}

async fn are_not_pending_again_after_they_were_taken(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    fixture.signal(lease.id, 1, "go", b"a").await;
    fixture.take(lease, 0, "go").await;
    assert_eq!(fixture.signal(lease.id, 1, "go", b"a").await, SignalResult::Stored);
    assert_eq!(fixture.take(lease, 1, "go").await, None);
}

async fn are_not_taken_under_a_lost_lease(fixture: StoreFixture) {
    let old = fixture.running().await.lease();
    fixture.signal(old.id, 1, "go", b"a").await;
    fixture.clock.advance(LEASE);
    let new = only(fixture.reclaim(1).await).lease();
    let late = step_taking(old, 0, &signal(old.id, 1, "go", b"a"));
    let late = fixture.store.remember(vec![late]).await.expect("remember");
    assert_eq!(late, [RememberResult::LeaseLost]);
    assert_eq!(fixture.take(new, 0, "go").await.as_deref(), Some(&b"a"[..]));
}

async fn are_not_taken_by_a_step_that_exists_already(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    fixture.signal(lease.id, 1, "go", b"a").await;
    fixture.signal(lease.id, 2, "go", b"b").await;
    fixture.take(lease, 0, "go").await;
    let again = step_taking(lease, 0, &signal(lease.id, 2, "go", b"b"));
    let again = only(fixture.store.remember(vec![again]).await.expect("remember"));
    assert!(matches!(&again, RememberResult::AlreadyStored(step) if step.value == b"a"), "{again:?}");
    assert_eq!(fixture.take(lease, 1, "go").await.as_deref(), Some(&b"b"[..]));
}

async fn that_are_skipped_are_not_taken(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    fixture.signal(lease.id, 1, "go", b"bad").await;
    fixture.signal(lease.id, 2, "go", b"good").await;
    let skipped = vec![Uuid::from_u128(1), Uuid::from_u128(77)];
    assert!(fixture.store.skip_signals(lease, skipped).await.expect("skip_signals"));
    assert_eq!(fixture.pending(lease.id, &["go"]).await, [signal(lease.id, 2, "go", b"good")]);
    let bad = step_taking(lease, 0, &signal(lease.id, 1, "go", b"bad"));
    assert_eq!(fixture.store.remember(vec![bad]).await.expect("remember"), [RememberResult::NoSignal]);
    assert_eq!(fixture.take(lease, 0, "go").await.as_deref(), Some(&b"good"[..]));
}

async fn are_not_skipped_under_a_lost_lease(fixture: StoreFixture) {
    let old = fixture.running().await.lease();
    fixture.signal(old.id, 1, "go", b"a").await;
    fixture.clock.advance(LEASE);
    fixture.reclaim(1).await;
    assert!(!fixture.store.skip_signals(old, vec![Uuid::from_u128(1)]).await.expect("skip_signals"));
    assert_eq!(fixture.pending(old.id, &["go"]).await.len(), 1);
}

async fn are_accepted_by_every_live_job(fixture: StoreFixture) {
    for state in State::ALL {
        let job = fixture.in_state(state).await;
        let expected = if state.is_final() { SignalResult::Ended(state) } else { SignalResult::Stored };
        assert_eq!(fixture.signal(job.id, 1, "go", b"").await, expected, "{state}");
    }
    assert_eq!(fixture.signal(job_id(99), 1, "go", b"").await, SignalResult::NotFound);
}

async fn are_rejected_if_oversized(fixture: StoreFixture) {
    let job = fixture.running().await.id;
    let large = signal(job, 1, "go", &vec![7; STEP_BYTES_MAX + 1]);
    assert_eq!(rejected(fixture.store.signal(vec![large]).await).field, "signal");
}
