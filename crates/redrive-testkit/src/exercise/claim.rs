//! Claim: the predicate is the scheduler, and the charge is part of the lease.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{ClaimRequest, Settled};
use redrive_core::{Job, JobId, NewJob, Start, State, Timestamp, Verdict};

use super::chapter;
use super::stage::{
    LEASE, Stage, at_once, claim_request, ids, kind, ms, priority, queue, refused, settlement, worker,
};

chapter!("claim":
    takes_lease_attempt_and_epoch_in_one_write,
    takes_only_what_is_due_among_its_neighbours,
    a_second_attempt_is_charged_on_top,
    takes_the_highest_priority_then_the_earliest_due_then_the_smallest_id,
    breaks_ties_by_id_and_not_by_arrival,
    keeps_its_order_across_queues_and_kinds,
    takes_a_low_priority_while_a_high_one_is_not_due,
    never_takes_more_than_the_limit,
    takes_a_full_batch_and_refuses_more,
    sixteen_claimers_take_each_job_once,
    sixteen_workers_finish_each_job_once,
    takes_a_job_at_its_millisecond_and_not_before,
    takes_from_the_named_queues_only,
    takes_the_named_kinds_only,
    takes_what_matches_queue_and_kind,
    takes_no_job_that_is_not_claimable,
    leaves_an_expired_lease_to_reclaim,
    says_when_the_next_job_is_due,
    says_when_more_is_due_already,
    next_due_is_of_matching_jobs_only,
    a_lease_ends_when_it_was_told_to,
    a_job_may_ask_for_a_lease_of_its_own,
);

/// A store may write neighbours together; those in between that are not due, or are held, stay as they are.
async fn takes_only_what_is_due_among_its_neighbours(stage: Stage) {
    let mut jobs = Vec::new();
    for n in 0..9 {
        let start = if n % 3 == 1 { Start::After(ms(5_000)) } else { Start::Now };
        jobs.push(stage.enqueue(NewJob { start, ..stage.new_job() }).await);
    }
    let first = ids(&stage.claim(2).await);
    let rest = ids(&stage.claim(9).await);
    assert_eq!((first.len(), rest.len()), (2, 4));
    for (n, id) in jobs.into_iter().enumerate() {
        let job = stage.job(id).await;
        let due = n % 3 != 1;
        assert_eq!(
            (job.state == State::Running, job.attempt, job.epoch),
            (due, due.into(), due.into()),
            "{n}"
        );
        assert_eq!(first.contains(&id) || rest.contains(&id), due, "{n}");
    }
}

async fn takes_lease_attempt_and_epoch_in_one_write(stage: Stage) {
    let id = stage.enqueue(stage.new_job()).await;
    let before = stage.job(id).await;
    stage.clock.advance(ms(250));
    let claimed = stage.claim_by(claim_request(1)).await;
    let expected = Job {
        state: State::Running,
        attempt: 1,
        epoch: 1,
        started_at: Some(stage.now()),
        lease_until: Some(stage.now().after(LEASE)),
        worker: Some(worker("claimer")),
        ..before
    };
    assert_eq!(claimed.jobs, std::slice::from_ref(&expected));
    assert_eq!(claimed.unreadable, []);
    assert_eq!(claimed.now, stage.now());
    assert_eq!(stage.job(id).await, expected);
}

async fn a_second_attempt_is_charged_on_top(stage: Stage) {
    let first = stage.running().await;
    stage.settle(first.lease(), Verdict::Retry(ms(700))).await;
    let retrying = stage.job(first.id).await;
    stage.clock.advance(ms(700));
    let request = ClaimRequest { worker: worker("another"), lease: ms(5), ..claim_request(1) };
    let expected = Job {
        state: State::Running,
        attempt: 2,
        epoch: 2,
        started_at: Some(stage.now()),
        lease_until: Some(stage.now().after(ms(5))),
        worker: Some(worker("another")),
        ..retrying
    };
    assert_eq!(stage.claim_by(request).await.jobs, [expected]);
}

async fn takes_the_highest_priority_then_the_earliest_due_then_the_smallest_id(stage: Stage) {
    // (priority, due before now in ms), in the order of their ids
    let jobs = [(5, 10), (9, 1), (0, 99), (5, 20), (9, 5), (5, 10), (9, 5)];
    let made = enqueue_due(&stage, &jobs).await;
    let order = [4, 6, 1, 3, 0, 5, 2].map(|n| made[n]);
    assert_eq!(ids(&stage.claim(2).await), order[..2]);
    assert_eq!(ids(&stage.claim(3).await), order[2..5]);
    assert_eq!(ids(&stage.claim(9).await), order[5..]);
}

async fn breaks_ties_by_id_and_not_by_arrival(stage: Stage) {
    let mut jobs: Vec<NewJob> = (0..6).map(|_| stage.new_job()).collect();
    let expected: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    jobs.reverse();
    for batch in [jobs.split_off(3), jobs] {
        stage.store.enqueue(batch).await.expect("enqueue");
    }
    assert_eq!(ids(&stage.claim(4).await), expected[..4]);
    assert_eq!(ids(&stage.claim(4).await), expected[4..]);
}

async fn keeps_its_order_across_queues_and_kinds(stage: Stage) {
    let mut made = Vec::new();
    for (n, (of, what, due)) in
        [("b", "y", 1), ("a", "x", 3), ("c", "x", 2), ("a", "y", 4)].into_iter().enumerate()
    {
        let job = NewJob {
            queue: queue(of),
            kind: kind(what),
            priority: priority(if n == 0 { 6 } else { 5 }),
            start: Start::At(stage.now().before(ms(due))),
            ..stage.new_job()
        };
        made.push(stage.enqueue(job).await);
    }
    let request = ClaimRequest {
        queues: ["c", "a", "b"].map(queue).to_vec(),
        kinds: ["y", "x"].map(kind).to_vec(),
        ..claim_request(10)
    };
    assert_eq!(ids(&stage.claim_by(request).await.jobs), [0, 3, 1, 2].map(|n| made[n]));
}

async fn takes_a_low_priority_while_a_high_one_is_not_due(stage: Stage) {
    let low = enqueue_at(&stage, 0, stage.now()).await;
    let high = enqueue_at(&stage, 9, stage.now().after(ms(1))).await;
    assert_eq!(ids(&stage.claim(10).await), [low]);
    stage.clock.advance(ms(1));
    assert_eq!(ids(&stage.claim(10).await), [high]);
}

async fn never_takes_more_than_the_limit(stage: Stage) {
    let made = stage.enqueue_some(7).await;
    let none = stage.claim_by(claim_request(0)).await;
    assert_eq!((none.jobs, none.next_due), (Vec::new(), Some(stage.now())));
    assert_eq!(ids(&stage.claim(5).await), made[..5]);
    assert_eq!(ids(&stage.claim(5).await), made[5..]);
    assert_eq!(stage.claim(5).await, []);
}

async fn takes_a_full_batch_and_refuses_more(stage: Stage) {
    stage.enqueue_some(BATCH_ITEMS_MAX).await;
    assert_eq!(refused(stage.store.claim(claim_request(BATCH_ITEMS_MAX + 1)).await).field, "batch");
    assert_eq!(stage.claim(BATCH_ITEMS_MAX).await.len(), BATCH_ITEMS_MAX);
}

async fn sixteen_claimers_take_each_job_once(stage: Stage) {
    let made: BTreeSet<JobId> = stage.enqueue_some(100).await.into_iter().collect();
    let batches = at_once(16, |_| {
        let store = stage.store.clone();
        async move { store.claim(claim_request(9)).await.expect("claim").jobs }
    })
    .await;
    assert!(batches.iter().all(|jobs| jobs.len() <= 9));
    let taken: Vec<JobId> = batches.iter().flatten().map(|job| job.id).collect();
    assert_eq!(taken.len(), 100);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), made);
    assert!(batches.iter().flatten().all(|job| (job.epoch, job.attempt) == (1, 1)));
}

async fn sixteen_workers_finish_each_job_once(stage: Stage) {
    stage.enqueue_some(100).await;
    let applied = at_once(16, |_| {
        let store = stage.store.clone();
        async move {
            let mut applied = 0;
            loop {
                let jobs = store.claim(claim_request(3)).await.expect("claim").jobs;
                if jobs.is_empty() {
                    return applied;
                }
                let settlements = jobs.iter().map(|job| settlement(job.lease(), Verdict::Complete(None)));
                let settled = store.settle(settlements.collect()).await.expect("settle");
                assert!(settled.iter().all(|s| *s == Settled::Applied(State::Succeeded)));
                applied += settled.len();
            }
        }
    })
    .await;
    assert_eq!(applied.iter().sum::<usize>(), 100);
    for (job, _) in stage.content().await {
        assert_eq!((job.state, job.attempt, job.epoch), (State::Succeeded, 1, 1));
    }
}

async fn takes_a_job_at_its_millisecond_and_not_before(stage: Stage) {
    let start = Start::After(ms(1_000));
    let id = stage.enqueue(NewJob { start, ..stage.new_job() }).await;
    assert_eq!(stage.claim(1).await, []);
    stage.clock.advance(ms(999));
    assert_eq!(stage.claim(1).await, []);
    stage.clock.advance(ms(1));
    assert_eq!(ids(&stage.claim(1).await), [id]);
}

async fn takes_from_the_named_queues_only(stage: Stage) {
    let mut made = Vec::new();
    for name in ["a", "b", "c"] {
        let job = NewJob { queue: queue(name), ..stage.new_job() };
        made.push(stage.enqueue(job).await);
    }
    let from = |names: &[&str]| ClaimRequest {
        queues: names.iter().map(|name| queue(name)).collect(),
        ..claim_request(10)
    };
    assert_eq!(stage.claim_by(from(&["d", "A"])).await.jobs, []);
    assert_eq!(ids(&stage.claim_by(from(&["c", "a", "c"])).await.jobs), [made[0], made[2]]);
    assert_eq!(ids(&stage.claim(10).await), [made[1]]);
}

async fn takes_the_named_kinds_only(stage: Stage) {
    let mut made = Vec::new();
    for name in ["a", "b", "c"] {
        let job = NewJob { kind: kind(name), ..stage.new_job() };
        made.push(stage.enqueue(job).await);
    }
    let of = |names: &[&str]| ClaimRequest {
        kinds: names.iter().map(|name| kind(name)).collect(),
        ..claim_request(10)
    };
    assert_eq!(stage.claim_by(of(&["d", "A"])).await.jobs, []);
    assert_eq!(ids(&stage.claim_by(of(&["c", "a", "c"])).await.jobs), [made[0], made[2]]);
    assert_eq!(ids(&stage.claim(10).await), [made[1]]);
}

async fn takes_what_matches_queue_and_kind(stage: Stage) {
    let mut made = Vec::new();
    for (of, what) in [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")] {
        let job = NewJob { queue: queue(of), kind: kind(what), ..stage.new_job() };
        made.push(stage.enqueue(job).await);
    }
    let request = ClaimRequest { queues: vec![queue("b")], kinds: vec![kind("x")], ..claim_request(10) };
    assert_eq!(ids(&stage.claim_by(request).await.jobs), [made[2]]);
}

async fn takes_no_job_that_is_not_claimable(stage: Stage) {
    let mut claimable = Vec::new();
    for state in State::ALL {
        let job = stage.in_state(state).await;
        if state.is_claimable() {
            claimable.push(job.id);
        }
    }
    stage.clock.advance(LEASE * 100);
    assert_eq!(ids(&stage.claim(100).await), claimable);
}

async fn leaves_an_expired_lease_to_reclaim(stage: Stage) {
    let job = stage.running().await;
    stage.clock.advance(LEASE * 2);
    let claimed = stage.claim_by(claim_request(1)).await;
    assert_eq!((claimed.jobs, claimed.next_due), (Vec::new(), None));
    assert_eq!(stage.job(job.id).await, job);
}

async fn says_when_the_next_job_is_due(stage: Stage) {
    assert_eq!(stage.claim_by(claim_request(1)).await.next_due, None);
    let soon = stage.now().after(ms(40));
    enqueue_at(&stage, 9, stage.now().after(ms(70))).await;
    enqueue_at(&stage, 0, soon).await;
    let first = enqueue_at(&stage, 5, stage.now()).await;
    let claimed = stage.claim_by(claim_request(1)).await;
    assert_eq!((ids(&claimed.jobs), claimed.next_due), (vec![first], Some(soon)));
    assert_eq!(stage.claim_by(claim_request(1)).await.next_due, Some(soon));
    stage.settle(claimed.jobs[0].lease(), Verdict::Retry(ms(30))).await;
    let retry = stage.now().after(ms(30));
    assert_eq!(stage.claim_by(claim_request(1)).await.next_due, Some(retry));
}

async fn says_when_more_is_due_already(stage: Stage) {
    let due = stage.now().before(ms(20));
    enqueue_at(&stage, 9, stage.now()).await;
    enqueue_at(&stage, 1, due).await;
    assert_eq!(stage.claim_by(claim_request(1)).await.next_due, Some(due));
    assert_eq!(stage.claim_by(claim_request(1)).await.next_due, None);
}

async fn next_due_is_of_matching_jobs_only(stage: Stage) {
    let far = stage.now().after(ms(90));
    for (of, what, after) in [("a", "x", 90), ("b", "x", 10), ("a", "y", 20)] {
        let job =
            NewJob { queue: queue(of), kind: kind(what), start: Start::After(ms(after)), ..stage.new_job() };
        stage.enqueue(job).await;
    }
    let request = ClaimRequest { queues: vec![queue("a")], kinds: vec![kind("x")], ..claim_request(10) };
    assert_eq!(stage.claim_by(request.clone()).await.next_due, Some(far));
    stage.pause(Some(&queue("a"))).await;
    assert_eq!(stage.claim_by(request).await.next_due, None);
    let soonest = stage.now().after(ms(10));
    assert_eq!(stage.claim_by(claim_request(1)).await.next_due, Some(soonest));
    stage.pause(None).await;
    assert_eq!(stage.claim_by(claim_request(1)).await.next_due, None);
}

async fn a_lease_ends_when_it_was_told_to(stage: Stage) {
    for lease in [Duration::ZERO, ms(1), LEASE * 1_000] {
        let id = stage.enqueue(stage.new_job()).await;
        let request = ClaimRequest { lease, ..claim_request(1) };
        let claimed = stage.claim_by(request).await.jobs;
        assert_eq!(ids(&claimed), [id]);
        assert_eq!(claimed[0].lease_until, Some(stage.now().after(lease)));
    }
}

async fn enqueue_at(stage: &Stage, urgency: u8, at: Timestamp) -> JobId {
    let job = NewJob { priority: priority(urgency), start: Start::At(at), ..stage.new_job() };
    stage.enqueue(job).await
}

async fn enqueue_due(stage: &Stage, jobs: &[(u8, u64)]) -> Vec<JobId> {
    let mut made = Vec::new();
    for (urgency, ago) in jobs {
        made.push(enqueue_at(stage, *urgency, stage.now().before(ms(*ago))).await);
    }
    made
}

async fn a_job_may_ask_for_a_lease_of_its_own(stage: Stage) {
    let own = Duration::from_secs(7);
    let plain = stage.enqueue(stage.new_job()).await;
    let special = stage.enqueue(NewJob { lease: Some(own), ..stage.new_job() }).await;
    let claimed = stage.claim(2).await;
    assert_eq!(ids(&claimed), [plain, special]);
    assert_eq!(claimed[0].lease_until, Some(stage.now().after(LEASE)));
    assert_eq!(claimed[1].lease_until, Some(stage.now().after(own)));
    assert_eq!(claimed[1], stage.job(special).await);
    stage.clock.advance(own);
    assert_eq!(ids(&stage.reclaim(10).await), [special]);
}
