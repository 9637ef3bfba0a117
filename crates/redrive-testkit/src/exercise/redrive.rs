//! Redrive: a dead job gets one new run and keeps its log.

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{RedriveResult, Settlement};
use redrive_core::{Job, Reason, State, Verdict, lease_count};

use super::chapter;
use super::fixture::{StoreFixture, concurrently, ids, job_id, ms, next_epoch, only, rejected, settlement};

chapter!("redrive":
    gives_a_dead_job_a_new_run,
    makes_it_due_at_once,
    redrives_only_dead_jobs,
    sixteen_concurrent_redrives_start_one_run,
    twice_in_a_batch_starts_one_run,
    the_log_keeps_the_earlier_runs,
    clears_a_cancel_request,
    a_batch_returns_one_result_per_item,
    an_oversized_batch_is_rejected,
);

async fn gives_a_dead_job_a_new_run(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.own_job()).await;
    fixture.claim_and_settle(id, Verdict::Retry(ms(40))).await;
    fixture.clock.advance(ms(40));
    let running = fixture.claim_own(id).await;
    let last = Settlement {
        error: Some("the end".to_owned()),
        ..settlement(running.lease(), Verdict::DeadLetter(Reason::AttemptsExhausted))
    };
    fixture.settle_by(last).await;
    let dead = fixture.job(id).await;
    fixture.clock.advance(ms(60_000));
    assert_eq!(only(fixture.store.redrive(vec![id]).await.expect("redrive")), RedriveResult::Done);
    let expected = Job {
        state: State::Pending,
        run: 2,
        attempt: 0,
        began_at: fixture.now(),
        next_run_at: fixture.now(),
        wait: None,
        reason: None,
        finished_at: None,
        ..dead
    };
    assert_eq!(expected.last_error.as_deref(), Some("the end"));
    assert_eq!(fixture.job(id).await, expected);
}

async fn makes_it_due_at_once(fixture: StoreFixture) {
    let dead = fixture.in_state(State::Dead).await;
    fixture.redrive(dead.id).await;
    let claimed = fixture.claim(10).await;
    assert_eq!(ids(&claimed), [dead.id]);
    let epoch = next_epoch(&dead, &claimed[0]);
    assert_eq!((claimed[0].run, claimed[0].attempt, claimed[0].epoch), (2, 1, epoch));
}

async fn redrives_only_dead_jobs(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Dead) {
        let before = fixture.in_state(state).await;
        let answer = only(fixture.store.redrive(vec![before.id]).await.expect("redrive"));
        assert_eq!(answer, RedriveResult::NotDead(state));
        assert_eq!(fixture.job(before.id).await, before);
    }
    let answer = only(fixture.store.redrive(vec![job_id(99)]).await.expect("redrive"));
    assert_eq!(answer, RedriveResult::NotFound);
}

async fn sixteen_concurrent_redrives_start_one_run(fixture: StoreFixture) {
    let dead = fixture.in_state(State::Dead).await;
    let answers = concurrently(16, |_| {
        let (store, id) = (fixture.store.clone(), dead.id);
        async move { only(store.redrive(vec![id]).await.expect("redrive")) }
    })
    .await;
    let done = answers.iter().filter(|answer| **answer == RedriveResult::Done).count();
    let late = answers.iter().filter(|answer| **answer == RedriveResult::NotDead(State::Pending)).count();
    assert_eq!((done, late), (1, 15), "{answers:?}");
    assert_eq!(fixture.job(dead.id).await.run, 2);
}

async fn twice_in_a_batch_starts_one_run(fixture: StoreFixture) {
    let dead = fixture.in_state(State::Dead).await;
    let answers = fixture.store.redrive(vec![dead.id, dead.id]).await.expect("redrive");
    assert_eq!(answers, [RedriveResult::Done, RedriveResult::NotDead(State::Pending)]);
    assert_eq!(fixture.job(dead.id).await.run, 2);
}

async fn the_log_keeps_the_earlier_runs(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.own_job()).await;
    for _ in 0..2 {
        fixture.claim_and_settle(id, Verdict::Retry(ms(0))).await;
        fixture.claim_and_settle(id, Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
        fixture.redrive(id).await;
    }
    fixture.claim_and_settle(id, Verdict::Complete(None)).await;
    let log = fixture.log(id).await;
    assert!(log.is_sorted_by(|older, newer| older.epoch < newer.epoch), "{log:?}");
    let numbers: Vec<_> =
        log.iter().map(|a| (lease_count(a.epoch), a.entry.run, a.entry.attempt, a.led_to)).collect();
    let expected = [
        (1, 1, 1, State::Retrying),
        (2, 1, 2, State::Dead),
        (3, 2, 1, State::Retrying),
        (4, 2, 2, State::Dead),
        (5, 3, 1, State::Succeeded),
    ];
    assert_eq!(numbers, expected);
}

async fn clears_a_cancel_request(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.cancel(job.id).await;
    fixture.settle(job.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    fixture.redrive(job.id).await;
    assert!(!fixture.job(job.id).await.cancel_requested);
    let again = fixture.claim_own(job.id).await;
    fixture.settle(again.lease(), Verdict::Retry(ms(1))).await;
    assert_eq!(fixture.job(job.id).await.state, State::Retrying);
}

async fn a_batch_returns_one_result_per_item(fixture: StoreFixture) {
    let (one, two, pending) = (
        fixture.in_state(State::Dead).await,
        fixture.in_state(State::Dead).await,
        fixture.in_state(State::Pending).await,
    );
    let batch = vec![two.id, job_id(99), pending.id, one.id];
    let expected = [
        RedriveResult::Done,
        RedriveResult::NotFound,
        RedriveResult::NotDead(State::Pending),
        RedriveResult::Done,
    ];
    assert_eq!(fixture.store.redrive(batch).await.expect("redrive"), expected);
}

async fn an_oversized_batch_is_rejected(fixture: StoreFixture) {
    let dead = fixture.in_state(State::Dead).await;
    let batch = vec![dead.id; BATCH_ITEMS_MAX + 1];
    assert_eq!(rejected(fixture.store.redrive(batch).await).field, "batch");
    assert_eq!(fixture.job(dead.id).await, dead);
}
