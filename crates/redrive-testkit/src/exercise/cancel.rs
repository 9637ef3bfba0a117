//! Cancel: final at once unless the job is running, and then its verdict decides.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::steps::Memory;
use redrive_core::store::{Cancelled, Settled, Settlement, Wake};
use redrive_core::{Attempt, Job, JobId, NewJob, Parent, Reason, State, Verdict};

use super::chapter;
use super::stage::{
    LEASE, Stage, at_once, claim_request, entry, job_id, ms, only, refused, settlement, wait, worker,
};
use super::steps::step;

chapter!("cancel":
    ends_what_is_not_running_at_once,
    asks_for_the_end_of_what_is_running,
    leaves_alone_what_has_ended,
    a_cancelled_job_is_not_claimed,
    a_retry_becomes_cancelled,
    a_snooze_becomes_cancelled_and_is_refunded,
    a_release_becomes_cancelled,
    a_wait_becomes_cancelled,
    a_success_stays_a_success,
    a_dead_letter_stays_dead,
    a_cancel_verdict_ends_it_as_asked,
    sixteen_cancels_end_it_once,
    ends_everything_below,
    leaves_what_is_below_an_ended_job,
    leaves_detached_children,
    a_death_ends_everything_below,
    a_cancelled_attempt_ends_everything_below,
    a_retry_or_a_success_leaves_what_is_below,
    a_large_tree_ends_whole,
    a_tree_that_grows_meanwhile_ends_whole,
    wakes_workers_that_run_a_job,
    a_batch_answers_item_by_item,
    a_batch_answers_before_anything_below_has_ended,
    a_batch_that_is_too_large_is_refused,
);

async fn ends_what_is_not_running_at_once(stage: Stage) {
    for state in [State::Pending, State::Retrying, State::Waiting] {
        let before = stage.in_state(state).await;
        stage.clock.advance(ms(3));
        assert_eq!(stage.cancel(before.id).await, Cancelled::Done, "{state}");
        let expected =
            Job { state: State::Cancelled, finished_at: Some(stage.now()), awaits: None, ..before };
        assert_eq!(stage.job(expected.id).await, expected, "{state}");
    }
}

async fn asks_for_the_end_of_what_is_running(stage: Stage) {
    let before = stage.running().await;
    for _ in 0..2 {
        assert_eq!(stage.cancel(before.id).await, Cancelled::Requested);
    }
    let expected = Job { cancel_requested: true, ..before };
    assert_eq!(stage.job(expected.id).await, expected);
}

async fn leaves_alone_what_has_ended(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| state.is_final()) {
        let before = stage.in_state(state).await;
        stage.clock.advance(ms(3));
        assert_eq!(stage.cancel(before.id).await, Cancelled::Ended(state));
        assert_eq!(stage.job(before.id).await, before);
    }
    assert_eq!(stage.cancel(job_id(99)).await, Cancelled::NotFound);
}

async fn a_cancelled_job_is_not_claimed(stage: Stage) {
    for state in [State::Pending, State::Retrying, State::Waiting] {
        let job = stage.in_state(state).await;
        stage.cancel(job.id).await;
    }
    let claimed = stage.claim_by(claim_request(10)).await;
    assert_eq!((claimed.jobs, claimed.next_due), (Vec::new(), None));
}

async fn a_retry_becomes_cancelled(stage: Stage) {
    let job = settle_cancelling(&stage, Verdict::Retry(ms(50)), State::Cancelled).await;
    is_cancelled(&stage, job).await;
}

async fn a_snooze_becomes_cancelled_and_is_refunded(stage: Stage) {
    let job = settle_cancelling(&stage, Verdict::Snooze(ms(50)), State::Cancelled).await;
    let refunded = Job { attempt: 0, began_at: job.began_at.after(ms(50)), ..job };
    is_cancelled(&stage, refunded).await;
}

async fn a_release_becomes_cancelled(stage: Stage) {
    let job = settle_cancelling(&stage, Verdict::Release, State::Cancelled).await;
    is_cancelled(&stage, Job { attempt: 0, ..job }).await;
}

async fn a_wait_becomes_cancelled(stage: Stage) {
    let job = settle_cancelling(&stage, wait(), State::Cancelled).await;
    is_cancelled(&stage, Job { attempt: 0, ..job }).await;
}

async fn a_success_stays_a_success(stage: Stage) {
    let job = settle_cancelling(&stage, Verdict::Complete(Some(b"done".to_vec())), State::Succeeded).await;
    let expected = Job { state: State::Succeeded, output: Some(b"done".to_vec()), ..ended(&stage, job) };
    assert_eq!(stage.job(expected.id).await, expected);
}

async fn a_dead_letter_stays_dead(stage: Stage) {
    let verdict = Verdict::DeadLetter(Reason::BudgetExceeded);
    let job = settle_cancelling(&stage, verdict, State::Dead).await;
    let expected = Job { state: State::Dead, reason: Some(Reason::BudgetExceeded), ..ended(&stage, job) };
    assert_eq!(stage.job(expected.id).await, expected);
}

async fn a_cancel_verdict_ends_it_as_asked(stage: Stage) {
    let job = settle_cancelling(&stage, Verdict::Cancel, State::Cancelled).await;
    is_cancelled(&stage, job).await;
}

async fn sixteen_cancels_end_it_once(stage: Stage) {
    let job = stage.in_state(State::Pending).await;
    let answers = at_once(16, |_| {
        let (store, id) = (stage.store.clone(), job.id);
        async move { only(store.cancel(vec![id]).await.expect("cancel")) }
    })
    .await;
    let done = answers.iter().filter(|answer| **answer == Cancelled::Done).count();
    let ended = answers.iter().filter(|answer| **answer == Cancelled::Ended(State::Cancelled)).count();
    assert_eq!((done, ended), (1, 15), "{answers:?}");
}

async fn a_batch_answers_item_by_item(stage: Stage) {
    let (pending, running, dead) =
        (stage.in_state(State::Pending).await, stage.running().await, stage.in_state(State::Dead).await);
    let batch = vec![running.id, job_id(99), pending.id, dead.id, pending.id, running.id];
    let answers = stage.store.cancel(batch).await.expect("cancel");
    let expected = [
        Cancelled::Requested,
        Cancelled::NotFound,
        Cancelled::Done,
        Cancelled::Ended(State::Dead),
        Cancelled::Ended(State::Cancelled),
        Cancelled::Requested,
    ];
    assert_eq!(answers, expected);
}

async fn a_batch_answers_before_anything_below_has_ended(stage: Stage) {
    let parent = stage.in_state(State::Pending).await.id;
    let child = stage.child_of(parent, State::Waiting).await;
    let answers = stage.store.cancel(vec![parent, child]).await.expect("cancel");
    assert_eq!(answers, [Cancelled::Done, Cancelled::Done]);
}

async fn a_batch_that_is_too_large_is_refused(stage: Stage) {
    let job = stage.in_state(State::Pending).await;
    let batch = vec![job.id; BATCH_ITEMS_MAX + 1];
    assert_eq!(refused(stage.store.cancel(batch).await).field, "batch");
    assert_eq!(stage.job(job.id).await, job);
}

/// Settles a running job whose end was asked for, and returns it as it was before.
async fn settle_cancelling(stage: &Stage, verdict: Verdict, state: State) -> Job {
    let job = stage.running().await;
    stage.cancel(job.id).await;
    stage.clock.advance(ms(20));
    let settlement =
        Settlement { entry: Some(entry(&job, "an outcome")), ..settlement(job.lease(), verdict) };
    assert_eq!(stage.settle_by(settlement).await, Settled::Applied(state));
    job
}

fn ended(stage: &Stage, job: Job) -> Job {
    Job { cancel_requested: true, lease_until: None, finished_at: Some(stage.now()), ..job }
}

/// Due time and wait stay as they were: nothing was planned.
async fn is_cancelled(stage: &Stage, job: Job) {
    let expected = Job { state: State::Cancelled, ..ended(stage, job.clone()) };
    assert_eq!(stage.job(job.id).await, expected);
    let logged = Attempt {
        epoch: 1,
        entry: entry(&Job { attempt: 1, ..job.clone() }, "an outcome"),
        worker: Some(worker("claimer")),
        led_to: State::Cancelled,
        wait: None,
        next_run_at: None,
    };
    assert_eq!(stage.log(job.id).await, [logged]);
}

impl Stage {
    async fn child_of(&self, parent: JobId, state: State) -> JobId {
        let parent = Some(Parent::new(parent, 0));
        let id = self.enqueue(NewJob { parent, ..self.own_job() }).await;
        self.lead(id, state).await;
        id
    }
}

/// A child that waits, one that has succeeded, one below the first that is pending, and one below that which runs.
async fn tree(stage: &Stage, top: JobId) -> [JobId; 4] {
    let waiting = stage.child_of(top, State::Waiting).await;
    let succeeded = stage.child_of(top, State::Succeeded).await;
    let pending = stage.child_of(waiting, State::Pending).await;
    let running = stage.child_of(pending, State::Running).await;
    [waiting, succeeded, pending, running]
}

/// Everything of a [`tree`] has ended, or was asked to.
async fn tree_has_ended(stage: &Stage, [waiting, succeeded, pending, running]: [JobId; 4]) {
    for (id, state) in
        [(waiting, State::Cancelled), (succeeded, State::Succeeded), (pending, State::Cancelled)]
    {
        assert_eq!(stage.job(id).await.state, state);
    }
    let running = stage.job(running).await;
    assert_eq!((running.state, running.cancel_requested), (State::Running, true));
}

async fn ends_everything_below(stage: Stage) {
    for top in [State::Pending, State::Running, State::Waiting] {
        let parent = stage.in_state(top).await.id;
        let tree = tree(&stage, parent).await;
        let other = stage.in_state(State::Pending).await;
        stage.cancel(parent).await;
        tree_has_ended(&stage, tree).await;
        assert_eq!(stage.job(other.id).await, other);
        stage.settle(stage.job(tree[3]).await.lease(), Verdict::Cancel).await;
        stage.cancel(other.id).await;
    }
    stage.clock.advance(LEASE);
    assert!(stage.claim(9).await.is_empty());
}

async fn leaves_detached_children(stage: Stage) {
    let parent = stage.running().await;
    let of = Parent { detached: true, ..Parent::new(parent.id, 0) };
    let detached = stage.enqueue(NewJob { parent: Some(of), ..stage.own_job() }).await;
    let below = stage.child_of(detached, State::Pending).await;
    let attached = stage.child_of(parent.id, State::Pending).await;
    stage.cancel(parent.id).await;
    stage.settle(parent.lease(), Verdict::Cancel).await;
    for (id, state) in [(detached, State::Pending), (below, State::Pending), (attached, State::Cancelled)] {
        assert_eq!(stage.job(id).await.state, state);
    }
}

async fn a_death_ends_everything_below(stage: Stage) {
    let parent = stage.running().await;
    let tree = tree(&stage, parent.id).await;
    stage.settle(parent.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    tree_has_ended(&stage, tree).await;
    assert_eq!(stage.job(parent.id).await.state, State::Dead);
}

async fn a_cancelled_attempt_ends_everything_below(stage: Stage) {
    let parent = stage.running().await;
    let tree = tree(&stage, parent.id).await;
    stage.settle(parent.lease(), Verdict::Cancel).await;
    tree_has_ended(&stage, tree).await;
}

async fn a_retry_or_a_success_leaves_what_is_below(stage: Stage) {
    for verdict in [Verdict::Retry(ms(0)), Verdict::Complete(None), wait(), Verdict::Release] {
        let parent = stage.running().await;
        let child = stage.child_of(parent.id, State::Pending).await;
        stage.settle(parent.lease(), verdict.clone()).await;
        assert_eq!(stage.job(child).await.state, State::Pending, "{verdict:?}");
    }
}

/// More than fits into one write of a store that needs several.
async fn a_large_tree_ends_whole(stage: Stage) {
    let parent = stage.running().await;
    let children = |of: JobId, count: usize| -> Vec<NewJob> {
        (0..count).map(|_| NewJob { parent: Some(Parent::new(of, 0)), ..stage.new_job() }).collect()
    };
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let level = children(parent.id, 900);
        jobs.extend(level.iter().map(|job| job.id));
        stage.store.enqueue(level).await.expect("enqueue");
    }
    let below = children(jobs[0], 900);
    jobs.extend(below.iter().map(|job| job.id));
    stage.store.enqueue(below).await.expect("enqueue");
    stage.cancel(parent.id).await;
    for ids in jobs.chunks(BATCH_ITEMS_MAX) {
        let found = stage.store.get(ids.to_vec()).await.expect("get");
        assert!(found.iter().flatten().all(|job| job.state == State::Cancelled));
    }
    assert_eq!(stage.claim(9).await, []);
}

/// Sixteen parents add children while they are cancelled: none of the children stays.
async fn a_tree_that_grows_meanwhile_ends_whole(stage: Stage) {
    let top = stage.running().await.id;
    let mut parents = Vec::new();
    for _ in 0..16 {
        let id = stage.child_of(top, State::Running).await;
        parents.push(stage.job(id).await.lease());
    }
    let memories: Vec<Vec<Memory>> = parents
        .iter()
        .map(|lease| {
            let memory = |place| {
                let children = vec![NewJob { parent: Some(Parent::new(lease.id, place)), ..stage.own_job() }];
                Memory { children, ..Memory::new(*lease, step(place, b"")) }
            };
            (0..8).map(memory).collect()
        })
        .collect();
    let grown = at_once(17, |n| {
        let (store, memories) = (stage.store.clone(), memories.get(n).cloned());
        async move {
            let Some(memories) = memories else {
                store.cancel(vec![top]).await.expect("cancel");
                return;
            };
            for memory in memories {
                store.remember(vec![memory]).await.expect("remember");
            }
        }
    });
    grown.await;
    for memory in memories.iter().flatten() {
        let child = stage.find(memory.children[0].id).await;
        assert!(child.is_none_or(|child| child.state == State::Cancelled));
    }
}

async fn wakes_workers_that_run_a_job(stage: Stage) {
    let waiting = stage.in_state(State::Pending).await.id;
    let running = stage.running().await;
    let child = stage.child_of(running.id, State::Running).await;
    let seen = stage.store.wait_for_cancel(Wake(u64::MAX)).await;
    stage.cancel(waiting).await;
    stage.cancel(running.id).await;
    let now = stage.store.wait_for_cancel(seen).await;
    assert_ne!(now, seen);
    // The end of a parent requests that of its children.
    let other = stage.running().await;
    stage.child_of(other.id, State::Running).await;
    let seen = stage.store.wait_for_cancel(Wake(u64::MAX)).await;
    stage.settle(other.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    assert_ne!(stage.store.wait_for_cancel(seen).await, seen);
    assert!(stage.job(child).await.cancel_requested);
}

async fn leaves_what_is_below_an_ended_job(stage: Stage) {
    let parent = stage.in_state(State::Dead).await.id;
    let child = stage.child_of(parent, State::Pending).await;
    assert_eq!(stage.cancel(parent).await, Cancelled::Ended(State::Dead));
    assert_eq!(stage.job(child).await.state, State::Pending);
}
