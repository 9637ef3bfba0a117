//! Cancel: ends a job at once, unless it is running. A running job ends at its next settlement.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::steps::NewStep;
use redrive_core::store::{CancelResult, SettleResult, Settlement, WakeToken};
use redrive_core::{Attempt, Job, JobId, NewJob, Parent, Reason, State, Verdict};

use super::chapter;
use super::fixture::{
    LEASE, StoreFixture, claim_request, concurrently, entry, job_id, ms, only, rejected, settlement, wait,
    worker,
};
use super::steps::step;

chapter!("cancel":
    ends_a_job_that_is_not_running_at_once,
    requests_the_cancel_of_a_running_job,
    leaves_ended_jobs_unchanged,
    a_cancelled_job_is_not_claimed,
    a_retry_becomes_cancelled,
    a_snooze_becomes_cancelled_and_is_refunded,
    a_release_becomes_cancelled,
    a_wait_becomes_cancelled,
    a_success_stays_a_success,
    a_dead_letter_stays_dead,
    a_cancel_verdict_ends_the_job,
    sixteen_concurrent_cancels_end_it_once,
    ends_all_descendants,
    leaves_the_children_of_an_ended_job,
    leaves_detached_children,
    a_death_ends_all_descendants,
    a_success_before_a_death_in_the_same_batch_is_not_cancelled,
    a_cancelled_attempt_ends_all_descendants,
    a_retry_or_a_success_leaves_the_children,
    a_large_tree_ends_completely,
    a_tree_that_grows_meanwhile_ends_completely,
    wakes_workers_that_run_a_job,
    a_batch_returns_one_result_per_item,
    a_batch_reports_the_states_before_descendants_end,
    an_oversized_batch_is_rejected,
);

async fn ends_a_job_that_is_not_running_at_once(fixture: StoreFixture) {
    for state in [State::Pending, State::Retrying, State::Waiting] {
        let before = fixture.in_state(state).await;
        fixture.clock.advance(ms(3));
        assert_eq!(fixture.cancel(before.id).await, CancelResult::Done, "{state}");
        let expected =
            Job { state: State::Cancelled, finished_at: Some(fixture.now()), awaits: None, ..before };
        assert_eq!(fixture.job(expected.id).await, expected, "{state}");
    }
}

async fn requests_the_cancel_of_a_running_job(fixture: StoreFixture) {
    let before = fixture.running().await;
    for _ in 0..2 {
        assert_eq!(fixture.cancel(before.id).await, CancelResult::Requested);
    }
    let expected = Job { cancel_requested: true, ..before };
    assert_eq!(fixture.job(expected.id).await, expected);
}

async fn leaves_ended_jobs_unchanged(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| state.is_final()) {
        let before = fixture.in_state(state).await;
        fixture.clock.advance(ms(3));
        assert_eq!(fixture.cancel(before.id).await, CancelResult::Ended(state));
        assert_eq!(fixture.job(before.id).await, before);
    }
    assert_eq!(fixture.cancel(job_id(99)).await, CancelResult::NotFound);
}

async fn a_cancelled_job_is_not_claimed(fixture: StoreFixture) {
    for state in [State::Pending, State::Retrying, State::Waiting] {
        let job = fixture.in_state(state).await;
        fixture.cancel(job.id).await;
    }
    let claimed = fixture.claim_by(claim_request(10)).await;
    assert_eq!((claimed.jobs, claimed.next_due), (Vec::new(), None));
}

async fn a_retry_becomes_cancelled(fixture: StoreFixture) {
    let job = settle_cancelling(&fixture, Verdict::Retry(ms(50)), State::Cancelled).await;
    assert_cancelled(&fixture, job).await;
}

async fn a_snooze_becomes_cancelled_and_is_refunded(fixture: StoreFixture) {
    let job = settle_cancelling(&fixture, Verdict::Snooze(ms(50)), State::Cancelled).await;
    let refunded = Job { attempt: 0, began_at: job.began_at.after(ms(50)), ..job };
    assert_cancelled(&fixture, refunded).await;
}

async fn a_release_becomes_cancelled(fixture: StoreFixture) {
    let job = settle_cancelling(&fixture, Verdict::Release, State::Cancelled).await;
    assert_cancelled(&fixture, Job { attempt: 0, ..job }).await;
}

async fn a_wait_becomes_cancelled(fixture: StoreFixture) {
    let job = settle_cancelling(&fixture, wait(), State::Cancelled).await;
    assert_cancelled(&fixture, Job { attempt: 0, ..job }).await;
}

async fn a_success_stays_a_success(fixture: StoreFixture) {
    let job = settle_cancelling(&fixture, Verdict::Complete(Some(b"done".to_vec())), State::Succeeded).await;
    let expected = Job { state: State::Succeeded, output: Some(b"done".to_vec()), ..ended(&fixture, job) };
    assert_eq!(fixture.job(expected.id).await, expected);
}

async fn a_dead_letter_stays_dead(fixture: StoreFixture) {
    let verdict = Verdict::DeadLetter(Reason::BudgetExceeded);
    let job = settle_cancelling(&fixture, verdict, State::Dead).await;
    let expected = Job { state: State::Dead, reason: Some(Reason::BudgetExceeded), ..ended(&fixture, job) };
    assert_eq!(fixture.job(expected.id).await, expected);
}

async fn a_cancel_verdict_ends_the_job(fixture: StoreFixture) {
    let job = settle_cancelling(&fixture, Verdict::Cancel, State::Cancelled).await;
    assert_cancelled(&fixture, job).await;
}

async fn sixteen_concurrent_cancels_end_it_once(fixture: StoreFixture) {
    let job = fixture.in_state(State::Pending).await;
    let answers = concurrently(16, |_| {
        let (store, id) = (fixture.store.clone(), job.id);
        async move { only(store.cancel(vec![id]).await.expect("cancel")) }
    })
    .await;
    let done = answers.iter().filter(|answer| **answer == CancelResult::Done).count();
    let ended = answers.iter().filter(|answer| **answer == CancelResult::Ended(State::Cancelled)).count();
    assert_eq!((done, ended), (1, 15), "{answers:?}");
}

async fn a_batch_returns_one_result_per_item(fixture: StoreFixture) {
    let (pending, running, dead) = (
        fixture.in_state(State::Pending).await,
        fixture.running().await,
        fixture.in_state(State::Dead).await,
    );
    let batch = vec![running.id, job_id(99), pending.id, dead.id, pending.id, running.id];
    let answers = fixture.store.cancel(batch).await.expect("cancel");
    let expected = [
        CancelResult::Requested,
        CancelResult::NotFound,
        CancelResult::Done,
        CancelResult::Ended(State::Dead),
        CancelResult::Ended(State::Cancelled),
        CancelResult::Requested,
    ];
    assert_eq!(answers, expected);
}

async fn a_batch_reports_the_states_before_descendants_end(fixture: StoreFixture) {
    let parent = fixture.in_state(State::Pending).await.id;
    let child = fixture.child_of(parent, State::Waiting).await;
    let answers = fixture.store.cancel(vec![parent, child]).await.expect("cancel");
    assert_eq!(answers, [CancelResult::Done, CancelResult::Done]);
}

async fn an_oversized_batch_is_rejected(fixture: StoreFixture) {
    let job = fixture.in_state(State::Pending).await;
    let batch = vec![job.id; BATCH_ITEMS_MAX + 1];
    assert_eq!(rejected(fixture.store.cancel(batch).await).field, "batch");
    assert_eq!(fixture.job(job.id).await, job);
}

/// Settles a running job whose cancel was requested, and returns the job as it was before.
async fn settle_cancelling(fixture: &StoreFixture, verdict: Verdict, state: State) -> Job {
    let job = fixture.running().await;
    fixture.cancel(job.id).await;
    fixture.clock.advance(ms(20));
    let settlement =
        Settlement { entry: Some(entry(&job, "an outcome")), ..settlement(job.lease(), verdict) };
    assert_eq!(fixture.settle_by(settlement).await, SettleResult::Applied(state));
    job
}

fn ended(fixture: &StoreFixture, job: Job) -> Job {
    Job { cancel_requested: true, lease_until: None, finished_at: Some(fixture.now()), ..job }
}

/// Asserts that a job was cancelled. Due time and wait do not change, because no further attempt is planned.
async fn assert_cancelled(fixture: &StoreFixture, job: Job) {
    let expected = Job { state: State::Cancelled, ..ended(fixture, job.clone()) };
    assert_eq!(fixture.job(job.id).await, expected);
    let logged = Attempt {
        epoch: job.epoch,
        entry: entry(&Job { attempt: 1, ..job.clone() }, "an outcome"),
        worker: Some(worker("claimer")),
        led_to: State::Cancelled,
        wait: None,
        next_run_at: None,
    };
    assert_eq!(fixture.log(job.id).await, [logged]);
}

impl StoreFixture {
    async fn child_of(&self, parent: JobId, state: State) -> JobId {
        let parent = Some(Parent::new(parent, 0));
        let id = self.enqueue(NewJob { parent, ..self.own_job() }).await;
        self.bring_to(id, state).await;
        id
    }
}

/// A tree of jobs: a waiting child, a succeeded child, a pending child of the first, and a running child of that one.
async fn tree(fixture: &StoreFixture, top: JobId) -> [JobId; 4] {
    let waiting = fixture.child_of(top, State::Waiting).await;
    let succeeded = fixture.child_of(top, State::Succeeded).await;
    let pending = fixture.child_of(waiting, State::Pending).await;
    let running = fixture.child_of(pending, State::Running).await;
    [waiting, succeeded, pending, running]
}

/// Asserts that every job of a [`tree`] has ended, or that its cancel was requested.
async fn assert_tree_ended(fixture: &StoreFixture, [waiting, succeeded, pending, running]: [JobId; 4]) {
    for (id, state) in
        [(waiting, State::Cancelled), (succeeded, State::Succeeded), (pending, State::Cancelled)]
    {
        assert_eq!(fixture.job(id).await.state, state);
    }
    let running = fixture.job(running).await;
    assert_eq!((running.state, running.cancel_requested), (State::Running, true));
}

async fn ends_all_descendants(fixture: StoreFixture) {
    for top in [State::Pending, State::Running, State::Waiting] {
        let parent = fixture.in_state(top).await.id;
        let tree = tree(&fixture, parent).await;
        let other = fixture.in_state(State::Pending).await;
        fixture.cancel(parent).await;
        assert_tree_ended(&fixture, tree).await;
        assert_eq!(fixture.job(other.id).await, other);
        fixture.settle(fixture.job(tree[3]).await.lease(), Verdict::Cancel).await;
        fixture.cancel(other.id).await;
    }
    fixture.clock.advance(LEASE);
    assert!(fixture.claim(9).await.is_empty());
}

async fn leaves_detached_children(fixture: StoreFixture) {
    let parent = fixture.running().await;
    let of = Parent { detached: true, ..Parent::new(parent.id, 0) };
    let detached = fixture.enqueue(NewJob { parent: Some(of), ..fixture.own_job() }).await;
    let below = fixture.child_of(detached, State::Pending).await;
    let attached = fixture.child_of(parent.id, State::Pending).await;
    fixture.cancel(parent.id).await;
    fixture.settle(parent.lease(), Verdict::Cancel).await;
    for (id, state) in [(detached, State::Pending), (below, State::Pending), (attached, State::Cancelled)] {
        assert_eq!(fixture.job(id).await.state, state);
    }
}

async fn a_death_ends_all_descendants(fixture: StoreFixture) {
    let parent = fixture.running().await;
    let tree = tree(&fixture, parent.id).await;
    fixture.settle(parent.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    assert_tree_ended(&fixture, tree).await;
    assert_eq!(fixture.job(parent.id).await.state, State::Dead);
}

/// A batch applies its settlements in their order, although the ancestor may be stored before its descendant.
async fn a_success_before_a_death_in_the_same_batch_is_not_cancelled(fixture: StoreFixture) {
    let parent = fixture.in_state(State::Running).await;
    let child = fixture.child_of(parent.id, State::Running).await;
    let child = fixture.job(child).await;
    let batch = vec![
        Settlement::new(child.lease(), Verdict::Complete(None)),
        Settlement::new(parent.lease(), Verdict::DeadLetter(Reason::NotRetryable)),
    ];
    let results = fixture.store.settle(batch).await.expect("settle");
    assert_eq!(results, [SettleResult::Applied(State::Succeeded), SettleResult::Applied(State::Dead)]);
    let child = fixture.job(child.id).await;
    assert_eq!((child.state, child.cancel_requested), (State::Succeeded, false));
}

async fn a_cancelled_attempt_ends_all_descendants(fixture: StoreFixture) {
    let parent = fixture.running().await;
    let tree = tree(&fixture, parent.id).await;
    fixture.settle(parent.lease(), Verdict::Cancel).await;
    assert_tree_ended(&fixture, tree).await;
}

async fn a_retry_or_a_success_leaves_the_children(fixture: StoreFixture) {
    for verdict in [Verdict::Retry(ms(0)), Verdict::Complete(None), wait(), Verdict::Release] {
        let parent = fixture.running().await;
        let child = fixture.child_of(parent.id, State::Pending).await;
        fixture.settle(parent.lease(), verdict.clone()).await;
        assert_eq!(fixture.job(child).await.state, State::Pending, "{verdict:?}");
    }
}

/// The tree has more children than a store ends in one write.
async fn a_large_tree_ends_completely(fixture: StoreFixture) {
    let parent = fixture.running().await;
    let children = |of: JobId, count: usize| -> Vec<NewJob> {
        (0..count).map(|_| NewJob { parent: Some(Parent::new(of, 0)), ..fixture.new_job() }).collect()
    };
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let level = children(parent.id, 900);
        jobs.extend(level.iter().map(|job| job.id));
        fixture.store.enqueue(level).await.expect("enqueue");
    }
    let below = children(jobs[0], 900);
    jobs.extend(below.iter().map(|job| job.id));
    fixture.store.enqueue(below).await.expect("enqueue");
    fixture.cancel(parent.id).await;
    for ids in jobs.chunks(BATCH_ITEMS_MAX) {
        let found = fixture.store.get(ids.to_vec()).await.expect("get");
        assert!(found.iter().flatten().all(|job| job.state == State::Cancelled));
    }
    assert_eq!(fixture.claim(9).await, []);
}

/// Sixteen parents add children while they are cancelled: no child stays live.
async fn a_tree_that_grows_meanwhile_ends_completely(fixture: StoreFixture) {
    let top = fixture.running().await.id;
    let mut parents = Vec::new();
    for _ in 0..16 {
        let id = fixture.child_of(top, State::Running).await;
        parents.push(fixture.job(id).await.lease());
    }
    let new_steps: Vec<Vec<NewStep>> = parents
        .iter()
        .map(|lease| {
            let new_step = |place| {
                let children =
                    vec![NewJob { parent: Some(Parent::new(lease.id, place)), ..fixture.own_job() }];
                NewStep { children, ..NewStep::new(*lease, step(place, b"")) }
            };
            (0..8).map(new_step).collect()
        })
        .collect();
    let grown = concurrently(17, |n| {
        let (store, new_steps) = (fixture.store.clone(), new_steps.get(n).cloned());
        async move {
            let Some(new_steps) = new_steps else {
                store.cancel(vec![top]).await.expect("cancel");
                return;
            };
            for new_step in new_steps {
                store.remember(vec![new_step]).await.expect("remember");
            }
        }
    });
    grown.await;
    for new_step in new_steps.iter().flatten() {
        let child = fixture.find(new_step.children[0].id).await;
        assert!(child.is_none_or(|child| child.state == State::Cancelled));
    }
}

async fn wakes_workers_that_run_a_job(fixture: StoreFixture) {
    let waiting = fixture.in_state(State::Pending).await.id;
    let running = fixture.running().await;
    let child = fixture.child_of(running.id, State::Running).await;
    let seen = fixture.store.wait_for_cancel(WakeToken(u64::MAX)).await;
    fixture.cancel(waiting).await;
    fixture.cancel(running.id).await;
    let now = fixture.store.wait_for_cancel(seen).await;
    assert_ne!(now, seen);
    // The cancel of a parent requests the cancel of its children.
    let other = fixture.running().await;
    fixture.child_of(other.id, State::Running).await;
    let seen = fixture.store.wait_for_cancel(WakeToken(u64::MAX)).await;
    fixture.settle(other.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    assert_ne!(fixture.store.wait_for_cancel(seen).await, seen);
    assert!(fixture.job(child).await.cancel_requested);
}

async fn leaves_the_children_of_an_ended_job(fixture: StoreFixture) {
    let parent = fixture.in_state(State::Dead).await.id;
    let child = fixture.child_of(parent, State::Pending).await;
    assert_eq!(fixture.cancel(parent).await, CancelResult::Ended(State::Dead));
    assert_eq!(fixture.job(child).await.state, State::Pending);
}
