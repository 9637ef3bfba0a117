//! Redrive: a dead job gets a fresh run, once, and keeps its history.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Redriven, Settlement};
use redrive_core::{Job, Reason, State, Verdict};

use super::chapter;
use super::stage::{Stage, at_once, ids, job_id, ms, only, refused, settlement};

chapter!("redrive":
    gives_a_dead_job_a_fresh_run,
    makes_it_due_at_once,
    drives_nothing_that_is_not_dead,
    sixteen_at_once_drive_it_once,
    twice_in_a_batch_drives_it_once,
    the_log_keeps_the_earlier_runs,
    forgets_a_cancel_request,
    a_batch_answers_item_by_item,
    a_batch_that_is_too_large_is_refused,
);

async fn gives_a_dead_job_a_fresh_run(stage: Stage) {
    let id = stage.enqueue(stage.own_job()).await;
    stage.claim_and_settle(id, Verdict::Retry(ms(40))).await;
    stage.clock.advance(ms(40));
    let running = stage.claim_own(id).await;
    let last = Settlement {
        error: Some("the end".to_owned()),
        ..settlement(running.lease(), Verdict::DeadLetter(Reason::AttemptsExhausted))
    };
    stage.settle_by(last).await;
    let dead = stage.job(id).await;
    stage.clock.advance(ms(60_000));
    assert_eq!(only(stage.store.redrive(vec![id]).await.expect("redrive")), Redriven::Done);
    let expected = Job {
        state: State::Pending,
        run: 2,
        attempt: 0,
        began_at: stage.now(),
        next_run_at: stage.now(),
        wait: None,
        reason: None,
        finished_at: None,
        ..dead
    };
    assert_eq!(expected.last_error.as_deref(), Some("the end"));
    assert_eq!(stage.job(id).await, expected);
}

async fn makes_it_due_at_once(stage: Stage) {
    let dead = stage.in_state(State::Dead).await;
    stage.redrive(dead.id).await;
    let claimed = stage.claim(10).await;
    assert_eq!(ids(&claimed), [dead.id]);
    assert_eq!((claimed[0].run, claimed[0].attempt, claimed[0].epoch), (2, 1, 2));
}

async fn drives_nothing_that_is_not_dead(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Dead) {
        let before = stage.in_state(state).await;
        let answer = only(stage.store.redrive(vec![before.id]).await.expect("redrive"));
        assert_eq!(answer, Redriven::NotDead(state));
        assert_eq!(stage.job(before.id).await, before);
    }
    let answer = only(stage.store.redrive(vec![job_id(99)]).await.expect("redrive"));
    assert_eq!(answer, Redriven::NotFound);
}

async fn sixteen_at_once_drive_it_once(stage: Stage) {
    let dead = stage.in_state(State::Dead).await;
    let answers = at_once(16, |_| {
        let (store, id) = (stage.store.clone(), dead.id);
        async move { only(store.redrive(vec![id]).await.expect("redrive")) }
    })
    .await;
    let done = answers.iter().filter(|answer| **answer == Redriven::Done).count();
    let late = answers.iter().filter(|answer| **answer == Redriven::NotDead(State::Pending)).count();
    assert_eq!((done, late), (1, 15), "{answers:?}");
    assert_eq!(stage.job(dead.id).await.run, 2);
}

async fn twice_in_a_batch_drives_it_once(stage: Stage) {
    let dead = stage.in_state(State::Dead).await;
    let answers = stage.store.redrive(vec![dead.id, dead.id]).await.expect("redrive");
    assert_eq!(answers, [Redriven::Done, Redriven::NotDead(State::Pending)]);
    assert_eq!(stage.job(dead.id).await.run, 2);
}

async fn the_log_keeps_the_earlier_runs(stage: Stage) {
    let id = stage.enqueue(stage.own_job()).await;
    for _ in 0..2 {
        stage.claim_and_settle(id, Verdict::Retry(ms(0))).await;
        stage.claim_and_settle(id, Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
        stage.redrive(id).await;
    }
    stage.claim_and_settle(id, Verdict::Complete(None)).await;
    let log = stage.log(id).await;
    let numbers: Vec<_> = log.iter().map(|a| (a.epoch, a.entry.run, a.entry.attempt, a.led_to)).collect();
    let expected = [
        (1, 1, 1, State::Retrying),
        (2, 1, 2, State::Dead),
        (3, 2, 1, State::Retrying),
        (4, 2, 2, State::Dead),
        (5, 3, 1, State::Succeeded),
    ];
    assert_eq!(numbers, expected);
}

async fn forgets_a_cancel_request(stage: Stage) {
    let job = stage.running().await;
    stage.cancel(job.id).await;
    stage.settle(job.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    stage.redrive(job.id).await;
    assert!(!stage.job(job.id).await.cancel_requested);
    let again = stage.claim_own(job.id).await;
    stage.settle(again.lease(), Verdict::Retry(ms(1))).await;
    assert_eq!(stage.job(job.id).await.state, State::Retrying);
}

async fn a_batch_answers_item_by_item(stage: Stage) {
    let (one, two, pending) = (
        stage.in_state(State::Dead).await,
        stage.in_state(State::Dead).await,
        stage.in_state(State::Pending).await,
    );
    let batch = vec![two.id, job_id(99), pending.id, one.id];
    let expected = [Redriven::Done, Redriven::NotFound, Redriven::NotDead(State::Pending), Redriven::Done];
    assert_eq!(stage.store.redrive(batch).await.expect("redrive"), expected);
}

async fn a_batch_that_is_too_large_is_refused(stage: Stage) {
    let dead = stage.in_state(State::Dead).await;
    let batch = vec![dead.id; BATCH_ITEMS_MAX + 1];
    assert_eq!(refused(stage.store.redrive(batch).await).field, "batch");
    assert_eq!(stage.job(dead.id).await, dead);
}
