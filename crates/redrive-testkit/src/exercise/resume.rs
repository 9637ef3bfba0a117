//! Resume and sweep: a waiting job becomes due once its condition holds, and not before. Pause and unpause.

use std::time::Duration;

use redrive_core::steps::{NewStep, PauseResult, SweepResult, WaitCondition};
use redrive_core::{Job, JobId, Lease, NewJob, Parent, Reason, State, Verdict, Wait};

use super::chapter;
use super::fixture::{StoreFixture, claim_request, concurrently, job_id, ms, only, wait};
use super::signals::signal_name;
use super::steps::step;

chapter!("resume":
    a_signal_ends_a_wait,
    a_signal_by_another_name_ends_no_wait,
    a_signal_ends_a_wait_before_its_timeout,
    a_wait_is_claimed_at_its_timeout,
    the_last_child_ends_a_wait,
    too_many_failed_children_end_a_wait,
    children_of_another_branch_do_not_count,
    a_wait_without_children_ends_at_once,
    happens_once,
    does_nothing_to_a_job_that_does_not_wait,
    the_wait_does_not_count_for_the_budget,
    any_of_several_signals_ends_a_wait,
    signals_and_children_are_waited_for_together,
    too_many_failed_children_end_the_others,
    too_many_failed_children_leave_detached_ones,
    a_failed_fan_out_does_not_affect_another,
    a_parent_is_due_before_its_children,
    a_parent_whose_children_have_ended_is_due_now,
    wakes_waiting_workers,
    a_sweep_resumes_jobs_that_nobody_resumed,
    a_sweep_continues_page_by_page,
    a_pause_stops_a_job_that_waits_for_its_due_time,
    a_pause_of_a_running_job_takes_effect_at_its_next_claim,
    a_paused_job_keeps_its_due_time,
    an_unpaused_job_continues,
);

impl StoreFixture {
    /// A job that waits for this condition.
    async fn waiting_for(&self, until: WaitCondition, at_most: Option<Duration>) -> Job {
        let running = self.running().await;
        self.settle(running.lease(), Verdict::Wait(Wait { at_most, ..Wait::until(until) })).await;
        self.job(running.id).await
    }

    async fn resume_job(&self, id: JobId) -> bool {
        only(self.store.resume(vec![id]).await.expect("resume"))
    }

    /// Children of one fan-out, each in a queue of its own.
    async fn fan_out(&self, lease: Lease, branch: u32, count: usize) -> Vec<JobId> {
        let parent = Some(Parent::new(lease.id, branch));
        let children: Vec<NewJob> = (0..count).map(|_| NewJob { parent, ..self.own_job() }).collect();
        let ids = children.iter().map(|child| child.id).collect();
        let new_step = NewStep { children, ..NewStep::new(lease, step(branch, b"")) };
        self.store.remember(vec![new_step]).await.expect("remember");
        ids
    }

    /// A parent that waits for children in these states, and allows `failures_max` of them to fail.
    async fn parent_of(&self, states: &[State], failures_max: u32) -> (JobId, Vec<JobId>) {
        let lease = self.running().await.lease();
        let children = self.children(lease, states.len());
        let ids: Vec<JobId> = children.iter().map(|child| child.id).collect();
        let new_step = NewStep { children, ..NewStep::new(lease, step(0, b"")) };
        self.store.remember(vec![new_step]).await.expect("remember");
        let until = WaitCondition::Children { branch: 0, failures_max };
        self.settle(lease, Verdict::Wait(Wait::until(until))).await;
        for (id, state) in ids.iter().zip(states) {
            self.bring_to(*id, *state).await;
        }
        (lease.id, ids)
    }
}

async fn a_signal_ends_a_wait(fixture: StoreFixture) {
    let job = fixture.waiting_for(WaitCondition::Signal(signal_name("go")), None).await;
    assert_eq!((job.state, &job.awaits), (State::Waiting, &Some(WaitCondition::Signal(signal_name("go")))));
    assert!(!fixture.resume_job(job.id).await);
    fixture.signal(job.id, 1, "go", b"").await;
    fixture.clock.advance(ms(20));
    assert!(fixture.resume_job(job.id).await);
    let resumed = fixture.job(job.id).await;
    assert_eq!((resumed.state, resumed.next_run_at, resumed.awaits), (State::Pending, fixture.now(), None));
    assert_eq!(fixture.claim_own(job.id).await.attempt, 1);
}

async fn a_signal_by_another_name_ends_no_wait(fixture: StoreFixture) {
    let job = fixture.waiting_for(WaitCondition::Signal(signal_name("go")), None).await;
    fixture.signal(job.id, 1, "stop", b"").await;
    assert!(!fixture.resume_job(job.id).await);
    assert_eq!(fixture.job(job.id).await, job);
}

async fn a_signal_ends_a_wait_before_its_timeout(fixture: StoreFixture) {
    let job = fixture.waiting_for(WaitCondition::Signal(signal_name("go")), Some(ms(1_000))).await;
    assert_eq!((job.state, job.next_run_at), (State::Pending, fixture.now().after(ms(1_000))));
    fixture.clock.advance(ms(10));
    assert!(!fixture.resume_job(job.id).await);
    fixture.signal(job.id, 1, "go", b"").await;
    assert!(fixture.resume_job(job.id).await);
    let resumed = fixture.job(job.id).await;
    assert_eq!((resumed.state, resumed.next_run_at), (State::Pending, fixture.now()));
    assert_eq!(resumed.began_at, job.began_at.before(ms(990)));
}

async fn a_wait_is_claimed_at_its_timeout(fixture: StoreFixture) {
    let job = fixture.waiting_for(WaitCondition::Signal(signal_name("go")), Some(ms(1_000))).await;
    fixture.clock.advance(ms(999));
    assert_eq!(fixture.claim(9).await, []);
    fixture.clock.advance(ms(1));
    let claimed = only(fixture.claim(9).await);
    assert_eq!((claimed.id, claimed.awaits), (job.id, None));
    assert!(!fixture.resume_job(job.id).await);
}

async fn the_last_child_ends_a_wait(fixture: StoreFixture) {
    let states = [State::Succeeded, State::Running, State::Dead];
    let (parent, children) = fixture.parent_of(&states, u32::MAX).await;
    assert!(!fixture.resume_job(parent).await);
    let lease = fixture.job(children[1]).await.lease();
    fixture.settle(lease, Verdict::Complete(None)).await;
    assert!(fixture.resume_job(parent).await);
    assert_eq!(fixture.job(parent).await.state, State::Pending);
}

async fn too_many_failed_children_end_a_wait(fixture: StoreFixture) {
    let states = [State::Dead, State::Pending, State::Cancelled];
    let (tolerant, _) = fixture.parent_of(&states, 2).await;
    let (strict, _) = fixture.parent_of(&states, 1).await;
    assert_eq!(fixture.store.resume(vec![tolerant, strict]).await.expect("resume"), [false, true]);
}

async fn children_of_another_branch_do_not_count(fixture: StoreFixture) {
    let (parent, _) = fixture.parent_of(&[State::Succeeded], 0).await;
    let (other, other_parent) = (Parent::new(parent, 7), Parent::new(job_id(99), 0));
    for parent in [other, other_parent] {
        fixture.enqueue(NewJob { parent: Some(parent), ..fixture.own_job() }).await;
    }
    assert!(fixture.resume_job(parent).await);
}

async fn a_wait_without_children_ends_at_once(fixture: StoreFixture) {
    let (parent, _) = fixture.parent_of(&[], 0).await;
    assert!(fixture.resume_job(parent).await);
}

async fn happens_once(fixture: StoreFixture) {
    let (parent, _) = fixture.parent_of(&[State::Succeeded], 0).await;
    let answers = concurrently(16, |_| {
        let store = fixture.store.clone();
        async move { only(store.resume(vec![parent]).await.expect("resume")) }
    });
    assert_eq!(answers.await.into_iter().filter(|resumed| *resumed).count(), 1);
    assert_eq!(fixture.claim_own(parent).await.lease_count(), 2);
    assert!(!fixture.resume_job(parent).await);
}

async fn does_nothing_to_a_job_that_does_not_wait(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Waiting) {
        let job = fixture.in_state(state).await;
        assert!(!fixture.resume_job(job.id).await, "{state}");
        assert_eq!(fixture.job(job.id).await, job);
    }
    assert!(!fixture.resume_job(job_id(99)).await);
}

async fn the_wait_does_not_count_for_the_budget(fixture: StoreFixture) {
    let job = fixture.waiting_for(WaitCondition::Signal(signal_name("go")), None).await;
    assert_eq!(job.next_run_at, fixture.now());
    fixture.clock.advance(ms(70));
    fixture.signal(job.id, 1, "go", b"").await;
    fixture.resume_job(job.id).await;
    assert_eq!(fixture.job(job.id).await.began_at, job.began_at.after(ms(70)));
}

async fn any_of_several_signals_ends_a_wait(fixture: StoreFixture) {
    let both = WaitCondition::any(["go", "stop"].map(|name| WaitCondition::Signal(signal_name(name))))
        .expect("a legal wait");
    for name in ["go", "stop"] {
        let job = fixture.waiting_for(both.clone(), None).await;
        assert_eq!(job.awaits, Some(both.clone()));
        fixture.signal(job.id, 1, "other", b"").await;
        assert!(!fixture.resume_job(job.id).await);
        fixture.signal(job.id, 2, name, b"").await;
        fixture.clock.advance(ms(30));
        assert!(fixture.resume_job(job.id).await, "{name}");
        let resumed = fixture.job(job.id).await;
        assert_eq!(
            (resumed.state, resumed.next_run_at, resumed.awaits),
            (State::Pending, fixture.now(), None)
        );
        assert_eq!(resumed.began_at, job.began_at.after(ms(30)));
        assert_eq!(fixture.pending(job.id, &[name]).await.len(), 1, "a resume takes nothing");
    }
}

async fn signals_and_children_are_waited_for_together(fixture: StoreFixture) {
    for by_signal in [true, false] {
        let lease = fixture.running().await.lease();
        let ids = fixture.fan_out(lease, 0, 1).await;
        let parts = [
            WaitCondition::Signal(signal_name("go")),
            WaitCondition::Children { branch: 0, failures_max: 0 },
        ];
        let until = WaitCondition::any(parts).expect("a legal wait");
        fixture.settle(lease, Verdict::Wait(Wait::until(until.clone()))).await;
        assert_eq!(fixture.job(lease.id).await.awaits, Some(until));
        assert!(!fixture.resume_job(lease.id).await);
        if by_signal {
            fixture.signal(lease.id, 1, "go", b"").await;
        } else {
            fixture.bring_to(ids[0], State::Succeeded).await;
        }
        assert!(fixture.resume_job(lease.id).await, "by a signal: {by_signal}");
    }
}

async fn too_many_failed_children_end_the_others(fixture: StoreFixture) {
    let states = [State::Dead, State::Pending, State::Running, State::Waiting, State::Succeeded];
    let (parent, children) = fixture.parent_of(&states, 0).await;
    let below =
        fixture.enqueue(NewJob { parent: Some(Parent::new(children[3], 0)), ..fixture.own_job() }).await;
    assert!(fixture.resume_job(parent).await);
    let after = [State::Dead, State::Cancelled, State::Running, State::Cancelled, State::Succeeded];
    for (id, state) in children.iter().zip(after) {
        let child = fixture.job(*id).await;
        assert_eq!((child.state, child.cancel_requested), (state, state == State::Running));
    }
    assert_eq!(fixture.job(below).await.state, State::Cancelled);
}

async fn too_many_failed_children_leave_detached_ones(fixture: StoreFixture) {
    let (parent, _) = fixture.parent_of(&[State::Dead], 0).await;
    let detached = Parent { detached: true, ..Parent::new(parent, 0) };
    let id = fixture.enqueue(NewJob { parent: Some(detached), ..fixture.own_job() }).await;
    assert!(fixture.resume_job(parent).await);
    let child = fixture.job(id).await;
    assert_eq!((child.state, child.parent), (State::Pending, Some(detached)));
}

async fn a_failed_fan_out_does_not_affect_another(fixture: StoreFixture) {
    let lease = fixture.running().await.lease();
    let (first, second) = (fixture.fan_out(lease, 0, 2).await, fixture.fan_out(lease, 1, 1).await);
    let parts = [0, 1].map(|branch| WaitCondition::Children { branch, failures_max: 0 });
    let until = WaitCondition::any(parts).expect("a legal wait");
    fixture.settle(lease, Verdict::Wait(Wait::until(until))).await;
    fixture.bring_to(first[0], State::Dead).await;
    assert!(fixture.resume_job(lease.id).await);
    assert_eq!(fixture.job(first[1]).await.state, State::Cancelled);
    assert_eq!(fixture.job(second[0]).await.state, State::Pending);
}

async fn a_parent_is_due_before_its_children(fixture: StoreFixture) {
    let parent = fixture.enqueue(fixture.new_job()).await;
    let lease = only(fixture.claim(1).await).lease();
    let of = |detached| Some(Parent { detached, ..Parent::new(parent, 0) });
    let children: Vec<NewJob> = [false, true, true]
        .into_iter()
        .map(|each| NewJob { parent: of(each), ..fixture.new_job() })
        .collect();
    let new_step = NewStep { children, ..NewStep::new(lease, step(0, b"")) };
    fixture.store.remember(vec![new_step]).await.expect("remember");
    let until = WaitCondition::Children { branch: 0, failures_max: 0 };
    fixture.settle(lease, Verdict::Wait(Wait::until(until))).await;
    fixture.clock.advance(ms(20));
    let rejected = only(fixture.claim(1).await);
    fixture.settle(rejected.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    assert!(fixture.resume_job(parent).await);
    assert_eq!(fixture.job(parent).await.next_run_at, fixture.now().before(ms(21)));
    let next: Vec<JobId> = fixture.claim(9).await.iter().map(|job| job.id).collect();
    assert_eq!((next.len(), next[0]), (3, parent), "the parent, then its detached children");
}

async fn a_parent_whose_children_have_ended_is_due_now(fixture: StoreFixture) {
    let (parent, _) = fixture.parent_of(&[State::Succeeded, State::Dead], 5).await;
    fixture.clock.advance(ms(20));
    assert!(fixture.resume_job(parent).await);
    assert_eq!(fixture.job(parent).await.next_run_at, fixture.now());
}

async fn wakes_waiting_workers(fixture: StoreFixture) {
    let (parent, _) = fixture.parent_of(&[], 0).await;
    let seen = fixture.claim_by(claim_request(0)).await.wake;
    fixture.resume_job(parent).await;
    fixture.store.wait(seen).await;
}

async fn a_sweep_resumes_jobs_that_nobody_resumed(fixture: StoreFixture) {
    let (done, _) = fixture.parent_of(&[State::Succeeded], 0).await;
    let (undone, _) = fixture.parent_of(&[State::Pending], 0).await;
    let signalled = fixture.waiting_for(WaitCondition::Signal(signal_name("go")), Some(ms(1_000))).await.id;
    fixture.signal(signalled, 1, "go", b"").await;
    let swept = fixture.store.sweep(None, 100).await.expect("sweep");
    assert_eq!(swept, SweepResult { resumed: vec![done, signalled], last: Some(signalled) });
    assert_eq!(fixture.job(undone).await.state, State::Waiting);
    let next = fixture.store.sweep(swept.last, 100).await.expect("sweep");
    assert_eq!(next, SweepResult::default());
}

async fn a_sweep_continues_page_by_page(fixture: StoreFixture) {
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(fixture.parent_of(&[], 0).await.0);
    }
    let mut last = None;
    let mut pages = Vec::new();
    loop {
        let swept = fixture.store.sweep(last, 2).await.expect("sweep");
        last = swept.last;
        pages.push(swept.resumed);
        if last.is_none() {
            break;
        }
    }
    assert_eq!(pages, [&waiting[0..2], &waiting[2..4], &waiting[4..5], &[]]);
}

async fn a_pause_stops_a_job_that_waits_for_its_due_time(fixture: StoreFixture) {
    for state in [State::Pending, State::Retrying] {
        let before = fixture.in_state(state).await;
        let result = fixture.store.pause(vec![before.id]).await.expect("pause");
        assert_eq!(result, [PauseResult::Done(State::Waiting)]);
        let paused =
            Job { state: State::Waiting, awaits: Some(WaitCondition::Unpaused), paused: true, ..before };
        assert_eq!(fixture.job(paused.id).await, paused);
        assert!(!fixture.resume_job(paused.id).await);
    }
    assert_eq!(fixture.claim(9).await, []);
    for state in State::ALL.into_iter().filter(|state| state.is_final()) {
        let ended = fixture.in_state(state).await;
        assert_eq!(fixture.store.pause(vec![ended.id]).await.expect("pause"), [PauseResult::Ended(state)]);
    }
    assert_eq!(fixture.store.pause(vec![job_id(99)]).await.expect("pause"), [PauseResult::NotFound]);
}

async fn a_pause_of_a_running_job_takes_effect_at_its_next_claim(fixture: StoreFixture) {
    let running = fixture.running().await;
    let result = fixture.store.pause(vec![running.id]).await.expect("pause");
    assert_eq!(result, [PauseResult::Done(State::Running)]);
    fixture.settle(running.lease(), Verdict::Retry(ms(0))).await;
    let again = fixture.claim_own(running.id).await;
    assert!(again.paused);
    fixture.settle(again.lease(), wait()).await;
    assert!(!fixture.resume_job(running.id).await);
    assert_eq!(fixture.job(running.id).await.attempt, 1);
}

async fn a_paused_job_keeps_its_due_time(fixture: StoreFixture) {
    let start = redrive_core::Start::After(ms(500));
    let id = fixture.enqueue(NewJob { start, ..fixture.own_job() }).await;
    let before = fixture.job(id).await;
    fixture.store.pause(vec![id]).await.expect("pause");
    fixture.clock.advance(ms(100));
    assert_eq!(fixture.store.unpause(vec![id]).await.expect("unpause"), [PauseResult::Done(State::Pending)]);
    assert_eq!(fixture.job(id).await, before);
}

async fn an_unpaused_job_continues(fixture: StoreFixture) {
    let before = fixture.in_state(State::Retrying).await;
    fixture.store.pause(vec![before.id]).await.expect("pause");
    fixture.clock.advance(ms(100));
    assert_eq!(
        fixture.store.unpause(vec![before.id]).await.expect("unpause"),
        [PauseResult::Done(State::Pending)]
    );
    let job = fixture.claim_own(before.id).await;
    assert_eq!((job.paused, job.attempt, job.began_at), (false, 2, before.began_at.after(ms(100))));
    let dead = Verdict::DeadLetter(Reason::NotRetryable);
    fixture.settle(job.lease(), dead).await;
    let ended = fixture.store.unpause(vec![before.id, job_id(99)]).await.expect("unpause");
    assert_eq!(ended, [PauseResult::Ended(State::Dead), PauseResult::NotFound]);
}
