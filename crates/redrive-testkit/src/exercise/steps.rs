//! Steps: remembered once, under the lease, with what belongs to them.

use redrive_core::limits::{BATCH_ITEMS_MAX, STEP_BYTES_MAX};
use redrive_core::steps::{Forgotten, Memory, Remembered, Step, StepKind};
use redrive_core::{Lease, NewJob, Parent, State, StepName, Verdict};

use super::chapter;
use super::stage::{LEASE, Stage, at_once, job_id, ms, only, refused};

chapter!("steps":
    are_recalled_in_their_order,
    are_remembered_once,
    are_not_remembered_under_a_lost_lease,
    survive_a_retry_and_a_redrive,
    sixteen_at_once_remember_one,
    children_come_with_their_step,
    children_do_not_come_twice,
    children_do_not_come_under_a_lost_lease,
    children_do_not_come_once_a_cancel_is_requested,
    go_with_their_job,
    are_forgotten_of_dead_jobs_alone,
    that_are_too_large_are_refused,
    an_illegal_child_refuses_the_whole_batch,
);

/// A step with a value of its own.
pub(super) fn step(place: u32, value: &[u8]) -> Step {
    let name = StepName::new(format!("step {place}")).expect("a legal name");
    Step { place, name, kind: StepKind::Done, value: value.to_vec() }
}

impl Stage {
    pub(super) async fn remember(&self, lease: Lease, step: Step) -> Remembered {
        only(self.store.remember(vec![Memory::new(lease, step)]).await.expect("remember"))
    }

    pub(super) async fn recall(&self, lease: Lease) -> Vec<Step> {
        self.store.recall(lease.id, 0, 1000).await.expect("recall")
    }
}

async fn are_recalled_in_their_order(stage: Stage) {
    let (lease, other) = (stage.running().await.lease(), stage.running().await.lease());
    let all: Vec<Step> = StepKind::ALL
        .into_iter()
        .zip(0..)
        .map(|(kind, place)| Step { kind, ..step(place, &[0, 255, place as u8]) })
        .collect();
    for step in all.iter().rev() {
        assert_eq!(stage.remember(lease, step.clone()).await, Remembered::Kept(step.clone()));
    }
    stage.remember(other, step(0, b"of another")).await;
    assert_eq!(stage.recall(lease).await, all);
    assert_eq!(stage.store.recall(lease.id, 2, 3).await.expect("recall"), all[2..5]);
    assert_eq!(stage.store.recall(job_id(99), 0, 3).await.expect("recall"), []);
}

async fn are_remembered_once(stage: Stage) {
    let lease = stage.running().await.lease();
    let first = step(0, b"first");
    stage.remember(lease, first.clone()).await;
    let again = Step { name: StepName::new("other").expect("legal"), ..step(0, b"second") };
    assert_eq!(stage.remember(lease, again).await, Remembered::Before(first.clone()));
    assert_eq!(stage.recall(lease).await, [first]);
}

async fn are_not_remembered_under_a_lost_lease(stage: Stage) {
    let old = stage.running().await.lease();
    stage.clock.advance(LEASE);
    let new = only(stage.reclaim(1).await).lease();
    assert_eq!(stage.remember(old, step(0, b"late")).await, Remembered::LeaseLost);
    stage.settle(new, Verdict::Retry(ms(0))).await;
    for lease in [new, Lease { epoch: new.epoch + 1, ..new }, Lease { id: job_id(99), epoch: 1 }] {
        assert_eq!(stage.remember(lease, step(0, b"unheld")).await, Remembered::LeaseLost);
    }
    assert_eq!(stage.recall(new).await, []);
}

async fn survive_a_retry_and_a_redrive(stage: Stage) {
    let id = stage.in_state(State::Running).await.id;
    let lease = stage.job(id).await.lease();
    stage.remember(lease, step(0, b"kept")).await;
    stage.settle(lease, Verdict::DeadLetter(redrive_core::Reason::NotRetryable)).await;
    stage.redrive(id).await;
    let lease = stage.claim_own(id).await.lease();
    assert_eq!(stage.recall(lease).await, [step(0, b"kept")]);
    stage.remember(lease, step(1, b"more")).await;
    assert_eq!(stage.recall(lease).await.len(), 2);
}

async fn sixteen_at_once_remember_one(stage: Stage) {
    let lease = stage.running().await.lease();
    let answers = at_once(16, |n| {
        let store = stage.store.clone();
        async move { only(store.remember(vec![Memory::new(lease, step(0, &[n as u8]))]).await.expect("remember")) }
    });
    let kept = only(stage.recall_after(answers.await, lease).await);
    assert_eq!(kept.place, 0);
}

impl Stage {
    /// What is there after answers of which exactly one says that it was kept.
    async fn recall_after(&self, answers: Vec<Remembered>, lease: Lease) -> Vec<Step> {
        let steps = self.recall(lease).await;
        let kept = answers.iter().filter(|answer| **answer == Remembered::Kept(steps[0].clone())).count();
        let before = answers.iter().filter(|answer| **answer == Remembered::Before(steps[0].clone())).count();
        assert_eq!((kept, before), (1, answers.len() - 1), "{answers:?}");
        steps
    }

    /// Children of a job's first step.
    pub(super) fn children(&self, lease: Lease, count: usize) -> Vec<NewJob> {
        let parent = Some(Parent::new(lease.id, 0));
        (0..count).map(|_| NewJob { parent, ..self.own_job() }).collect()
    }
}

async fn children_come_with_their_step(stage: Stage) {
    let lease = stage.running().await.lease();
    let children = stage.children(lease, 3);
    let memory = Memory { children: children.clone(), ..Memory::new(lease, step(0, b"")) };
    let woken = stage.claim_by(super::stage::claim_request(0)).await.wake;
    stage.store.remember(vec![memory]).await.expect("remember");
    stage.store.wait(woken).await;
    for child in children {
        let job = stage.job(child.id).await;
        assert_eq!((job.state, job.parent), (State::Pending, child.parent));
    }
}

async fn children_do_not_come_twice(stage: Stage) {
    let lease = stage.running().await.lease();
    stage.remember(lease, step(0, b"")).await;
    let children = stage.children(lease, 1);
    let id = children[0].id;
    let memory = Memory { children, ..Memory::new(lease, step(0, b"again")) };
    stage.store.remember(vec![memory]).await.expect("remember");
    assert_eq!(stage.find(id).await, None);
}

async fn children_do_not_come_under_a_lost_lease(stage: Stage) {
    let lease = stage.running().await.lease();
    stage.clock.advance(LEASE);
    stage.reclaim(1).await;
    let children = stage.children(lease, 1);
    let id = children[0].id;
    let memory = Memory { children, ..Memory::new(lease, step(0, b"late")) };
    assert_eq!(stage.store.remember(vec![memory]).await.expect("remember"), [Remembered::LeaseLost]);
    assert_eq!(stage.find(id).await, None);
}

async fn children_do_not_come_once_a_cancel_is_requested(stage: Stage) {
    let lease = stage.running().await.lease();
    let kept = Memory { children: stage.children(lease, 1), ..Memory::new(lease, step(0, b"")) };
    stage.store.remember(vec![kept.clone()]).await.expect("remember");
    stage.cancel(lease.id).await;
    let children = stage.children(lease, 1);
    let id = children[0].id;
    let late = Memory { children, ..Memory::new(lease, step(1, b"")) };
    let childless = Memory::new(lease, step(2, b"done"));
    let answers = stage.store.remember(vec![late, kept, childless.clone()]).await.expect("remember");
    let expected =
        [Remembered::CancelRequested, Remembered::Before(step(0, b"")), Remembered::Kept(childless.step)];
    assert_eq!(answers, expected);
    assert_eq!(stage.find(id).await, None);
}

async fn go_with_their_job(stage: Stage) {
    let id = stage.in_state(State::Running).await.id;
    let lease = stage.job(id).await.lease();
    stage.remember(lease, step(0, b"x")).await;
    stage.settle(lease, Verdict::DeadLetter(redrive_core::Reason::NotRetryable)).await;
    stage.store.discard(vec![id]).await.expect("discard");
    assert_eq!(stage.recall(lease).await, []);
}

async fn are_forgotten_of_dead_jobs_alone(stage: Stage) {
    for state in State::ALL {
        let running = stage.running().await;
        stage.remember(running.lease(), step(0, b"x")).await;
        stage.settle(running.lease(), Verdict::Retry(ms(0))).await;
        stage.lead_on(running.id, state).await;
        let dead = state == State::Dead;
        let expected = if dead { Forgotten::Done } else { Forgotten::NotDead(state) };
        assert_eq!(stage.store.forget(vec![running.id]).await.expect("forget"), [expected], "{state}");
        assert_eq!(stage.recall(running.lease()).await.is_empty(), dead, "{state}");
    }
    assert_eq!(stage.store.forget(vec![job_id(99)]).await.expect("forget"), [Forgotten::NotFound]);
}

async fn that_are_too_large_are_refused(stage: Stage) {
    let lease = stage.running().await.lease();
    let largest = step(0, &vec![7; STEP_BYTES_MAX]);
    assert_eq!(stage.remember(lease, largest.clone()).await, Remembered::Kept(largest));
    let memory = Memory::new(lease, step(1, &vec![7; STEP_BYTES_MAX + 1]));
    assert_eq!(refused(stage.store.remember(vec![memory]).await).field, "step");
    let children = stage.children(lease, BATCH_ITEMS_MAX + 1);
    let memory = Memory { children, ..Memory::new(lease, step(1, b"")) };
    assert_eq!(refused(stage.store.remember(vec![memory]).await).field, "children");
}

async fn an_illegal_child_refuses_the_whole_batch(stage: Stage) {
    let lease = stage.running().await.lease();
    let far = redrive_core::Start::After(redrive_core::limits::HORIZON + ms(1));
    let child = NewJob { start: far, ..stage.own_job() };
    let memories = vec![
        Memory::new(lease, step(0, b"")),
        Memory { children: vec![child], ..Memory::new(lease, step(1, b"")) },
    ];
    assert_eq!(refused(stage.store.remember(memories).await).field, "runAt");
    assert_eq!(stage.recall(lease).await, []);
}
