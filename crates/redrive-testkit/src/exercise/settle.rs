//! Settle: one fenced write; a lost lease changes nothing.

use redrive_core::limits::{BATCH_ITEMS_MAX, OUTPUT_BYTES_MAX};
use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{AttemptReport, Job, JobId, Lease, Reason, State, Verdict};

use super::chapter;
use super::fixture::{
    LEASE, StoreFixture, claim_request, concurrently, entry, job_id, ms, newer_leases, next_epoch,
    reclaim_request, rejected, settlement, wait,
};

chapter!("settle":
    an_older_epoch_changes_nothing,
    a_newer_epoch_changes_nothing,
    an_unknown_job_is_a_lost_lease,
    a_job_that_is_not_running_cannot_be_settled,
    an_expired_lease_still_settles_until_it_is_reclaimed,
    a_lease_settles_once,
    a_lease_settles_once_in_a_batch,
    a_lease_settles_once_from_16_callers,
    concurrent_settle_and_reclaim_have_one_winner,
    a_batch_returns_one_result_per_item,
    neighbouring_rows_settle_even_if_one_lease_is_lost,
    a_full_batch_is_settled,
    the_log_has_the_report_of_the_worker,
    state_and_log_appear_together,
    the_job_keeps_the_last_status,
    without_a_report_there_is_no_log_entry,
    a_lost_lease_leaves_no_log,
    a_redriven_job_rejects_writes_of_its_earlier_run,
    an_oversized_output_rejects_the_whole_batch,
    text_with_nul_characters_rejects_the_whole_batch,
    an_oversized_batch_is_rejected,
    an_empty_batch_succeeds,
);

async fn an_older_epoch_changes_nothing(fixture: StoreFixture) {
    let first = fixture.running().await;
    fixture.settle(first.lease(), Verdict::Retry(ms(0))).await;
    let second = fixture.claim_own(first.id).await;
    rejects_every_verdict(&fixture, first.lease()).await;
    let settled = fixture.settle(second.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, SettleResult::Applied(State::Succeeded));
}

async fn a_newer_epoch_changes_nothing(fixture: StoreFixture) {
    let job = fixture.running().await;
    for newer in newer_leases(job.lease()) {
        rejects_every_verdict(&fixture, newer).await;
    }
}

async fn an_unknown_job_is_a_lost_lease(fixture: StoreFixture) {
    fixture.running().await;
    let id = job_id(77);
    rejects_every_verdict(&fixture, Lease { id, epoch: 1 }).await;
}

async fn a_job_that_is_not_running_cannot_be_settled(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Running) {
        let job = fixture.in_state(state).await;
        rejects_every_verdict(&fixture, job.lease()).await;
    }
}

async fn an_expired_lease_still_settles_until_it_is_reclaimed(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE * 10);
    let settled = fixture.settle(job.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, SettleResult::Applied(State::Succeeded));
    assert_eq!(fixture.reclaim(10).await, []);
}

async fn a_lease_settles_once(fixture: StoreFixture) {
    for verdict in verdicts() {
        let job = fixture.running().await;
        fixture.settle(job.lease(), verdict).await;
        rejects_every_verdict(&fixture, job.lease()).await;
    }
}

async fn a_lease_settles_once_in_a_batch(fixture: StoreFixture) {
    let job = fixture.running().await;
    let batch = vec![
        settlement(job.lease(), Verdict::Complete(None)),
        settlement(job.lease(), Verdict::DeadLetter(Reason::NotRetryable)),
    ];
    let answers = fixture.store.settle(batch).await.expect("settle");
    assert_eq!(answers, [SettleResult::Applied(State::Succeeded), SettleResult::LeaseLost]);
    assert_eq!(fixture.job(job.id).await.state, State::Succeeded);
}

async fn a_lease_settles_once_from_16_callers(fixture: StoreFixture) {
    let job = fixture.running().await;
    let answers = concurrently(16, |n| {
        let (store, lease) = (fixture.store.clone(), job.lease());
        let verdict = Verdict::Complete(Some(vec![n as u8]));
        async move { store.settle(vec![settlement(lease, verdict)]).await.expect("settle") }
    })
    .await;
    let winners: Vec<usize> =
        (0..16).filter(|n| answers[*n] == [SettleResult::Applied(State::Succeeded)]).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    assert_eq!(fixture.job(job.id).await.output, Some(vec![winners[0] as u8]));
}

async fn concurrent_settle_and_reclaim_have_one_winner(fixture: StoreFixture) {
    for _ in 0..20 {
        let job = fixture.running().await;
        fixture.clock.advance(LEASE);
        let (settler, reclaimer) = (fixture.store.clone(), fixture.store.clone());
        let settling = vec![settlement(job.lease(), Verdict::Complete(None))];
        let settled = tokio::spawn(async move { settler.settle(settling).await.expect("settle") });
        let taken =
            tokio::spawn(async move { reclaimer.reclaim(reclaim_request(1)).await.expect("reclaim").jobs });
        let (settled, taken) = (settled.await.expect("settle"), taken.await.expect("reclaim"));
        let before = job;
        let job = fixture.job(before.id).await;
        match settled[0] {
            SettleResult::Applied(_) => assert_eq!((taken.len(), job.state), (0, State::Succeeded)),
            SettleResult::LeaseLost => assert_eq!((taken.len(), job.epoch), (1, next_epoch(&before, &job))),
        }
        // Ends the reclaimed job, so that the next round starts without it.
        fixture.settle(job.lease(), Verdict::Cancel).await;
    }
}

async fn a_batch_returns_one_result_per_item(fixture: StoreFixture) {
    let jobs = [fixture.running().await, fixture.running().await, fixture.running().await];
    let stale = Lease { epoch: 0, ..jobs[1].lease() };
    let batch = vec![
        settlement(jobs[2].lease(), Verdict::Retry(ms(5))),
        settlement(stale, Verdict::Complete(None)),
        settlement(jobs[0].lease(), Verdict::Complete(None)),
        settlement(Lease { id: job_id(99), epoch: 1 }, Verdict::Complete(None)),
    ];
    let answers = fixture.store.settle(batch).await.expect("settle");
    let expected = [
        SettleResult::Applied(State::Retrying),
        SettleResult::LeaseLost,
        SettleResult::Applied(State::Succeeded),
        SettleResult::LeaseLost,
    ];
    assert_eq!(answers, expected);
    assert_eq!(fixture.job(jobs[0].id).await.state, State::Succeeded);
    assert_eq!(fixture.job(jobs[1].id).await, jobs[1]);
    assert_eq!(fixture.job(jobs[2].id).await.state, State::Retrying);
}

/// A store may settle neighbouring rows in one write. A lost lease or a requested cancel among them does not affect the
/// others.
async fn neighbouring_rows_settle_even_if_one_lease_is_lost(fixture: StoreFixture) {
    fixture.enqueue_some(7).await;
    let jobs = fixture.claim(7).await;
    fixture.settle(jobs[2].lease(), Verdict::Retry(ms(50))).await;
    fixture.cancel(jobs[5].id).await;
    let lost = fixture.job(jobs[2].id).await;
    let batch = jobs.iter().map(|job| settlement(job.lease(), Verdict::Complete(None)));
    let answers = fixture.store.settle(batch.collect()).await.expect("settle");
    let mut expected = vec![SettleResult::Applied(State::Succeeded); 7];
    expected[2] = SettleResult::LeaseLost;
    assert_eq!(answers, expected);
    assert_eq!(fixture.job(jobs[2].id).await, lost);
    let stats = fixture.store.stats().await.expect("stats");
    assert_eq!((stats.in_state(State::Succeeded), stats.in_state(State::Running)), (6, 0));
}

async fn a_full_batch_is_settled(fixture: StoreFixture) {
    fixture.enqueue_some(BATCH_ITEMS_MAX).await;
    let jobs = fixture.claim(BATCH_ITEMS_MAX).await;
    let batch = jobs.iter().map(|job| Settlement {
        entry: Some(entry(job, "done")),
        ..settlement(job.lease(), Verdict::Complete(None))
    });
    let answers = fixture.store.settle(batch.collect()).await.expect("settle");
    assert_eq!(answers, vec![SettleResult::Applied(State::Succeeded); BATCH_ITEMS_MAX]);
    assert_eq!(fixture.log(jobs[BATCH_ITEMS_MAX - 1].id).await.len(), 1);
}

async fn the_log_has_the_report_of_the_worker(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.own_job()).await;
    let full = |job: &Job| entry(job, "failed");
    let bare = |job: &Job| AttemptReport {
        error: None,
        detail: None,
        outcome: "空".to_owned(),
        duration: ms(0),
        ..entry(job, "")
    };
    let mut expected = Vec::new();
    for report in [full, bare, full] {
        let job = fixture.claim_own(id).await;
        let entry = report(&job);
        expected.push((job.epoch, entry.clone()));
        let settlement = Settlement { entry: Some(entry), ..settlement(job.lease(), Verdict::Retry(ms(0))) };
        fixture.settle_by(settlement).await;
    }
    let log = fixture.log(id).await;
    assert_eq!(log.into_iter().map(|a| (a.epoch, a.entry)).collect::<Vec<_>>(), expected);
}

async fn the_job_keeps_the_last_status(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.own_job()).await;
    for (status, expected) in
        [(None, None), (Some(503), Some(503)), (None, Some(503)), (Some(200), Some(200))]
    {
        let job = fixture.claim_own(id).await;
        let settlement = Settlement { status, ..settlement(job.lease(), Verdict::Retry(ms(0))) };
        fixture.settle_by(settlement).await;
        assert_eq!(fixture.job(id).await.last_status, expected);
    }
}

async fn state_and_log_appear_together(fixture: StoreFixture) {
    for _ in 0..20 {
        let job = fixture.running().await;
        let settlement = Settlement {
            entry: Some(entry(&job, "done")),
            ..settlement(job.lease(), Verdict::Complete(None))
        };
        let store = fixture.store.clone();
        let settling = tokio::spawn(async move { store.settle(vec![settlement]).await.expect("settle") });
        while !settling.is_finished() {
            assert_state_and_log_agree(&fixture, job.id).await;
            tokio::task::yield_now().await;
        }
        settling.await.expect("settle");
        assert_state_and_log_agree(&fixture, job.id).await;
    }
}

/// Asserts that the state and the log appear together: whichever is read second is at least as new as the first.
async fn assert_state_and_log_agree(fixture: &StoreFixture, id: JobId) {
    let logged = !fixture.log(id).await.is_empty();
    let settled = fixture.job(id).await.state == State::Succeeded;
    assert!(settled || !logged, "the log is ahead of the state");
    let logged = !fixture.log(id).await.is_empty();
    assert!(logged || !settled, "the state is ahead of the log");
}

async fn without_a_report_there_is_no_log_entry(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.settle(job.lease(), Verdict::Retry(ms(0))).await;
    assert_eq!(fixture.log(job.id).await, []);
}

async fn a_lost_lease_leaves_no_log(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE);
    fixture.reclaim(1).await;
    let late =
        Settlement { entry: Some(entry(&job, "done")), ..settlement(job.lease(), Verdict::Complete(None)) };
    assert_eq!(fixture.settle_by(late).await, SettleResult::LeaseLost);
    assert_eq!(fixture.log(job.id).await, []);
}

async fn a_redriven_job_rejects_writes_of_its_earlier_run(fixture: StoreFixture) {
    let first = fixture.running().await;
    fixture.settle(first.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    fixture.redrive(first.id).await;
    rejects_every_verdict(&fixture, first.lease()).await;
    fixture.claim_own(first.id).await;
    rejects_every_verdict(&fixture, first.lease()).await;
}

async fn an_oversized_output_rejects_the_whole_batch(fixture: StoreFixture) {
    let (one, two) = (fixture.running().await, fixture.running().await);
    let before = fixture.content().await;
    let batch = |bytes: usize| {
        vec![
            settlement(one.lease(), Verdict::Complete(None)),
            settlement(two.lease(), Verdict::Complete(Some(vec![0; bytes]))),
        ]
    };
    assert_eq!(rejected(fixture.store.settle(batch(OUTPUT_BYTES_MAX + 1)).await).field, "output");
    assert_eq!(fixture.content().await, before);
    fixture.store.settle(batch(OUTPUT_BYTES_MAX)).await.expect("the largest output");
    assert_eq!(fixture.job(two.id).await.output.map(|output| output.len()), Some(OUTPUT_BYTES_MAX));
}

async fn text_with_nul_characters_rejects_the_whole_batch(fixture: StoreFixture) {
    let (one, two) = (fixture.running().await, fixture.running().await);
    let before = fixture.content().await;
    let bad = || Some("a\0b".to_owned());
    let plain = || settlement(two.lease(), Verdict::Retry(ms(1)));
    let logged = |entry| Settlement { entry: Some(entry), ..plain() };
    let cases = [
        ("error", Settlement { error: bad(), ..plain() }),
        ("error", logged(AttemptReport { error: bad(), ..entry(&two, "failed") })),
        ("detail", logged(AttemptReport { detail: bad(), ..entry(&two, "failed") })),
        ("outcome", logged(entry(&two, "a\0b"))),
    ];
    for (field, bad) in cases {
        let batch = vec![settlement(one.lease(), Verdict::Complete(None)), bad];
        assert_eq!(rejected(fixture.store.settle(batch).await).field, field);
        assert_eq!(fixture.content().await, before, "{field}");
    }
}

async fn an_oversized_batch_is_rejected(fixture: StoreFixture) {
    let job = fixture.running().await;
    let batch = vec![settlement(job.lease(), Verdict::Cancel); BATCH_ITEMS_MAX + 1];
    assert_eq!(rejected(fixture.store.settle(batch).await).field, "batch");
    assert_eq!(fixture.job(job.id).await, job);
}

async fn an_empty_batch_succeeds(fixture: StoreFixture) {
    assert_eq!(fixture.store.settle(Vec::new()).await.expect("settle"), []);
    let nothing: Vec<JobId> = Vec::new();
    assert_eq!(fixture.store.cancel(nothing.clone()).await.expect("cancel"), []);
    assert_eq!(fixture.store.redrive(nothing.clone()).await.expect("redrive"), []);
    assert_eq!(fixture.store.discard(nothing.clone()).await.expect("discard"), []);
    assert_eq!(fixture.store.get(nothing).await.expect("get"), []);
    assert_eq!(fixture.store.extend(Vec::new(), LEASE).await.expect("extend"), []);
    assert_eq!(fixture.store.claim(claim_request(1)).await.expect("claim").jobs, []);
}

/// Asserts that every verdict under `lease` is rejected, and that nothing changes.
async fn rejects_every_verdict(fixture: &StoreFixture, lease: Lease) {
    let before = fixture.content().await;
    for verdict in verdicts() {
        let settlement = Settlement {
            error: Some("too late".to_owned()),
            entry: Some(late_entry(fixture)),
            ..settlement(lease, verdict.clone())
        };
        assert_eq!(fixture.settle_by(settlement).await, SettleResult::LeaseLost, "{verdict:?}");
        assert_eq!(fixture.content().await, before, "{verdict:?}");
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

fn late_entry(fixture: &StoreFixture) -> AttemptReport {
    AttemptReport {
        run: 1,
        attempt: 1,
        started_at: fixture.now(),
        duration: ms(1),
        outcome: "done".to_owned(),
        error: None,
        detail: None,
    }
}
