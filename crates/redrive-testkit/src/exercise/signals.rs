//! Signals: first in, first out, each taken once.

use redrive_core::limits::STEP_BYTES_MAX;
use redrive_core::steps::{Memory, Remembered, Signal, Signalled, Step, StepKind};
use redrive_core::{JobId, Lease, SignalName, State};
use uuid::Uuid;

use super::chapter;
use super::stage::{LEASE, Stage, at_once, job_id, only, refused};
use super::steps::step;

chapter!("signals":
    are_taken_in_the_order_they_came,
    are_taken_by_name_and_job,
    are_taken_once_by_sixteen,
    by_several_names_are_listed_in_the_order_they_came,
    are_listed_as_long_as_nobody_takes_them,
    are_kept_once_under_an_id,
    that_were_taken_do_not_come_back,
    are_not_taken_under_a_lost_lease,
    are_not_taken_by_a_step_that_was_remembered,
    that_are_set_aside_are_not_taken,
    are_not_set_aside_under_a_lost_lease,
    find_every_job_that_has_not_ended,
    that_are_too_large_are_refused,
);

pub(super) fn named(name: &str) -> SignalName {
    SignalName::new(name).expect("a legal name")
}

fn signal(job: JobId, id: u128, name: &str, value: &[u8]) -> Signal {
    Signal { job, id: Uuid::from_u128(id), name: named(name), value: value.to_vec() }
}

impl Stage {
    pub(super) async fn signal(&self, job: JobId, id: u128, name: &str, value: &[u8]) -> Signalled {
        only(self.store.signal(vec![signal(job, id, name, value)]).await.expect("signal"))
    }

    pub(super) async fn pending(&self, job: JobId, names: &[&str]) -> Vec<Signal> {
        let names = names.iter().map(|name| named(name)).collect();
        self.store.pending_signals(job, names, 100).await.expect("pending_signals")
    }

    /// Takes the oldest signal as the step at `place`; its value, if there was one.
    async fn take(&self, lease: Lease, place: u32, name: &str) -> Option<Vec<u8>> {
        let oldest = self.pending(lease.id, &[name]).await.into_iter().next()?;
        match only(self.store.remember(vec![taking(lease, place, &oldest)]).await.expect("remember")) {
            Remembered::Kept(step) => Some(step.value),
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn taking(lease: Lease, place: u32, signal: &Signal) -> Memory {
    let step = Step { kind: StepKind::Signal, ..step(place, &signal.value) };
    Memory { takes: Some(signal.id), ..Memory::new(lease, step) }
}

async fn are_taken_in_the_order_they_came(stage: Stage) {
    let lease = stage.running().await.lease();
    for (id, value) in [(9, b"first"), (3, b"secnd"), (7, b"third")] {
        assert_eq!(stage.signal(lease.id, id, "go", value).await, Signalled::Kept);
    }
    for (place, value) in [(0, Some(&b"first"[..])), (1, Some(b"secnd")), (2, Some(b"third")), (3, None)] {
        assert_eq!(stage.take(lease, place, "go").await.as_deref(), value);
    }
    let values: Vec<Vec<u8>> = stage.recall(lease).await.into_iter().map(|step| step.value).collect();
    assert_eq!(values, [b"first", b"secnd", b"third"]);
}

async fn are_taken_by_name_and_job(stage: Stage) {
    let (lease, other) = (stage.running().await.lease(), stage.running().await.lease());
    stage.signal(lease.id, 1, "go", b"mine").await;
    stage.signal(other.id, 2, "stop", b"other").await;
    assert_eq!(stage.take(lease, 0, "stop").await, None);
    assert_eq!(stage.take(other, 0, "go").await, None);
    assert_eq!(stage.take(lease, 0, "go").await.as_deref(), Some(&b"mine"[..]));
}

async fn are_taken_once_by_sixteen(stage: Stage) {
    let lease = stage.running().await.lease();
    let wanted = signal(lease.id, 1, "go", b"a");
    stage.signal(lease.id, 1, "go", b"a").await;
    let answers = at_once(16, |place| {
        let (store, taking) = (stage.store.clone(), taking(lease, place as u32, &wanted));
        async move { only(store.remember(vec![taking]).await.expect("remember")) }
    })
    .await;
    let kept = answers.iter().filter(|answer| matches!(answer, Remembered::Kept(_))).count();
    let late = answers.iter().filter(|answer| **answer == Remembered::NoSignal).count();
    assert_eq!((kept, late), (1, 15), "{answers:?}");
    assert_eq!(stage.recall(lease).await.len(), 1);
}

async fn by_several_names_are_listed_in_the_order_they_came(stage: Stage) {
    let lease = stage.running().await.lease();
    for (id, name) in [(9, "b"), (3, "a"), (5, "c"), (1, "b")] {
        stage.signal(lease.id, id, name, b"x").await;
    }
    let listed = stage.pending(lease.id, &["a", "b"]).await;
    let expected = [(9, "b"), (3, "a"), (1, "b")].map(|(id, name)| signal(lease.id, id, name, b"x"));
    assert_eq!(listed, expected);
    let two = stage.store.pending_signals(lease.id, vec![named("a"), named("b")], 2).await;
    assert_eq!(two.expect("pending_signals"), expected[..2]);
    assert_eq!(stage.pending(lease.id, &[]).await, []);
    assert_eq!(stage.pending(job_id(99), &["a"]).await, []);
}

async fn are_listed_as_long_as_nobody_takes_them(stage: Stage) {
    let lease = stage.running().await.lease();
    stage.signal(lease.id, 1, "go", b"a").await;
    for _ in 0..2 {
        assert_eq!(stage.pending(lease.id, &["go"]).await, [signal(lease.id, 1, "go", b"a")]);
    }
    stage.take(lease, 0, "go").await;
    assert_eq!(stage.pending(lease.id, &["go"]).await, []);
}

async fn are_kept_once_under_an_id(stage: Stage) {
    let lease = stage.running().await.lease();
    stage.signal(lease.id, 1, "go", b"a").await;
    assert_eq!(stage.signal(lease.id, 1, "go", b"b").await, Signalled::Kept);
    assert_eq!(stage.take(lease, 0, "go").await.as_deref(), Some(&b"a"[..]));
    assert_eq!(stage.take(lease, 1, "go").await, None);
}

async fn that_were_taken_do_not_come_back(stage: Stage) {
    let lease = stage.running().await.lease();
    stage.signal(lease.id, 1, "go", b"a").await;
    stage.take(lease, 0, "go").await;
    assert_eq!(stage.signal(lease.id, 1, "go", b"a").await, Signalled::Kept);
    assert_eq!(stage.take(lease, 1, "go").await, None);
}

async fn are_not_taken_under_a_lost_lease(stage: Stage) {
    let old = stage.running().await.lease();
    stage.signal(old.id, 1, "go", b"a").await;
    stage.clock.advance(LEASE);
    let new = only(stage.reclaim(1).await).lease();
    let late = taking(old, 0, &signal(old.id, 1, "go", b"a"));
    let late = stage.store.remember(vec![late]).await.expect("remember");
    assert_eq!(late, [Remembered::LeaseLost]);
    assert_eq!(stage.take(new, 0, "go").await.as_deref(), Some(&b"a"[..]));
}

async fn are_not_taken_by_a_step_that_was_remembered(stage: Stage) {
    let lease = stage.running().await.lease();
    stage.signal(lease.id, 1, "go", b"a").await;
    stage.signal(lease.id, 2, "go", b"b").await;
    stage.take(lease, 0, "go").await;
    let again = taking(lease, 0, &signal(lease.id, 2, "go", b"b"));
    let again = only(stage.store.remember(vec![again]).await.expect("remember"));
    assert!(matches!(&again, Remembered::Before(step) if step.value == b"a"), "{again:?}");
    assert_eq!(stage.take(lease, 1, "go").await.as_deref(), Some(&b"b"[..]));
}

async fn that_are_set_aside_are_not_taken(stage: Stage) {
    let lease = stage.running().await.lease();
    stage.signal(lease.id, 1, "go", b"bad").await;
    stage.signal(lease.id, 2, "go", b"good").await;
    let aside = vec![Uuid::from_u128(1), Uuid::from_u128(77)];
    assert!(stage.store.set_aside(lease, aside).await.expect("set_aside"));
    assert_eq!(stage.pending(lease.id, &["go"]).await, [signal(lease.id, 2, "go", b"good")]);
    let bad = taking(lease, 0, &signal(lease.id, 1, "go", b"bad"));
    assert_eq!(stage.store.remember(vec![bad]).await.expect("remember"), [Remembered::NoSignal]);
    assert_eq!(stage.take(lease, 0, "go").await.as_deref(), Some(&b"good"[..]));
}

async fn are_not_set_aside_under_a_lost_lease(stage: Stage) {
    let old = stage.running().await.lease();
    stage.signal(old.id, 1, "go", b"a").await;
    stage.clock.advance(LEASE);
    stage.reclaim(1).await;
    assert!(!stage.store.set_aside(old, vec![Uuid::from_u128(1)]).await.expect("set_aside"));
    assert_eq!(stage.pending(old.id, &["go"]).await.len(), 1);
}

async fn find_every_job_that_has_not_ended(stage: Stage) {
    for state in State::ALL {
        let job = stage.in_state(state).await;
        let expected = if state.is_final() { Signalled::Ended(state) } else { Signalled::Kept };
        assert_eq!(stage.signal(job.id, 1, "go", b"").await, expected, "{state}");
    }
    assert_eq!(stage.signal(job_id(99), 1, "go", b"").await, Signalled::NotFound);
}

async fn that_are_too_large_are_refused(stage: Stage) {
    let job = stage.running().await.id;
    let large = signal(job, 1, "go", &vec![7; STEP_BYTES_MAX + 1]);
    assert_eq!(refused(stage.store.signal(vec![large]).await).field, "signal");
}
