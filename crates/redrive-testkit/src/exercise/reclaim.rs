//! Reclaim: takes over an expired lease once, and rejects later writes of the old worker.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{
    CancelResult, ClaimRequest, ExtendResult, ReclaimRequest, SettleResult, Settlement,
};
use redrive_core::{Job, JobId, Lease, NewJob, State, Verdict};

use super::chapter;
use super::fixture::{
    LEASE, StoreFixture, claim_request, concurrently, entry, ids, kind, ms, newer_leases, next_epoch, only,
    reclaim_request, rejected, settlement, worker,
};

chapter!("reclaim":
    reclaims_at_the_millisecond_and_not_before,
    increases_the_epoch_and_charges_no_attempt,
    rejects_later_writes_of_the_old_worker,
    the_log_names_the_worker_that_was_lost,
    takes_the_longest_expired_first_within_the_limit,
    reclaims_again_when_the_reclaimer_dies_too,
    does_not_take_jobs_that_are_not_running,
    sixteen_reclaimers_take_each_lease_once,
    keeps_a_cancel_request,
    returns_the_time_and_no_next_due,
    takes_only_the_requested_kinds,
    does_not_take_the_leases_of_its_caller,
    a_lost_lease_does_not_protect_its_job,
    the_leases_of_the_caller_do_not_count_for_the_limit,
    an_abandoned_lease_is_reclaimed_however_late,
    a_full_batch_is_reclaimed_and_a_larger_one_rejected,
);

async fn reclaims_at_the_millisecond_and_not_before(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE - ms(1));
    assert_eq!(fixture.reclaim(10).await, []);
    fixture.clock.advance(ms(1));
    assert_eq!(ids(&fixture.reclaim(10).await), [job.id]);
}

async fn increases_the_epoch_and_charges_no_attempt(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE * 2);
    let request = ReclaimRequest { lease: ms(777), ..reclaim_request(1) };
    let taken = only(fixture.store.reclaim(request).await.expect("reclaim").jobs);
    let epoch = next_epoch(&job, &taken);
    let expected = Job { epoch, lease_until: Some(fixture.now().after(ms(777))), ..job };
    assert_eq!(taken, expected);
    assert_eq!(fixture.job(expected.id).await, expected);
    assert_eq!(fixture.log(expected.id).await, []);
}

async fn rejects_later_writes_of_the_old_worker(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE);
    fixture.reclaim(1).await;
    let before = fixture.content().await;
    let late = Settlement {
        entry: Some(entry(&job, "done")),
        error: Some("late".to_owned()),
        ..settlement(job.lease(), Verdict::Complete(Some(b"late".to_vec())))
    };
    assert_eq!(fixture.settle_by(late).await, SettleResult::LeaseLost);
    let extended = fixture.store.extend(vec![job.lease()], LEASE).await.expect("extend");
    assert_eq!(only(extended), ExtendResult::LeaseLost);
    assert_eq!(fixture.content().await, before);
}

async fn the_log_names_the_worker_that_was_lost(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE);
    let taken = only(fixture.reclaim(1).await);
    let settlement = Settlement {
        entry: Some(entry(&taken, "lease_expired")),
        ..settlement(taken.lease(), Verdict::Retry(ms(9)))
    };
    assert_eq!(fixture.settle_by(settlement).await, SettleResult::Applied(State::Retrying));
    let log = only(fixture.log(job.id).await);
    assert_eq!((log.epoch, log.worker), (next_epoch(&job, &taken), Some(worker("claimer"))));
    assert_eq!((log.entry.attempt, log.entry.started_at), (1, job.started_at.expect("the job was started")));
    fixture.clock.advance(ms(9));
    let again = fixture.claim_own(job.id).await;
    assert_eq!((again.attempt, again.epoch), (2, next_epoch(&taken, &again)));
}

async fn takes_the_longest_expired_first_within_the_limit(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(5).await;
    for (n, lease) in [50, 10, 30, 10, 99].into_iter().enumerate() {
        let request = ClaimRequest { lease: ms(lease), ..claim_request(1) };
        assert_eq!(ids(&fixture.claim_by(request).await.jobs), [enqueued[n]]);
    }
    fixture.clock.advance(ms(50));
    assert_eq!(fixture.reclaim(0).await, []);
    assert_eq!(ids(&fixture.reclaim(3).await), [enqueued[1], enqueued[3], enqueued[2]]);
    assert_eq!(ids(&fixture.reclaim(3).await), [enqueued[0]]);
}

async fn reclaims_again_when_the_reclaimer_dies_too(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE);
    let first = only(fixture.reclaim(1).await);
    assert_eq!(fixture.reclaim(1).await, []);
    fixture.clock.advance(LEASE);
    let second = only(fixture.reclaim(1).await);
    assert_eq!((second.epoch, second.attempt), (next_epoch(&first, &second), 1));
    assert_eq!(second.started_at, job.started_at);
    assert_eq!(fixture.settle(first.lease(), Verdict::Complete(None)).await, SettleResult::LeaseLost);
    let settled = fixture.settle(second.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, SettleResult::Applied(State::Succeeded));
}

async fn does_not_take_jobs_that_are_not_running(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Running) {
        fixture.in_state(state).await;
    }
    fixture.clock.advance(LEASE * 1_000);
    let before = fixture.content().await;
    assert_eq!(fixture.reclaim(100).await, []);
    assert_eq!(fixture.content().await, before);
}

async fn sixteen_reclaimers_take_each_lease_once(fixture: StoreFixture) {
    let enqueued: BTreeSet<JobId> = fixture.enqueue_some(60).await.into_iter().collect();
    let claimed: BTreeMap<JobId, Job> =
        fixture.claim(100).await.into_iter().map(|job| (job.id, job)).collect();
    fixture.clock.advance(LEASE);
    let batches = concurrently(16, |_| {
        let store = fixture.store.clone();
        async move { store.reclaim(reclaim_request(7)).await.expect("reclaim").jobs }
    })
    .await;
    let taken: Vec<JobId> = batches.iter().flatten().map(|job| job.id).collect();
    assert_eq!(taken.len(), 60);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), enqueued);
    for job in batches.iter().flatten() {
        assert_eq!((job.epoch, job.attempt), (next_epoch(&claimed[&job.id], job), 1));
    }
}

async fn keeps_a_cancel_request(fixture: StoreFixture) {
    let job = fixture.running().await;
    assert_eq!(fixture.cancel(job.id).await, CancelResult::Requested);
    fixture.clock.advance(LEASE);
    let taken = only(fixture.reclaim(1).await);
    assert!(taken.cancel_requested);
    let settled = fixture.settle(taken.lease(), Verdict::Retry(ms(1))).await;
    assert_eq!(settled, SettleResult::Applied(State::Cancelled));
}

async fn returns_the_time_and_no_next_due(fixture: StoreFixture) {
    fixture.enqueue_some(1).await;
    fixture.running().await;
    fixture.clock.advance(LEASE);
    let claimed = fixture.store.reclaim(reclaim_request(5)).await.expect("reclaim");
    assert_eq!((claimed.jobs.len(), claimed.now, claimed.next_due), (1, fixture.now(), None));
    assert_eq!(claimed.unreadable, []);
}

async fn a_full_batch_is_reclaimed_and_a_larger_one_rejected(fixture: StoreFixture) {
    fixture.enqueue_some(BATCH_ITEMS_MAX).await;
    fixture.claim(BATCH_ITEMS_MAX).await;
    fixture.clock.advance(LEASE);
    let more = fixture.store.reclaim(reclaim_request(BATCH_ITEMS_MAX + 1)).await;
    assert_eq!(rejected(more).field, "batch");
    assert_eq!(fixture.reclaim(BATCH_ITEMS_MAX).await.len(), BATCH_ITEMS_MAX);
}

async fn takes_only_the_requested_kinds(fixture: StoreFixture) {
    let work = fixture.running().await;
    let mail = fixture.enqueue(NewJob { kind: kind("mail"), ..fixture.own_job() }).await;
    fixture.claim_own(mail).await;
    fixture.clock.advance(LEASE);
    let of = |names: &[&str]| ReclaimRequest {
        kinds: names.iter().map(|name| kind(name)).collect(),
        ..reclaim_request(10)
    };
    let taken = |request| async { ids(&fixture.store.reclaim(request).await.expect("reclaim").jobs) };
    assert_eq!(taken(of(&["other"])).await, []);
    assert_eq!(taken(of(&["other", "mail"])).await, [mail]);
    assert_eq!(taken(of(&[])).await, [work.id]);
}

/// Reclaims at most `limit` leases, but none of `held`.
async fn reclaim_except(fixture: &StoreFixture, held: &[Lease], limit: usize) -> Vec<JobId> {
    let request = ReclaimRequest { held: held.to_vec(), ..reclaim_request(limit) };
    ids(&fixture.store.reclaim(request).await.expect("reclaim").jobs)
}

async fn does_not_take_the_leases_of_its_caller(fixture: StoreFixture) {
    let (mine, other) = (fixture.running().await, fixture.running().await);
    fixture.clock.advance(LEASE * 100);
    let before = fixture.job(mine.id).await;
    assert_eq!(reclaim_except(&fixture, &[mine.lease()], 10).await, [other.id]);
    assert_eq!(fixture.job(mine.id).await, before);
    let extended = fixture.store.extend(vec![mine.lease()], LEASE).await.expect("extend");
    assert_eq!(only(extended), ExtendResult::Renewed, "the lease has expired, but nobody has reclaimed it");
    let settled = fixture.settle(mine.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, SettleResult::Applied(State::Succeeded));
}

async fn a_lost_lease_does_not_protect_its_job(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE);
    let reclaimed = only(fixture.reclaim(1).await);
    fixture.clock.advance(LEASE);
    let [newer, newest] = newer_leases(reclaimed.lease());
    assert_eq!(reclaim_except(&fixture, &[job.lease(), newer, newest], 10).await, [job.id]);
}

async fn the_leases_of_the_caller_do_not_count_for_the_limit(fixture: StoreFixture) {
    fixture.enqueue_some(BATCH_ITEMS_MAX).await;
    fixture.enqueue_some(3).await;
    let mine: Vec<Lease> = fixture.claim(BATCH_ITEMS_MAX).await.iter().map(Job::lease).collect();
    fixture.clock.advance(ms(1));
    let others = ids(&fixture.claim(3).await);
    fixture.clock.advance(LEASE);
    assert_eq!(reclaim_except(&fixture, &mine, 2).await, others[..2]);
    assert_eq!(reclaim_except(&fixture, &mine, 2).await, others[2..]);
    assert_eq!(reclaim_except(&fixture, &mine, 2).await, []);
}

async fn an_abandoned_lease_is_reclaimed_however_late(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE);
    assert_eq!(reclaim_except(&fixture, &[job.lease()], 10).await, []);
    fixture.clock.advance(LEASE * 100_000);
    assert_eq!(reclaim_except(&fixture, &[job.lease()], 10).await, []);
    fixture.clock.advance(LEASE * 100_000);
    assert_eq!(reclaim_except(&fixture, &[], 10).await, [job.id]);
}
