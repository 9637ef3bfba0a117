//! Claim: selects due jobs in order, and charges the attempt with the lease.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{ClaimRequest, SettleResult};
use redrive_core::{Job, JobId, NewJob, Start, State, Timestamp, Verdict};

use super::chapter;
use super::fixture::{
    LEASE, StoreFixture, claim_request, concurrently, ids, kind, ms, next_epoch, only, priority, queue,
    rejected, settlement, worker,
};

chapter!("claim":
    grants_lease_attempt_and_epoch_in_one_write,
    takes_only_due_jobs_among_neighbouring_rows,
    a_second_claim_charges_a_second_attempt,
    takes_the_highest_priority_then_the_earliest_due_then_the_smallest_id,
    breaks_ties_by_id_and_not_by_arrival,
    keeps_its_order_across_queues_and_kinds,
    takes_a_low_priority_while_a_high_one_is_not_due,
    never_takes_more_than_the_limit,
    takes_a_full_batch_and_rejects_a_larger_one,
    sixteen_claimers_take_each_job_once,
    sixteen_workers_finish_each_job_once,
    takes_a_job_at_its_millisecond_and_not_before,
    takes_from_the_named_queues_only,
    takes_the_named_kinds_only,
    takes_jobs_that_match_queue_and_kind,
    takes_no_job_that_is_not_claimable,
    leaves_an_expired_lease_to_reclaim,
    returns_the_due_time_of_the_next_job,
    returns_a_due_time_in_the_past_if_more_jobs_are_due,
    next_due_considers_matching_jobs_only,
    a_lease_ends_after_the_requested_duration,
    a_job_may_have_its_own_lease_duration,
);

/// A store may lease neighbouring rows in one write. Rows between them that are not due must not change.
async fn takes_only_due_jobs_among_neighbouring_rows(fixture: StoreFixture) {
    let mut jobs = Vec::new();
    for n in 0..9 {
        let start = if n % 3 == 1 { Start::After(ms(5_000)) } else { Start::Now };
        jobs.push(fixture.enqueue(NewJob { start, ..fixture.new_job() }).await);
    }
    let first = ids(&fixture.claim(2).await);
    let rest = ids(&fixture.claim(9).await);
    assert_eq!((first.len(), rest.len()), (2, 4));
    for (n, id) in jobs.into_iter().enumerate() {
        let job = fixture.job(id).await;
        let due = n % 3 != 1;
        assert_eq!(
            (job.state == State::Running, job.attempt, job.lease_count()),
            (due, due.into(), due.into()),
            "{n}"
        );
        assert_eq!(first.contains(&id) || rest.contains(&id), due, "{n}");
    }
}

async fn grants_lease_attempt_and_epoch_in_one_write(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.new_job()).await;
    let before = fixture.job(id).await;
    fixture.clock.advance(ms(250));
    let claimed = fixture.claim_by(claim_request(1)).await;
    assert_eq!(before.epoch, 0);
    let expected = Job {
        state: State::Running,
        attempt: 1,
        epoch: next_epoch(&before, &claimed.jobs[0]),
        started_at: Some(fixture.now()),
        lease_until: Some(fixture.now().after(LEASE)),
        worker: Some(worker("claimer")),
        ..before
    };
    assert_eq!(claimed.jobs, std::slice::from_ref(&expected));
    assert_eq!(claimed.unreadable, []);
    assert_eq!(claimed.now, fixture.now());
    assert_eq!(fixture.job(id).await, expected);
}

async fn a_second_claim_charges_a_second_attempt(fixture: StoreFixture) {
    let first = fixture.running().await;
    fixture.settle(first.lease(), Verdict::Retry(ms(700))).await;
    let retrying = fixture.job(first.id).await;
    fixture.clock.advance(ms(700));
    let request = ClaimRequest { worker: worker("another"), lease: ms(5), ..claim_request(1) };
    let claimed = only(fixture.claim_by(request).await.jobs);
    let expected = Job {
        state: State::Running,
        attempt: 2,
        epoch: next_epoch(&first, &claimed),
        started_at: Some(fixture.now()),
        lease_until: Some(fixture.now().after(ms(5))),
        worker: Some(worker("another")),
        ..retrying
    };
    assert_eq!(claimed, expected);
}

async fn takes_the_highest_priority_then_the_earliest_due_then_the_smallest_id(fixture: StoreFixture) {
    // (priority, ms since the due time), in the order of their ids
    let jobs = [(5, 10), (9, 1), (0, 99), (5, 20), (9, 5), (5, 10), (9, 5)];
    let enqueued = enqueue_due(&fixture, &jobs).await;
    let order = [4, 6, 1, 3, 0, 5, 2].map(|n| enqueued[n]);
    assert_eq!(ids(&fixture.claim(2).await), order[..2]);
    assert_eq!(ids(&fixture.claim(3).await), order[2..5]);
    assert_eq!(ids(&fixture.claim(9).await), order[5..]);
}

async fn breaks_ties_by_id_and_not_by_arrival(fixture: StoreFixture) {
    let mut jobs: Vec<NewJob> = (0..6).map(|_| fixture.new_job()).collect();
    let expected: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    jobs.reverse();
    for batch in [jobs.split_off(3), jobs] {
        fixture.store.enqueue(batch).await.expect("enqueue");
    }
    assert_eq!(ids(&fixture.claim(4).await), expected[..4]);
    assert_eq!(ids(&fixture.claim(4).await), expected[4..]);
}

async fn keeps_its_order_across_queues_and_kinds(fixture: StoreFixture) {
    let mut enqueued = Vec::new();
    for (n, (of, what, due)) in
        [("b", "y", 1), ("a", "x", 3), ("c", "x", 2), ("a", "y", 4)].into_iter().enumerate()
    {
        let job = NewJob {
            queue: queue(of),
            kind: kind(what),
            priority: priority(if n == 0 { 6 } else { 5 }),
            start: Start::At(fixture.now().before(ms(due))),
            ..fixture.new_job()
        };
        enqueued.push(fixture.enqueue(job).await);
    }
    let request = ClaimRequest {
        queues: ["c", "a", "b"].map(queue).to_vec(),
        kinds: ["y", "x"].map(kind).to_vec(),
        ..claim_request(10)
    };
    assert_eq!(ids(&fixture.claim_by(request).await.jobs), [0, 3, 1, 2].map(|n| enqueued[n]));
}

async fn takes_a_low_priority_while_a_high_one_is_not_due(fixture: StoreFixture) {
    let low = enqueue_at(&fixture, 0, fixture.now()).await;
    let high = enqueue_at(&fixture, 9, fixture.now().after(ms(1))).await;
    assert_eq!(ids(&fixture.claim(10).await), [low]);
    fixture.clock.advance(ms(1));
    assert_eq!(ids(&fixture.claim(10).await), [high]);
}

async fn never_takes_more_than_the_limit(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(7).await;
    let none = fixture.claim_by(claim_request(0)).await;
    assert_eq!((none.jobs, none.next_due), (Vec::new(), Some(fixture.now())));
    assert_eq!(ids(&fixture.claim(5).await), enqueued[..5]);
    assert_eq!(ids(&fixture.claim(5).await), enqueued[5..]);
    assert_eq!(fixture.claim(5).await, []);
}

async fn takes_a_full_batch_and_rejects_a_larger_one(fixture: StoreFixture) {
    fixture.enqueue_some(BATCH_ITEMS_MAX).await;
    assert_eq!(rejected(fixture.store.claim(claim_request(BATCH_ITEMS_MAX + 1)).await).field, "batch");
    assert_eq!(fixture.claim(BATCH_ITEMS_MAX).await.len(), BATCH_ITEMS_MAX);
}

async fn sixteen_claimers_take_each_job_once(fixture: StoreFixture) {
    let enqueued: BTreeSet<JobId> = fixture.enqueue_some(100).await.into_iter().collect();
    let batches = concurrently(16, |_| {
        let store = fixture.store.clone();
        async move { store.claim(claim_request(9)).await.expect("claim").jobs }
    })
    .await;
    assert!(batches.iter().all(|jobs| jobs.len() <= 9));
    let taken: Vec<JobId> = batches.iter().flatten().map(|job| job.id).collect();
    assert_eq!(taken.len(), 100);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), enqueued);
    assert!(batches.iter().flatten().all(|job| (job.lease_count(), job.attempt) == (1, 1)));
}

async fn sixteen_workers_finish_each_job_once(fixture: StoreFixture) {
    fixture.enqueue_some(100).await;
    let applied = concurrently(16, |_| {
        let store = fixture.store.clone();
        async move {
            let mut applied = 0;
            loop {
                let jobs = store.claim(claim_request(3)).await.expect("claim").jobs;
                if jobs.is_empty() {
                    return applied;
                }
                let settlements = jobs.iter().map(|job| settlement(job.lease(), Verdict::Complete(None)));
                let settled = store.settle(settlements.collect()).await.expect("settle");
                assert!(settled.iter().all(|s| *s == SettleResult::Applied(State::Succeeded)));
                applied += settled.len();
            }
        }
    })
    .await;
    assert_eq!(applied.iter().sum::<usize>(), 100);
    for (job, _) in fixture.content().await {
        assert_eq!((job.state, job.attempt, job.lease_count()), (State::Succeeded, 1, 1));
    }
}

async fn takes_a_job_at_its_millisecond_and_not_before(fixture: StoreFixture) {
    let start = Start::After(ms(1_000));
    let id = fixture.enqueue(NewJob { start, ..fixture.new_job() }).await;
    assert_eq!(fixture.claim(1).await, []);
    fixture.clock.advance(ms(999));
    assert_eq!(fixture.claim(1).await, []);
    fixture.clock.advance(ms(1));
    assert_eq!(ids(&fixture.claim(1).await), [id]);
}

async fn takes_from_the_named_queues_only(fixture: StoreFixture) {
    let mut enqueued = Vec::new();
    for name in ["a", "b", "c"] {
        let job = NewJob { queue: queue(name), ..fixture.new_job() };
        enqueued.push(fixture.enqueue(job).await);
    }
    let from = |names: &[&str]| ClaimRequest {
        queues: names.iter().map(|name| queue(name)).collect(),
        ..claim_request(10)
    };
    assert_eq!(fixture.claim_by(from(&["d", "A"])).await.jobs, []);
    assert_eq!(ids(&fixture.claim_by(from(&["c", "a", "c"])).await.jobs), [enqueued[0], enqueued[2]]);
    assert_eq!(ids(&fixture.claim(10).await), [enqueued[1]]);
}

async fn takes_the_named_kinds_only(fixture: StoreFixture) {
    let mut enqueued = Vec::new();
    for name in ["a", "b", "c"] {
        let job = NewJob { kind: kind(name), ..fixture.new_job() };
        enqueued.push(fixture.enqueue(job).await);
    }
    let of = |names: &[&str]| ClaimRequest {
        kinds: names.iter().map(|name| kind(name)).collect(),
        ..claim_request(10)
    };
    assert_eq!(fixture.claim_by(of(&["d", "A"])).await.jobs, []);
    assert_eq!(ids(&fixture.claim_by(of(&["c", "a", "c"])).await.jobs), [enqueued[0], enqueued[2]]);
    assert_eq!(ids(&fixture.claim(10).await), [enqueued[1]]);
}

async fn takes_jobs_that_match_queue_and_kind(fixture: StoreFixture) {
    let mut enqueued = Vec::new();
    for (of, what) in [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")] {
        let job = NewJob { queue: queue(of), kind: kind(what), ..fixture.new_job() };
        enqueued.push(fixture.enqueue(job).await);
    }
    let request = ClaimRequest { queues: vec![queue("b")], kinds: vec![kind("x")], ..claim_request(10) };
    assert_eq!(ids(&fixture.claim_by(request).await.jobs), [enqueued[2]]);
}

async fn takes_no_job_that_is_not_claimable(fixture: StoreFixture) {
    let mut claimable = Vec::new();
    for state in State::ALL {
        let job = fixture.in_state(state).await;
        if state.is_claimable() {
            claimable.push(job.id);
        }
    }
    fixture.clock.advance(LEASE * 100);
    assert_eq!(ids(&fixture.claim(100).await), claimable);
}

async fn leaves_an_expired_lease_to_reclaim(fixture: StoreFixture) {
    let job = fixture.running().await;
    fixture.clock.advance(LEASE * 2);
    let claimed = fixture.claim_by(claim_request(1)).await;
    assert_eq!((claimed.jobs, claimed.next_due), (Vec::new(), None));
    assert_eq!(fixture.job(job.id).await, job);
}

async fn returns_the_due_time_of_the_next_job(fixture: StoreFixture) {
    assert_eq!(fixture.claim_by(claim_request(1)).await.next_due, None);
    let soon = fixture.now().after(ms(40));
    enqueue_at(&fixture, 9, fixture.now().after(ms(70))).await;
    enqueue_at(&fixture, 0, soon).await;
    let first = enqueue_at(&fixture, 5, fixture.now()).await;
    let claimed = fixture.claim_by(claim_request(1)).await;
    assert_eq!((ids(&claimed.jobs), claimed.next_due), (vec![first], Some(soon)));
    assert_eq!(fixture.claim_by(claim_request(1)).await.next_due, Some(soon));
    fixture.settle(claimed.jobs[0].lease(), Verdict::Retry(ms(30))).await;
    let retry = fixture.now().after(ms(30));
    assert_eq!(fixture.claim_by(claim_request(1)).await.next_due, Some(retry));
}

async fn returns_a_due_time_in_the_past_if_more_jobs_are_due(fixture: StoreFixture) {
    let due = fixture.now().before(ms(20));
    enqueue_at(&fixture, 9, fixture.now()).await;
    enqueue_at(&fixture, 1, due).await;
    assert_eq!(fixture.claim_by(claim_request(1)).await.next_due, Some(due));
    assert_eq!(fixture.claim_by(claim_request(1)).await.next_due, None);
}

async fn next_due_considers_matching_jobs_only(fixture: StoreFixture) {
    let far = fixture.now().after(ms(90));
    for (of, what, after) in [("a", "x", 90), ("b", "x", 10), ("a", "y", 20)] {
        let job = NewJob {
            queue: queue(of),
            kind: kind(what),
            start: Start::After(ms(after)),
            ..fixture.new_job()
        };
        fixture.enqueue(job).await;
    }
    let request = ClaimRequest { queues: vec![queue("a")], kinds: vec![kind("x")], ..claim_request(10) };
    assert_eq!(fixture.claim_by(request.clone()).await.next_due, Some(far));
    fixture.pause(Some(&queue("a"))).await;
    assert_eq!(fixture.claim_by(request).await.next_due, None);
    let soonest = fixture.now().after(ms(10));
    assert_eq!(fixture.claim_by(claim_request(1)).await.next_due, Some(soonest));
    fixture.pause(None).await;
    assert_eq!(fixture.claim_by(claim_request(1)).await.next_due, None);
}

async fn a_lease_ends_after_the_requested_duration(fixture: StoreFixture) {
    for lease in [Duration::ZERO, ms(1), LEASE * 1_000] {
        let id = fixture.enqueue(fixture.new_job()).await;
        let request = ClaimRequest { lease, ..claim_request(1) };
        let claimed = fixture.claim_by(request).await.jobs;
        assert_eq!(ids(&claimed), [id]);
        assert_eq!(claimed[0].lease_until, Some(fixture.now().after(lease)));
    }
}

async fn enqueue_at(fixture: &StoreFixture, level: u8, at: Timestamp) -> JobId {
    let job = NewJob { priority: priority(level), start: Start::At(at), ..fixture.new_job() };
    fixture.enqueue(job).await
}

async fn enqueue_due(fixture: &StoreFixture, jobs: &[(u8, u64)]) -> Vec<JobId> {
    let mut enqueued = Vec::new();
    for (level, ago) in jobs {
        enqueued.push(enqueue_at(fixture, *level, fixture.now().before(ms(*ago))).await);
    }
    enqueued
}

async fn a_job_may_have_its_own_lease_duration(fixture: StoreFixture) {
    let own = Duration::from_secs(7);
    let plain = fixture.enqueue(fixture.new_job()).await;
    let special = fixture.enqueue(NewJob { lease: Some(own), ..fixture.new_job() }).await;
    let claimed = fixture.claim(2).await;
    assert_eq!(ids(&claimed), [plain, special]);
    assert_eq!(claimed[0].lease_until, Some(fixture.now().after(LEASE)));
    assert_eq!(claimed[1].lease_until, Some(fixture.now().after(own)));
    assert_eq!(claimed[1], fixture.job(special).await);
    fixture.clock.advance(own);
    assert_eq!(ids(&fixture.reclaim(10).await), [special]);
}
