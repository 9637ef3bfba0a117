//! Resume and sweep: what waits goes on when what it waits for has come, once and not before. Hold and its end.

use std::time::Duration;

use redrive_core::steps::{Await, Hold, Memory, Swept};
use redrive_core::{Job, JobId, Lease, NewJob, Parent, Reason, State, Verdict, Wait};

use super::chapter;
use super::signals::named;
use super::stage::{Stage, at_once, claim_request, job_id, ms, only, wait};
use super::steps::step;

chapter!("resume":
    a_signal_ends_a_wait,
    a_signal_by_another_name_does_not,
    a_signal_cuts_a_wait_with_an_end_short,
    a_wait_with_an_end_is_claimed_at_its_end,
    the_last_child_ends_a_wait,
    a_failure_too_many_ends_a_wait,
    children_of_another_branch_do_not_count,
    a_wait_without_children_ends_at_once,
    happens_once,
    does_nothing_to_a_job_that_waits_for_nothing,
    the_wait_does_not_count_for_the_budget,
    any_of_several_signals_ends_a_wait,
    signals_and_children_are_waited_for_together,
    a_failure_too_many_ends_the_other_children,
    a_failure_too_many_leaves_detached_children,
    a_failure_in_one_fan_out_leaves_the_other_alone,
    a_parent_goes_before_its_children,
    a_parent_whose_children_have_ended_is_due_now,
    wakes_who_sleeps,
    a_sweep_resumes_what_nobody_did,
    a_sweep_goes_page_by_page,
    a_hold_sets_aside_what_waits_for_its_time,
    a_hold_of_a_running_job_shows_at_its_next_claim,
    a_held_job_keeps_its_time,
    an_end_of_a_hold_lets_go_on,
);

impl Stage {
    /// A job that waits for `until`.
    async fn waiting_for(&self, until: Await, at_most: Option<Duration>) -> Job {
        let running = self.running().await;
        self.settle(running.lease(), Verdict::Wait(Wait { at_most, ..Wait::until(until) })).await;
        self.job(running.id).await
    }

    async fn resume_job(&self, id: JobId) -> bool {
        only(self.store.resume(vec![id]).await.expect("resume"))
    }

    /// Children of a job in a branch, each in a queue of its own.
    async fn fan_out(&self, lease: Lease, branch: u32, count: usize) -> Vec<JobId> {
        let parent = Some(Parent::new(lease.id, branch));
        let children: Vec<NewJob> = (0..count).map(|_| NewJob { parent, ..self.own_job() }).collect();
        let ids = children.iter().map(|child| child.id).collect();
        let memory = Memory { children, ..Memory::new(lease, step(branch, b"")) };
        self.store.remember(vec![memory]).await.expect("remember");
        ids
    }

    /// A parent that waits for children in these states, of which `failures_max` may fail.
    async fn parent_of(&self, states: &[State], failures_max: u32) -> (JobId, Vec<JobId>) {
        let lease = self.running().await.lease();
        let children = self.children(lease, states.len());
        let ids: Vec<JobId> = children.iter().map(|child| child.id).collect();
        let memory = Memory { children, ..Memory::new(lease, step(0, b"")) };
        self.store.remember(vec![memory]).await.expect("remember");
        let until = Await::Children { branch: 0, failures_max };
        self.settle(lease, Verdict::Wait(Wait::until(until))).await;
        for (id, state) in ids.iter().zip(states) {
            self.lead(*id, *state).await;
        }
        (lease.id, ids)
    }
}

async fn a_signal_ends_a_wait(stage: Stage) {
    let job = stage.waiting_for(Await::Signal(named("go")), None).await;
    assert_eq!((job.state, &job.awaits), (State::Waiting, &Some(Await::Signal(named("go")))));
    assert!(!stage.resume_job(job.id).await);
    stage.signal(job.id, 1, "go", b"").await;
    stage.clock.advance(ms(20));
    assert!(stage.resume_job(job.id).await);
    let resumed = stage.job(job.id).await;
    assert_eq!((resumed.state, resumed.next_run_at, resumed.awaits), (State::Pending, stage.now(), None));
    assert_eq!(stage.claim_own(job.id).await.attempt, 1);
}

async fn a_signal_by_another_name_does_not(stage: Stage) {
    let job = stage.waiting_for(Await::Signal(named("go")), None).await;
    stage.signal(job.id, 1, "stop", b"").await;
    assert!(!stage.resume_job(job.id).await);
    assert_eq!(stage.job(job.id).await, job);
}

async fn a_signal_cuts_a_wait_with_an_end_short(stage: Stage) {
    let job = stage.waiting_for(Await::Signal(named("go")), Some(ms(1_000))).await;
    assert_eq!((job.state, job.next_run_at), (State::Pending, stage.now().after(ms(1_000))));
    stage.clock.advance(ms(10));
    assert!(!stage.resume_job(job.id).await);
    stage.signal(job.id, 1, "go", b"").await;
    assert!(stage.resume_job(job.id).await);
    let resumed = stage.job(job.id).await;
    assert_eq!((resumed.state, resumed.next_run_at), (State::Pending, stage.now()));
    assert_eq!(resumed.began_at, job.began_at.before(ms(990)));
}

async fn a_wait_with_an_end_is_claimed_at_its_end(stage: Stage) {
    let job = stage.waiting_for(Await::Signal(named("go")), Some(ms(1_000))).await;
    stage.clock.advance(ms(999));
    assert_eq!(stage.claim(9).await, []);
    stage.clock.advance(ms(1));
    let claimed = only(stage.claim(9).await);
    assert_eq!((claimed.id, claimed.awaits), (job.id, None));
    assert!(!stage.resume_job(job.id).await);
}

async fn the_last_child_ends_a_wait(stage: Stage) {
    let states = [State::Succeeded, State::Running, State::Dead];
    let (parent, children) = stage.parent_of(&states, u32::MAX).await;
    assert!(!stage.resume_job(parent).await);
    let lease = stage.job(children[1]).await.lease();
    stage.settle(lease, Verdict::Complete(None)).await;
    assert!(stage.resume_job(parent).await);
    assert_eq!(stage.job(parent).await.state, State::Pending);
}

async fn a_failure_too_many_ends_a_wait(stage: Stage) {
    let states = [State::Dead, State::Pending, State::Cancelled];
    let (patient, _) = stage.parent_of(&states, 2).await;
    let (hasty, _) = stage.parent_of(&states, 1).await;
    assert_eq!(stage.store.resume(vec![patient, hasty]).await.expect("resume"), [false, true]);
}

async fn children_of_another_branch_do_not_count(stage: Stage) {
    let (parent, _) = stage.parent_of(&[State::Succeeded], 0).await;
    let (other, stranger) = (Parent::new(parent, 7), Parent::new(job_id(99), 0));
    for parent in [other, stranger] {
        stage.enqueue(NewJob { parent: Some(parent), ..stage.own_job() }).await;
    }
    assert!(stage.resume_job(parent).await);
}

async fn a_wait_without_children_ends_at_once(stage: Stage) {
    let (parent, _) = stage.parent_of(&[], 0).await;
    assert!(stage.resume_job(parent).await);
}

async fn happens_once(stage: Stage) {
    let (parent, _) = stage.parent_of(&[State::Succeeded], 0).await;
    let answers = at_once(16, |_| {
        let store = stage.store.clone();
        async move { only(store.resume(vec![parent]).await.expect("resume")) }
    });
    assert_eq!(answers.await.into_iter().filter(|resumed| *resumed).count(), 1);
    assert_eq!(stage.claim_own(parent).await.epoch, 2);
    assert!(!stage.resume_job(parent).await);
}

async fn does_nothing_to_a_job_that_waits_for_nothing(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Waiting) {
        let job = stage.in_state(state).await;
        assert!(!stage.resume_job(job.id).await, "{state}");
        assert_eq!(stage.job(job.id).await, job);
    }
    assert!(!stage.resume_job(job_id(99)).await);
}

async fn the_wait_does_not_count_for_the_budget(stage: Stage) {
    let job = stage.waiting_for(Await::Signal(named("go")), None).await;
    assert_eq!(job.next_run_at, stage.now());
    stage.clock.advance(ms(70));
    stage.signal(job.id, 1, "go", b"").await;
    stage.resume_job(job.id).await;
    assert_eq!(stage.job(job.id).await.began_at, job.began_at.after(ms(70)));
}

async fn any_of_several_signals_ends_a_wait(stage: Stage) {
    let both = Await::any(["go", "stop"].map(|name| Await::Signal(named(name)))).expect("a legal wait");
    for name in ["go", "stop"] {
        let job = stage.waiting_for(both.clone(), None).await;
        assert_eq!(job.awaits, Some(both.clone()));
        stage.signal(job.id, 1, "other", b"").await;
        assert!(!stage.resume_job(job.id).await);
        stage.signal(job.id, 2, name, b"").await;
        stage.clock.advance(ms(30));
        assert!(stage.resume_job(job.id).await, "{name}");
        let resumed = stage.job(job.id).await;
        assert_eq!((resumed.state, resumed.next_run_at, resumed.awaits), (State::Pending, stage.now(), None));
        assert_eq!(resumed.began_at, job.began_at.after(ms(30)));
        assert_eq!(stage.pending(job.id, &[name]).await.len(), 1, "a resume takes nothing");
    }
}

async fn signals_and_children_are_waited_for_together(stage: Stage) {
    for by_signal in [true, false] {
        let lease = stage.running().await.lease();
        let ids = stage.fan_out(lease, 0, 1).await;
        let parts = [Await::Signal(named("go")), Await::Children { branch: 0, failures_max: 0 }];
        let until = Await::any(parts).expect("a legal wait");
        stage.settle(lease, Verdict::Wait(Wait::until(until.clone()))).await;
        assert_eq!(stage.job(lease.id).await.awaits, Some(until));
        assert!(!stage.resume_job(lease.id).await);
        if by_signal {
            stage.signal(lease.id, 1, "go", b"").await;
        } else {
            stage.lead(ids[0], State::Succeeded).await;
        }
        assert!(stage.resume_job(lease.id).await, "by a signal: {by_signal}");
    }
}

async fn a_failure_too_many_ends_the_other_children(stage: Stage) {
    let states = [State::Dead, State::Pending, State::Running, State::Waiting, State::Succeeded];
    let (parent, children) = stage.parent_of(&states, 0).await;
    let below = stage.enqueue(NewJob { parent: Some(Parent::new(children[3], 0)), ..stage.own_job() }).await;
    assert!(stage.resume_job(parent).await);
    let after = [State::Dead, State::Cancelled, State::Running, State::Cancelled, State::Succeeded];
    for (id, state) in children.iter().zip(after) {
        let child = stage.job(*id).await;
        assert_eq!((child.state, child.cancel_requested), (state, state == State::Running));
    }
    assert_eq!(stage.job(below).await.state, State::Cancelled);
}

async fn a_failure_too_many_leaves_detached_children(stage: Stage) {
    let (parent, _) = stage.parent_of(&[State::Dead], 0).await;
    let detached = Parent { detached: true, ..Parent::new(parent, 0) };
    let id = stage.enqueue(NewJob { parent: Some(detached), ..stage.own_job() }).await;
    assert!(stage.resume_job(parent).await);
    let child = stage.job(id).await;
    assert_eq!((child.state, child.parent), (State::Pending, Some(detached)));
}

async fn a_failure_in_one_fan_out_leaves_the_other_alone(stage: Stage) {
    let lease = stage.running().await.lease();
    let (first, second) = (stage.fan_out(lease, 0, 2).await, stage.fan_out(lease, 1, 1).await);
    let parts = [0, 1].map(|branch| Await::Children { branch, failures_max: 0 });
    let until = Await::any(parts).expect("a legal wait");
    stage.settle(lease, Verdict::Wait(Wait::until(until))).await;
    stage.lead(first[0], State::Dead).await;
    assert!(stage.resume_job(lease.id).await);
    assert_eq!(stage.job(first[1]).await.state, State::Cancelled);
    assert_eq!(stage.job(second[0]).await.state, State::Pending);
}

async fn a_parent_goes_before_its_children(stage: Stage) {
    let parent = stage.enqueue(stage.new_job()).await;
    let lease = only(stage.claim(1).await).lease();
    let of = |detached| Some(Parent { detached, ..Parent::new(parent, 0) });
    let children: Vec<NewJob> =
        [false, true, true].into_iter().map(|each| NewJob { parent: of(each), ..stage.new_job() }).collect();
    let memory = Memory { children, ..Memory::new(lease, step(0, b"")) };
    stage.store.remember(vec![memory]).await.expect("remember");
    let until = Await::Children { branch: 0, failures_max: 0 };
    stage.settle(lease, Verdict::Wait(Wait::until(until))).await;
    stage.clock.advance(ms(20));
    let rejected = only(stage.claim(1).await);
    stage.settle(rejected.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    assert!(stage.resume_job(parent).await);
    assert_eq!(stage.job(parent).await.next_run_at, stage.now().before(ms(21)));
    let next: Vec<JobId> = stage.claim(9).await.iter().map(|job| job.id).collect();
    assert_eq!((next.len(), next[0]), (3, parent), "the parent, then its detached children");
}

async fn a_parent_whose_children_have_ended_is_due_now(stage: Stage) {
    let (parent, _) = stage.parent_of(&[State::Succeeded, State::Dead], 5).await;
    stage.clock.advance(ms(20));
    assert!(stage.resume_job(parent).await);
    assert_eq!(stage.job(parent).await.next_run_at, stage.now());
}

async fn wakes_who_sleeps(stage: Stage) {
    let (parent, _) = stage.parent_of(&[], 0).await;
    let seen = stage.claim_by(claim_request(0)).await.wake;
    stage.resume_job(parent).await;
    stage.store.wait(seen).await;
}

async fn a_sweep_resumes_what_nobody_did(stage: Stage) {
    let (done, _) = stage.parent_of(&[State::Succeeded], 0).await;
    let (undone, _) = stage.parent_of(&[State::Pending], 0).await;
    let signalled = stage.waiting_for(Await::Signal(named("go")), Some(ms(1_000))).await.id;
    stage.signal(signalled, 1, "go", b"").await;
    let swept = stage.store.sweep(None, 100).await.expect("sweep");
    assert_eq!(swept, Swept { resumed: vec![done, signalled], last: Some(signalled) });
    assert_eq!(stage.job(undone).await.state, State::Waiting);
    let next = stage.store.sweep(swept.last, 100).await.expect("sweep");
    assert_eq!(next, Swept::default());
}

async fn a_sweep_goes_page_by_page(stage: Stage) {
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(stage.parent_of(&[], 0).await.0);
    }
    let mut last = None;
    let mut pages = Vec::new();
    loop {
        let swept = stage.store.sweep(last, 2).await.expect("sweep");
        last = swept.last;
        pages.push(swept.resumed);
        if last.is_none() {
            break;
        }
    }
    assert_eq!(pages, [&waiting[0..2], &waiting[2..4], &waiting[4..5], &[]]);
}

async fn a_hold_sets_aside_what_waits_for_its_time(stage: Stage) {
    for state in [State::Pending, State::Retrying] {
        let before = stage.in_state(state).await;
        let hold = stage.store.hold(vec![before.id]).await.expect("hold");
        assert_eq!(hold, [Hold::Done(State::Waiting)]);
        let held = Job { state: State::Waiting, awaits: Some(Await::Unhold), held: true, ..before };
        assert_eq!(stage.job(held.id).await, held);
        assert!(!stage.resume_job(held.id).await);
    }
    assert_eq!(stage.claim(9).await, []);
    for state in State::ALL.into_iter().filter(|state| state.is_final()) {
        let ended = stage.in_state(state).await;
        assert_eq!(stage.store.hold(vec![ended.id]).await.expect("hold"), [Hold::Ended(state)]);
    }
    assert_eq!(stage.store.hold(vec![job_id(99)]).await.expect("hold"), [Hold::NotFound]);
}

async fn a_hold_of_a_running_job_shows_at_its_next_claim(stage: Stage) {
    let running = stage.running().await;
    let hold = stage.store.hold(vec![running.id]).await.expect("hold");
    assert_eq!(hold, [Hold::Done(State::Running)]);
    stage.settle(running.lease(), Verdict::Retry(ms(0))).await;
    let again = stage.claim_own(running.id).await;
    assert!(again.held);
    stage.settle(again.lease(), wait()).await;
    assert!(!stage.resume_job(running.id).await);
    assert_eq!(stage.job(running.id).await.attempt, 1);
}

async fn a_held_job_keeps_its_time(stage: Stage) {
    let start = redrive_core::Start::After(ms(500));
    let id = stage.enqueue(NewJob { start, ..stage.own_job() }).await;
    let before = stage.job(id).await;
    stage.store.hold(vec![id]).await.expect("hold");
    stage.clock.advance(ms(100));
    assert_eq!(stage.store.unhold(vec![id]).await.expect("unhold"), [Hold::Done(State::Pending)]);
    assert_eq!(stage.job(id).await, before);
}

async fn an_end_of_a_hold_lets_go_on(stage: Stage) {
    let before = stage.in_state(State::Retrying).await;
    stage.store.hold(vec![before.id]).await.expect("hold");
    stage.clock.advance(ms(100));
    assert_eq!(stage.store.unhold(vec![before.id]).await.expect("unhold"), [Hold::Done(State::Pending)]);
    let job = stage.claim_own(before.id).await;
    assert_eq!((job.held, job.attempt, job.began_at), (false, 2, before.began_at.after(ms(100))));
    let dead = Verdict::DeadLetter(Reason::NotRetryable);
    stage.settle(job.lease(), dead).await;
    let ended = stage.store.unhold(vec![before.id, job_id(99)]).await.expect("unhold");
    assert_eq!(ended, [Hold::Ended(State::Dead), Hold::NotFound]);
}
