//! Settle: one guarded write, and a lost lease changes nothing at all.

use redrive_core::limits::{BATCH_ITEMS_MAX, OUTPUT_BYTES_MAX};
use redrive_core::store::{Settled, Settlement};
use redrive_core::{Entry, Job, JobId, Lease, Reason, State, Verdict};

use super::chapter;
use super::stage::{
    LEASE, Stage, at_once, claim_request, entry, job_id, ms, reclaim_request, refused, settlement, wait,
};

chapter!("settle":
    an_older_epoch_changes_nothing,
    a_newer_epoch_changes_nothing,
    an_unknown_job_is_a_lost_lease,
    a_job_that_is_not_running_cannot_be_settled,
    a_lease_that_ran_out_still_settles_until_it_is_taken_over,
    a_lease_settles_once,
    a_lease_settles_once_in_a_batch,
    a_lease_settles_once_from_16_callers,
    settle_and_reclaim_at_once_have_one_winner,
    a_batch_answers_item_by_item,
    neighbours_settle_whatever_became_of_one,
    a_full_batch_is_settled,
    the_log_holds_what_the_worker_said,
    state_and_log_appear_together,
    the_last_answer_stays_on_the_row,
    without_an_entry_there_is_no_log,
    a_lost_lease_leaves_no_log,
    a_job_that_was_redriven_shuts_out_its_earlier_run,
    too_much_output_refuses_the_whole_batch,
    text_that_not_every_store_can_hold_refuses_the_whole_batch,
    a_batch_that_is_too_large_is_refused,
    an_empty_batch_is_no_error,
);

async fn an_older_epoch_changes_nothing(stage: Stage) {
    let first = stage.running().await;
    stage.settle(first.lease(), Verdict::Retry(ms(0))).await;
    let second = stage.claim_own(first.id).await;
    is_shut_out(&stage, first.lease()).await;
    let settled = stage.settle(second.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, Settled::Applied(State::Succeeded));
}

async fn a_newer_epoch_changes_nothing(stage: Stage) {
    let job = stage.running().await;
    let epoch = job.epoch + 1;
    is_shut_out(&stage, Lease { epoch, ..job.lease() }).await;
}

async fn an_unknown_job_is_a_lost_lease(stage: Stage) {
    stage.running().await;
    let id = job_id(77);
    is_shut_out(&stage, Lease { id, epoch: 1 }).await;
}

async fn a_job_that_is_not_running_cannot_be_settled(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Running) {
        let job = stage.in_state(state).await;
        is_shut_out(&stage, job.lease()).await;
    }
}

async fn a_lease_that_ran_out_still_settles_until_it_is_taken_over(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE * 10);
    let settled = stage.settle(job.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, Settled::Applied(State::Succeeded));
    assert_eq!(stage.reclaim(10).await, []);
}

async fn a_lease_settles_once(stage: Stage) {
    for verdict in verdicts() {
        let job = stage.running().await;
        stage.settle(job.lease(), verdict).await;
        is_shut_out(&stage, job.lease()).await;
    }
}

async fn a_lease_settles_once_in_a_batch(stage: Stage) {
    let job = stage.running().await;
    let batch = vec![
        settlement(job.lease(), Verdict::Complete(None)),
        settlement(job.lease(), Verdict::DeadLetter(Reason::NotRetryable)),
    ];
    let answers = stage.store.settle(batch).await.expect("settle");
    assert_eq!(answers, [Settled::Applied(State::Succeeded), Settled::LeaseLost]);
    assert_eq!(stage.job(job.id).await.state, State::Succeeded);
}

async fn a_lease_settles_once_from_16_callers(stage: Stage) {
    let job = stage.running().await;
    let answers = at_once(16, |n| {
        let (store, lease) = (stage.store.clone(), job.lease());
        let verdict = Verdict::Complete(Some(vec![n as u8]));
        async move { store.settle(vec![settlement(lease, verdict)]).await.expect("settle") }
    })
    .await;
    let winners: Vec<usize> =
        (0..16).filter(|n| answers[*n] == [Settled::Applied(State::Succeeded)]).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    assert_eq!(stage.job(job.id).await.output, Some(vec![winners[0] as u8]));
}

async fn settle_and_reclaim_at_once_have_one_winner(stage: Stage) {
    for _ in 0..20 {
        let job = stage.running().await;
        stage.clock.advance(LEASE);
        let (settler, reclaimer) = (stage.store.clone(), stage.store.clone());
        let settling = vec![settlement(job.lease(), Verdict::Complete(None))];
        let settled = tokio::spawn(async move { settler.settle(settling).await.expect("settle") });
        let taken =
            tokio::spawn(async move { reclaimer.reclaim(reclaim_request(1)).await.expect("reclaim").jobs });
        let (settled, taken) = (settled.await.expect("settle"), taken.await.expect("reclaim"));
        let job = stage.job(job.id).await;
        match settled[0] {
            Settled::Applied(_) => assert_eq!((taken.len(), job.state), (0, State::Succeeded)),
            Settled::LeaseLost => assert_eq!((taken.len(), job.epoch), (1, 2)),
        }
        // What was taken over ends here, so that the next round starts clean.
        stage.settle(job.lease(), Verdict::Cancel).await;
    }
}

async fn a_batch_answers_item_by_item(stage: Stage) {
    let jobs = [stage.running().await, stage.running().await, stage.running().await];
    let stale = Lease { epoch: 0, ..jobs[1].lease() };
    let batch = vec![
        settlement(jobs[2].lease(), Verdict::Retry(ms(5))),
        settlement(stale, Verdict::Complete(None)),
        settlement(jobs[0].lease(), Verdict::Complete(None)),
        settlement(Lease { id: job_id(99), epoch: 1 }, Verdict::Complete(None)),
    ];
    let answers = stage.store.settle(batch).await.expect("settle");
    let expected = [
        Settled::Applied(State::Retrying),
        Settled::LeaseLost,
        Settled::Applied(State::Succeeded),
        Settled::LeaseLost,
    ];
    assert_eq!(answers, expected);
    assert_eq!(stage.job(jobs[0].id).await.state, State::Succeeded);
    assert_eq!(stage.job(jobs[1].id).await, jobs[1]);
    assert_eq!(stage.job(jobs[2].id).await.state, State::Retrying);
}

/// A store may write neighbours together; one that is lost and one that is being cancelled cost the others nothing.
async fn neighbours_settle_whatever_became_of_one(stage: Stage) {
    stage.enqueue_some(7).await;
    let jobs = stage.claim(7).await;
    stage.settle(jobs[2].lease(), Verdict::Retry(ms(50))).await;
    stage.cancel(jobs[5].id).await;
    let lost = stage.job(jobs[2].id).await;
    let batch = jobs.iter().map(|job| settlement(job.lease(), Verdict::Complete(None)));
    let answers = stage.store.settle(batch.collect()).await.expect("settle");
    let mut expected = vec![Settled::Applied(State::Succeeded); 7];
    expected[2] = Settled::LeaseLost;
    assert_eq!(answers, expected);
    assert_eq!(stage.job(jobs[2].id).await, lost);
    let stats = stage.store.stats().await.expect("stats");
    assert_eq!((stats.in_state(State::Succeeded), stats.in_state(State::Running)), (6, 0));
}

async fn a_full_batch_is_settled(stage: Stage) {
    stage.enqueue_some(BATCH_ITEMS_MAX).await;
    let jobs = stage.claim(BATCH_ITEMS_MAX).await;
    let batch = jobs.iter().map(|job| Settlement {
        entry: Some(entry(job, "done")),
        ..settlement(job.lease(), Verdict::Complete(None))
    });
    let answers = stage.store.settle(batch.collect()).await.expect("settle");
    assert_eq!(answers, vec![Settled::Applied(State::Succeeded); BATCH_ITEMS_MAX]);
    assert_eq!(stage.log(jobs[BATCH_ITEMS_MAX - 1].id).await.len(), 1);
}

async fn the_log_holds_what_the_worker_said(stage: Stage) {
    let id = stage.enqueue(stage.own_job()).await;
    let full = |job: &Job| entry(job, "failed");
    let bare = |job: &Job| Entry {
        error: None,
        detail: None,
        outcome: "空".to_owned(),
        duration: ms(0),
        ..entry(job, "")
    };
    let mut expected = Vec::new();
    for (n, said) in [full, bare, full].into_iter().enumerate() {
        let job = stage.claim_own(id).await;
        let entry = said(&job);
        expected.push((n as u64 + 1, entry.clone()));
        let settlement = Settlement { entry: Some(entry), ..settlement(job.lease(), Verdict::Retry(ms(0))) };
        stage.settle_by(settlement).await;
    }
    let log = stage.log(id).await;
    assert_eq!(log.into_iter().map(|a| (a.epoch, a.entry)).collect::<Vec<_>>(), expected);
}

async fn the_last_answer_stays_on_the_row(stage: Stage) {
    let id = stage.enqueue(stage.own_job()).await;
    for (status, expected) in
        [(None, None), (Some(503), Some(503)), (None, Some(503)), (Some(200), Some(200))]
    {
        let job = stage.claim_own(id).await;
        let settlement = Settlement { status, ..settlement(job.lease(), Verdict::Retry(ms(0))) };
        stage.settle_by(settlement).await;
        assert_eq!(stage.job(id).await.last_status, expected);
    }
}

async fn state_and_log_appear_together(stage: Stage) {
    for _ in 0..20 {
        let job = stage.running().await;
        let settlement = Settlement {
            entry: Some(entry(&job, "done")),
            ..settlement(job.lease(), Verdict::Complete(None))
        };
        let store = stage.store.clone();
        let settling = tokio::spawn(async move { store.settle(vec![settlement]).await.expect("settle") });
        while !settling.is_finished() {
            together(&stage, job.id).await;
            tokio::task::yield_now().await;
        }
        settling.await.expect("settle");
        together(&stage, job.id).await;
    }
}

/// Whichever of the two is read first, the other one is not behind it.
async fn together(stage: &Stage, id: JobId) {
    let logged = !stage.log(id).await.is_empty();
    let settled = stage.job(id).await.state == State::Succeeded;
    assert!(settled || !logged, "the log is ahead of the state");
    let logged = !stage.log(id).await.is_empty();
    assert!(logged || !settled, "the state is ahead of the log");
}

async fn without_an_entry_there_is_no_log(stage: Stage) {
    let job = stage.running().await;
    stage.settle(job.lease(), Verdict::Retry(ms(0))).await;
    assert_eq!(stage.log(job.id).await, []);
}

async fn a_lost_lease_leaves_no_log(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE);
    stage.reclaim(1).await;
    let late =
        Settlement { entry: Some(entry(&job, "done")), ..settlement(job.lease(), Verdict::Complete(None)) };
    assert_eq!(stage.settle_by(late).await, Settled::LeaseLost);
    assert_eq!(stage.log(job.id).await, []);
}

async fn a_job_that_was_redriven_shuts_out_its_earlier_run(stage: Stage) {
    let first = stage.running().await;
    stage.settle(first.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    stage.redrive(first.id).await;
    is_shut_out(&stage, first.lease()).await;
    stage.claim_own(first.id).await;
    is_shut_out(&stage, first.lease()).await;
}

async fn too_much_output_refuses_the_whole_batch(stage: Stage) {
    let (one, two) = (stage.running().await, stage.running().await);
    let before = stage.content().await;
    let batch = |bytes: usize| {
        vec![
            settlement(one.lease(), Verdict::Complete(None)),
            settlement(two.lease(), Verdict::Complete(Some(vec![0; bytes]))),
        ]
    };
    assert_eq!(refused(stage.store.settle(batch(OUTPUT_BYTES_MAX + 1)).await).field, "output");
    assert_eq!(stage.content().await, before);
    stage.store.settle(batch(OUTPUT_BYTES_MAX)).await.expect("the largest output");
    assert_eq!(stage.job(two.id).await.output.map(|output| output.len()), Some(OUTPUT_BYTES_MAX));
}

async fn text_that_not_every_store_can_hold_refuses_the_whole_batch(stage: Stage) {
    let (one, two) = (stage.running().await, stage.running().await);
    let before = stage.content().await;
    let bad = || Some("a\0b".to_owned());
    let plain = || settlement(two.lease(), Verdict::Retry(ms(1)));
    let logged = |entry| Settlement { entry: Some(entry), ..plain() };
    let cases = [
        ("error", Settlement { error: bad(), ..plain() }),
        ("error", logged(Entry { error: bad(), ..entry(&two, "failed") })),
        ("detail", logged(Entry { detail: bad(), ..entry(&two, "failed") })),
        ("outcome", logged(entry(&two, "a\0b"))),
    ];
    for (field, bad) in cases {
        let batch = vec![settlement(one.lease(), Verdict::Complete(None)), bad];
        assert_eq!(refused(stage.store.settle(batch).await).field, field);
        assert_eq!(stage.content().await, before, "{field}");
    }
}

async fn a_batch_that_is_too_large_is_refused(stage: Stage) {
    let job = stage.running().await;
    let batch = vec![settlement(job.lease(), Verdict::Cancel); BATCH_ITEMS_MAX + 1];
    assert_eq!(refused(stage.store.settle(batch).await).field, "batch");
    assert_eq!(stage.job(job.id).await, job);
}

async fn an_empty_batch_is_no_error(stage: Stage) {
    assert_eq!(stage.store.settle(Vec::new()).await.expect("settle"), []);
    let nothing: Vec<JobId> = Vec::new();
    assert_eq!(stage.store.cancel(nothing.clone()).await.expect("cancel"), []);
    assert_eq!(stage.store.redrive(nothing.clone()).await.expect("redrive"), []);
    assert_eq!(stage.store.discard(nothing.clone()).await.expect("discard"), []);
    assert_eq!(stage.store.get(nothing).await.expect("get"), []);
    assert_eq!(stage.store.extend(Vec::new(), LEASE).await.expect("extend"), []);
    assert_eq!(stage.store.claim(claim_request(1)).await.expect("claim").jobs, []);
}

/// Every verdict under `lease` is refused, and nothing that can be seen has changed.
async fn is_shut_out(stage: &Stage, lease: Lease) {
    let before = stage.content().await;
    for verdict in verdicts() {
        let settlement = Settlement {
            error: Some("too late".to_owned()),
            entry: Some(late_entry(stage)),
            ..settlement(lease, verdict.clone())
        };
        assert_eq!(stage.settle_by(settlement).await, Settled::LeaseLost, "{verdict:?}");
        assert_eq!(stage.content().await, before, "{verdict:?}");
    }
}

fn verdicts() -> [Verdict; 7] {
    [
        Verdict::Complete(Some(b"late".to_vec())),
        Verdict::Retry(ms(1)),
        Verdict::Snooze(ms(1)),
        wait(),
        Verdict::Release,
        Verdict::DeadLetter(Reason::NotRetryable),
        Verdict::Cancel,
    ]
}

fn late_entry(stage: &Stage) -> Entry {
    Entry {
        run: 1,
        attempt: 1,
        started_at: stage.now(),
        duration: ms(1),
        outcome: "done".to_owned(),
        error: None,
        detail: None,
    }
}
