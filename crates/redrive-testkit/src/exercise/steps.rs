//! Steps: stored once, under the lease, together with their signal and children.

use redrive_core::limits::{BATCH_ITEMS_MAX, STEP_BYTES_MAX};
use redrive_core::steps::{ForgetResult, NewStep, RememberResult, Step, StepKind};
use redrive_core::{Lease, NewJob, Parent, State, StepName, Verdict};

use super::chapter;
use super::fixture::{LEASE, StoreFixture, concurrently, job_id, ms, newer_leases, only, rejected};

chapter!("steps":
    are_recalled_in_their_order,
    are_remembered_once,
    are_not_remembered_under_a_lost_lease,
    survive_a_retry_and_a_redrive,
    sixteen_concurrent_calls_store_one_step,
    children_are_added_with_their_step,
    children_are_not_added_twice,
    children_are_not_added_under_a_lost_lease,
    children_are_not_added_after_a_cancel_request,
    are_deleted_with_their_job,
    are_forgotten_for_dead_jobs_only,
    are_rejected_if_oversized,
    an_invalid_child_rejects_the_whole_batch,
);

/// A completed step at `place` with this value.
pub(super) fn step(place: u32, value: &[u8]) -> Step {
    let name = StepName::new(format!("step {place}")).expect("a legal name");
    Step { place, name, kind: StepKind::Done, value: value.to_vec() }
}

impl StoreFixture {
    pub(super) async fn remember(&self, lease: Lease, step: Step) -> RememberResult {
        only(self.store.remember(vec![NewStep::new(lease, step)]).await.expect("remember"))
    }

    pub(super) async fn recall(&self, lease: Lease) -> Vec<Step> {
        self.store.recall(lease.id, 0, 1000).await.expect("recall")
    }
}

async fn are_recalled_in_their_order(fixture: StoreFixture) {
    let (lease, other) = (fixture.running().await.lease(), fixture.running().await.lease());
    let all: Vec<Step> = StepKind::ALL
        .into_iter()
        .zip(0..)
        .map(|(kind, place)| Step { kind, ..step(place, &[0, 255, place as u8]) })
        .collect();
    for step in all.iter().rev() {
        assert_eq!(fixture.remember(lease, step.clone()).await, RememberResult::Stored(step.clone()));
    }
    fixture.remember(other, step(0, b"of another")).await;
    assert_eq!(fixture.recall(lease).await, all);
    assert_eq!(fixture.store.recall(lease.id, 2, 3).await.expect("recall"), all[2..5]);
    assert_eq!(fixture.store.recall(job_id(99), 0, 3).await.expect("recall"), []);
}

async fn are_remembered_once(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    let first = step(0, b"first");
    fixture.remember(lease, first.clone()).await;
    let again = Step { name: StepName::new("other").expect("legal"), ..step(0, b"second") };
    assert_eq!(fixture.remember(lease, again).await, RememberResult::AlreadyStored(first.clone()));
    assert_eq!(fixture.recall(lease).await, [first]);
}

async fn are_not_remembered_under_a_lost_lease(fixture: StoreFixture) {
    let old = fixture.running().await.lease();
    fixture.clock.advance(LEASE);
    let new = only(fixture.reclaim(1).await).lease();
    assert_eq!(fixture.remember(old, step(0, b"late")).await, RememberResult::LeaseLost);
    fixture.settle(new, Verdict::Retry(ms(0))).await;
    let [newer, newest] = newer_leases(new);
    for lease in [new, newer, newest, Lease { id: job_id(99), epoch: 1 }] {
        assert_eq!(fixture.remember(lease, step(0, b"unheld")).await, RememberResult::LeaseLost);
    }
    assert_eq!(fixture.recall(new).await, []);
}

async fn survive_a_retry_and_a_redrive(fixture: StoreFixture) {
    let id = fixture.in_state(State::Running).await.id;
    let lease = fixture.job(id).await.lease();
    fixture.remember(lease, step(0, b"kept")).await;
    fixture.settle(lease, Verdict::DeadLetter(redrive_core::Reason::NotRetryable)).await;
    fixture.redrive(id).await;
    let lease = fixture.claim_own(id).await.lease();
    assert_eq!(fixture.recall(lease).await, [step(0, b"kept")]);
    fixture.remember(lease, step(1, b"more")).await;
    assert_eq!(fixture.recall(lease).await.len(), 2);
}

async fn sixteen_concurrent_calls_store_one_step(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    let answers = concurrently(16, |n| {
        let store = fixture.store.clone();
        async move {
            only(store.remember(vec![NewStep::new(lease, step(0, &[n as u8]))]).await.expect("remember"))
        }
    });
    let kept = only(fixture.recall_after(answers.await, lease).await);
    assert_eq!(kept.place, 0);
}

impl StoreFixture {
    /// Asserts that exactly one of the calls stored its step, and returns the stored steps.
    async fn recall_after(&self, answers: Vec<RememberResult>, lease: Lease) -> Vec<Step> {
        let steps = self.recall(lease).await;
        let kept =
            answers.iter().filter(|answer| **answer == RememberResult::Stored(steps[0].clone())).count();
        let before = answers
            .iter()
            .filter(|answer| **answer == RememberResult::AlreadyStored(steps[0].clone()))
            .count();
        assert_eq!((kept, before), (1, answers.len() - 1), "{answers:?}");
        steps
    }

    /// Children of a job's first step.
    pub(super) fn children(&self, lease: Lease, count: usize) -> Vec<NewJob> {
        let parent = Some(Parent::new(lease.id, 0));
        (0..count).map(|_| NewJob { parent, ..self.own_job() }).collect()
    }
}

async fn children_are_added_with_their_step(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    let children = fixture.children(lease, 3);
    let new_step = NewStep { children: children.clone(), ..NewStep::new(lease, step(0, b"")) };
    let wake = fixture.claim_by(super::fixture::claim_request(0)).await.wake;
    fixture.store.remember(vec![new_step]).await.expect("remember");
    fixture.store.wait(wake).await;
    for child in children {
        let job = fixture.job(child.id).await;
        assert_eq!((job.state, job.parent), (State::Pending, child.parent));
    }
}

async fn children_are_not_added_twice(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    fixture.remember(lease, step(0, b"")).await;
    let children = fixture.children(lease, 1);
    let id = children[0].id;
    let new_step = NewStep { children, ..NewStep::new(lease, step(0, b"again")) };
    fixture.store.remember(vec![new_step]).await.expect("remember");
    assert_eq!(fixture.find(id).await, None);
}

async fn children_are_not_added_under_a_lost_lease(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    fixture.clock.advance(LEASE);
    fixture.reclaim(1).await;
    let children = fixture.children(lease, 1);
    let id = children[0].id;
    let new_step = NewStep { children, ..NewStep::new(lease, step(0, b"late")) };
    assert_eq!(fixture.store.remember(vec![new_step]).await.expect("remember"), [RememberResult::LeaseLost]);
    assert_eq!(fixture.find(id).await, None);
}

async fn children_are_not_added_after_a_cancel_request(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    let kept = NewStep { children: fixture.children(lease, 1), ..NewStep::new(lease, step(0, b"")) };
    fixture.store.remember(vec![kept.clone()]).await.expect("remember");
    fixture.cancel(lease.id).await;
    let children = fixture.children(lease, 1);
    let id = children[0].id;
    let late = NewStep { children, ..NewStep::new(lease, step(1, b"")) };
    let childless = NewStep::new(lease, step(2, b"done"));
    let answers = fixture.store.remember(vec![late, kept, childless.clone()]).await.expect("remember");
    let expected = [
        RememberResult::CancelRequested,
        RememberResult::AlreadyStored(step(0, b"")),
        RememberResult::Stored(childless.step),
    ];
    assert_eq!(answers, expected);
    assert_eq!(fixture.find(id).await, None);
}

async fn are_deleted_with_their_job(fixture: StoreFixture) {
    let id = fixture.in_state(State::Running).await.id;
    let lease = fixture.job(id).await.lease();
    fixture.remember(lease, step(0, b"x")).await;
    fixture.settle(lease, Verdict::DeadLetter(redrive_core::Reason::NotRetryable)).await;
    fixture.store.discard(vec![id]).await.expect("discard");
    assert_eq!(fixture.recall(lease).await, []);
}

async fn are_forgotten_for_dead_jobs_only(fixture: StoreFixture) {
    for state in State::ALL {
        let running = fixture.running().await;
        fixture.remember(running.lease(), step(0, b"x")).await;
        fixture.settle(running.lease(), Verdict::Retry(ms(0))).await;
        fixture.bring_due_job_to(running.id, state).await;
        let dead = state == State::Dead;
        let expected = if dead { ForgetResult::Done } else { ForgetResult::NotDead(state) };
        assert_eq!(fixture.store.forget(vec![running.id]).await.expect("forget"), [expected], "{state}");
        assert_eq!(fixture.recall(running.lease()).await.is_empty(), dead, "{state}");
    }
    assert_eq!(fixture.store.forget(vec![job_id(99)]).await.expect("forget"), [ForgetResult::NotFound]);
}

async fn are_rejected_if_oversized(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    let largest = step(0, &vec![7; STEP_BYTES_MAX]);
    assert_eq!(fixture.remember(lease, largest.clone()).await, RememberResult::Stored(largest));
    let new_step = NewStep::new(lease, step(1, &vec![7; STEP_BYTES_MAX + 1]));
    assert_eq!(rejected(fixture.store.remember(vec![new_step]).await).field, "step");
    let children = fixture.children(lease, BATCH_ITEMS_MAX + 1);
    let new_step = NewStep { children, ..NewStep::new(lease, step(1, b"")) };
    assert_eq!(rejected(fixture.store.remember(vec![new_step]).await).field, "children");
}

async fn an_invalid_child_rejects_the_whole_batch(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    let far = redrive_core::Start::After(redrive_core::limits::HORIZON + ms(1));
    let child = NewJob { start: far, ..fixture.own_job() };
    let new_steps = vec![
        NewStep::new(lease, step(0, b"")),
        NewStep { children: vec![child], ..NewStep::new(lease, step(1, b"")) },
    ];
    assert_eq!(rejected(fixture.store.remember(new_steps).await).field, "runAt");
    assert_eq!(fixture.recall(lease).await, []);
}
