//! Reclaim: a silent crash is noticed, taken over once, and the old holder is shut out.

use std::collections::BTreeSet;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Cancelled, ClaimRequest, Extended, ReclaimRequest, Settled, Settlement};
use redrive_core::{Job, JobId, Lease, NewJob, State, Verdict};

use super::chapter;
use super::stage::{
    LEASE, Stage, at_once, claim_request, entry, ids, kind, ms, only, reclaim_request, refused, settlement,
    worker,
};

chapter!("reclaim":
    takes_over_at_the_millisecond_and_not_before,
    raises_the_epoch_and_charges_no_attempt,
    shuts_out_the_old_holder,
    the_log_names_the_worker_that_was_lost,
    takes_the_longest_expired_first_within_the_limit,
    takes_over_again_when_the_reclaimer_dies_too,
    leaves_alone_what_is_not_running,
    sixteen_reclaimers_take_each_lease_once,
    keeps_a_cancel_request,
    says_the_time_and_no_next_due,
    takes_only_the_kinds_it_was_told,
    leaves_alone_what_its_caller_holds,
    a_lease_that_was_lost_protects_nothing,
    what_the_caller_holds_takes_no_room,
    a_lease_that_is_no_longer_held_is_found_however_late,
    a_full_batch_is_taken_and_more_refused,
);

async fn takes_over_at_the_millisecond_and_not_before(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE - ms(1));
    assert_eq!(stage.reclaim(10).await, []);
    stage.clock.advance(ms(1));
    assert_eq!(ids(&stage.reclaim(10).await), [job.id]);
}

async fn raises_the_epoch_and_charges_no_attempt(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE * 2);
    let request = ReclaimRequest { lease: ms(777), ..reclaim_request(1) };
    let taken = stage.store.reclaim(request).await.expect("reclaim").jobs;
    let expected = Job { epoch: job.epoch + 1, lease_until: Some(stage.now().after(ms(777))), ..job };
    assert_eq!(taken, std::slice::from_ref(&expected));
    assert_eq!(stage.job(expected.id).await, expected);
    assert_eq!(stage.log(expected.id).await, []);
}

async fn shuts_out_the_old_holder(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE);
    stage.reclaim(1).await;
    let before = stage.content().await;
    let late = Settlement {
        entry: Some(entry(&job, "done")),
        error: Some("late".to_owned()),
        ..settlement(job.lease(), Verdict::Complete(Some(b"late".to_vec())))
    };
    assert_eq!(stage.settle_by(late).await, Settled::LeaseLost);
    let extended = stage.store.extend(vec![job.lease()], LEASE).await.expect("extend");
    assert_eq!(only(extended), Extended::LeaseLost);
    assert_eq!(stage.content().await, before);
}

async fn the_log_names_the_worker_that_was_lost(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE);
    let taken = only(stage.reclaim(1).await);
    let settlement = Settlement {
        entry: Some(entry(&taken, "lease_expired")),
        ..settlement(taken.lease(), Verdict::Retry(ms(9)))
    };
    assert_eq!(stage.settle_by(settlement).await, Settled::Applied(State::Retrying));
    let log = only(stage.log(job.id).await);
    assert_eq!((log.epoch, log.worker), (2, Some(worker("claimer"))));
    assert_eq!((log.entry.attempt, log.entry.started_at), (1, job.started_at.expect("it started")));
    stage.clock.advance(ms(9));
    let again = stage.claim_own(job.id).await;
    assert_eq!((again.attempt, again.epoch), (2, 3));
}

async fn takes_the_longest_expired_first_within_the_limit(stage: Stage) {
    let made = stage.enqueue_some(5).await;
    for (n, lease) in [50, 10, 30, 10, 99].into_iter().enumerate() {
        let request = ClaimRequest { lease: ms(lease), ..claim_request(1) };
        assert_eq!(ids(&stage.claim_by(request).await.jobs), [made[n]]);
    }
    stage.clock.advance(ms(50));
    assert_eq!(stage.reclaim(0).await, []);
    assert_eq!(ids(&stage.reclaim(3).await), [made[1], made[3], made[2]]);
    assert_eq!(ids(&stage.reclaim(3).await), [made[0]]);
}

async fn takes_over_again_when_the_reclaimer_dies_too(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE);
    let first = only(stage.reclaim(1).await);
    assert_eq!(stage.reclaim(1).await, []);
    stage.clock.advance(LEASE);
    let second = only(stage.reclaim(1).await);
    assert_eq!((second.epoch, second.attempt), (3, 1));
    assert_eq!(second.started_at, job.started_at);
    assert_eq!(stage.settle(first.lease(), Verdict::Complete(None)).await, Settled::LeaseLost);
    let settled = stage.settle(second.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, Settled::Applied(State::Succeeded));
}

async fn leaves_alone_what_is_not_running(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Running) {
        stage.in_state(state).await;
    }
    stage.clock.advance(LEASE * 1_000);
    let before = stage.content().await;
    assert_eq!(stage.reclaim(100).await, []);
    assert_eq!(stage.content().await, before);
}

async fn sixteen_reclaimers_take_each_lease_once(stage: Stage) {
    let made: BTreeSet<JobId> = stage.enqueue_some(60).await.into_iter().collect();
    stage.claim(100).await;
    stage.clock.advance(LEASE);
    let batches = at_once(16, |_| {
        let store = stage.store.clone();
        async move { store.reclaim(reclaim_request(7)).await.expect("reclaim").jobs }
    })
    .await;
    let taken: Vec<JobId> = batches.iter().flatten().map(|job| job.id).collect();
    assert_eq!(taken.len(), 60);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), made);
    assert!(batches.iter().flatten().all(|job| (job.epoch, job.attempt) == (2, 1)));
}

async fn keeps_a_cancel_request(stage: Stage) {
    let job = stage.running().await;
    assert_eq!(stage.cancel(job.id).await, Cancelled::Requested);
    stage.clock.advance(LEASE);
    let taken = only(stage.reclaim(1).await);
    assert!(taken.cancel_requested);
    let settled = stage.settle(taken.lease(), Verdict::Retry(ms(1))).await;
    assert_eq!(settled, Settled::Applied(State::Cancelled));
}

async fn says_the_time_and_no_next_due(stage: Stage) {
    stage.enqueue_some(1).await;
    stage.running().await;
    stage.clock.advance(LEASE);
    let claimed = stage.store.reclaim(reclaim_request(5)).await.expect("reclaim");
    assert_eq!((claimed.jobs.len(), claimed.now, claimed.next_due), (1, stage.now(), None));
    assert_eq!(claimed.unreadable, []);
}

async fn a_full_batch_is_taken_and_more_refused(stage: Stage) {
    stage.enqueue_some(BATCH_ITEMS_MAX).await;
    stage.claim(BATCH_ITEMS_MAX).await;
    stage.clock.advance(LEASE);
    let more = stage.store.reclaim(reclaim_request(BATCH_ITEMS_MAX + 1)).await;
    assert_eq!(refused(more).field, "batch");
    assert_eq!(stage.reclaim(BATCH_ITEMS_MAX).await.len(), BATCH_ITEMS_MAX);
}

async fn takes_only_the_kinds_it_was_told(stage: Stage) {
    let work = stage.running().await;
    let mail = stage.enqueue(NewJob { kind: kind("mail"), ..stage.own_job() }).await;
    stage.claim_own(mail).await;
    stage.clock.advance(LEASE);
    let of = |names: &[&str]| ReclaimRequest {
        kinds: names.iter().map(|name| kind(name)).collect(),
        ..reclaim_request(10)
    };
    let taken = |request| async { ids(&stage.store.reclaim(request).await.expect("reclaim").jobs) };
    assert_eq!(taken(of(&["other"])).await, []);
    assert_eq!(taken(of(&["other", "mail"])).await, [mail]);
    assert_eq!(taken(of(&[])).await, [work.id]);
}

/// Takes over at most `limit` leases, but none of `held`.
async fn reclaim_besides(stage: &Stage, held: &[Lease], limit: usize) -> Vec<JobId> {
    let request = ReclaimRequest { held: held.to_vec(), ..reclaim_request(limit) };
    ids(&stage.store.reclaim(request).await.expect("reclaim").jobs)
}

async fn leaves_alone_what_its_caller_holds(stage: Stage) {
    let (mine, other) = (stage.running().await, stage.running().await);
    stage.clock.advance(LEASE * 100);
    let before = stage.job(mine.id).await;
    assert_eq!(reclaim_besides(&stage, &[mine.lease()], 10).await, [other.id]);
    assert_eq!(stage.job(mine.id).await, before);
    let extended = stage.store.extend(vec![mine.lease()], LEASE).await.expect("extend");
    assert_eq!(only(extended), Extended::Renewed, "it has run out, but nobody has taken it over");
    let settled = stage.settle(mine.lease(), Verdict::Complete(None)).await;
    assert_eq!(settled, Settled::Applied(State::Succeeded));
}

async fn a_lease_that_was_lost_protects_nothing(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE);
    let heir = only(stage.reclaim(1).await);
    stage.clock.advance(LEASE);
    let later = Lease { epoch: heir.epoch + 1, ..heir.lease() };
    assert_eq!(reclaim_besides(&stage, &[job.lease(), later], 10).await, [job.id]);
}

async fn what_the_caller_holds_takes_no_room(stage: Stage) {
    stage.enqueue_some(BATCH_ITEMS_MAX).await;
    stage.enqueue_some(3).await;
    let mine: Vec<Lease> = stage.claim(BATCH_ITEMS_MAX).await.iter().map(Job::lease).collect();
    stage.clock.advance(ms(1));
    let others = ids(&stage.claim(3).await);
    stage.clock.advance(LEASE);
    assert_eq!(reclaim_besides(&stage, &mine, 2).await, others[..2]);
    assert_eq!(reclaim_besides(&stage, &mine, 2).await, others[2..]);
    assert_eq!(reclaim_besides(&stage, &mine, 2).await, []);
}

async fn a_lease_that_is_no_longer_held_is_found_however_late(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE);
    assert_eq!(reclaim_besides(&stage, &[job.lease()], 10).await, []);
    stage.clock.advance(LEASE * 100_000);
    assert_eq!(reclaim_besides(&stage, &[job.lease()], 10).await, []);
    stage.clock.advance(LEASE * 100_000);
    assert_eq!(reclaim_besides(&stage, &[], 10).await, [job.id]);
}
