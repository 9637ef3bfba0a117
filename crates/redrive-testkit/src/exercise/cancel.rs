//! Cancel: final at once unless the job is running, and then its verdict decides.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Cancelled, Settled, Settlement};
use redrive_core::{Attempt, Job, JobId, NewJob, Parent, Reason, State, Verdict};

use super::chapter;
use super::stage::{
    LEASE, Stage, at_once, claim_request, entry, job_id, ms, only, refused, settlement, wait, worker,
};

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
    takes_everything_below_with_it,
    leaves_what_is_below_an_ended_job,
    a_batch_answers_item_by_item,
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
        let parent = Some(Parent { id: parent, branch: 0 });
        let id = self.enqueue(NewJob { parent, ..self.own_job() }).await;
        self.lead(id, state).await;
        id
    }
}

async fn takes_everything_below_with_it(stage: Stage) {
    for top in [State::Pending, State::Running, State::Waiting] {
        let parent = stage.in_state(top).await.id;
        let child = stage.child_of(parent, State::Waiting).await;
        let ended = stage.child_of(parent, State::Succeeded).await;
        let below = stage.child_of(child, State::Pending).await;
        let running = stage.child_of(ended, State::Running).await;
        let other = stage.in_state(State::Pending).await.id;
        stage.cancel(parent).await;
        for (id, state) in [(child, State::Cancelled), (ended, State::Succeeded), (below, State::Cancelled)] {
            assert_eq!(stage.job(id).await.state, state);
        }
        let running = stage.job(running).await;
        assert!(running.state == State::Running && running.cancel_requested);
        assert_eq!(stage.job(other).await.state, State::Pending);
        stage.settle(running.lease(), Verdict::Cancel).await;
        stage.cancel(other).await;
    }
    stage.clock.advance(LEASE);
    assert!(stage.claim(9).await.is_empty());
}

async fn leaves_what_is_below_an_ended_job(stage: Stage) {
    let parent = stage.in_state(State::Dead).await.id;
    let child = stage.child_of(parent, State::Pending).await;
    assert_eq!(stage.cancel(parent).await, Cancelled::Ended(State::Dead));
    assert_eq!(stage.job(child).await.state, State::Pending);
}
