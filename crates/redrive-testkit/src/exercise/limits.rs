//! Limits: how many jobs of a queue or partition key run at once and start per interval, and in which order.

use redrive_core::queue_limits::{Limits, QUEUE_LIMITS, Rate};
use redrive_core::records::Precondition;
use redrive_core::store::{ClaimRequest, Settlement};
use redrive_core::{
    Job, JobId, NewJob, Order, Partition, PartitionKey, Priority, QueueLimits, Reason, State, Verdict,
    WaitCondition,
};

use super::chapter;
use super::fixture::{LEASE, StoreFixture, claim_request, concurrently, ids, ms, only, queue};

chapter!("limits":
    a_queue_runs_no_more_jobs_than_its_limit,
    a_full_queue_does_not_affect_others,
    a_queue_starts_no_more_often_than_its_rate,
    a_key_runs_no_more_jobs_than_its_limit,
    a_key_starts_no_more_often_than_its_rate,
    a_job_without_a_slot_waits_and_is_charged_no_attempt,
    the_end_of_a_job_frees_a_slot_for_the_next,
    a_retry_frees_a_slot_too,
    a_cancel_of_the_first_resumes_the_next,
    a_crashed_job_frees_its_slot_once_it_is_settled,
    strict_order_holds_through_retries,
    strict_order_is_by_id_and_not_by_time_or_priority,
    strict_order_applies_per_queue_and_key,
    a_dead_job_frees_its_slot,
    strict_order_continues_while_new_jobs_arrive,
    a_sweep_notices_a_raised_limit,
    a_batch_of_settlements_frees_every_slot,
    a_batch_of_cancels_frees_every_slot,
    a_follow_up_and_a_waiting_job_share_one_slot,
    sixteen_claimers_respect_the_limit_of_a_key,
    sixteen_claimers_respect_the_limit_of_a_queue,
);

fn key(name: &str, order: Order) -> Option<Partition> {
    Some(Partition { key: PartitionKey::new(name).expect("a legal name"), order })
}

fn slots(concurrency: u32) -> Limits {
    Limits { concurrency: Some(concurrency), rate: None }
}

fn rate(count: u32, per_ms: u64) -> Limits {
    Limits { concurrency: None, rate: Some(Rate { count, per_ms }) }
}

impl StoreFixture {
    /// Sets the limits of the default queue.
    async fn set_limits(&self, whole: Limits, per_key: Limits) {
        let limits = QueueLimits { concurrency: whole.concurrency, rate: whole.rate, per_key };
        let value = serde_json::to_vec(&limits).expect("limits are JSON");
        self.write(QUEUE_LIMITS, "default", Precondition::Any, Some(value)).await;
    }

    async fn enqueue_in(&self, partition: Option<Partition>, count: usize) -> Vec<JobId> {
        let mut enqueued = Vec::new();
        for _ in 0..count {
            enqueued.push(self.enqueue(NewJob { partition: partition.clone(), ..self.new_job() }).await);
        }
        enqueued
    }

    async fn states(&self, ids: &[JobId]) -> Vec<State> {
        let mut states = Vec::new();
        for id in ids {
            states.push(self.job(*id).await.state);
        }
        states
    }

    async fn complete(&self, job: &Job) {
        self.settle(job.lease(), Verdict::Complete(None)).await;
    }
}

async fn a_queue_runs_no_more_jobs_than_its_limit(fixture: StoreFixture) {
    fixture.set_limits(slots(2), Limits::default()).await;
    let enqueued = fixture.enqueue_some(4).await;
    let claimed = fixture.claim_by(claim_request(9)).await;
    assert_eq!((ids(&claimed.jobs), claimed.next_due), (enqueued[..2].to_vec(), None));
    assert_eq!(fixture.claim(9).await, []);
    assert_eq!(fixture.states(&enqueued[2..]).await, [State::Pending; 2]);
    fixture.complete(&claimed.jobs[0]).await;
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[2]]);
}

async fn a_full_queue_does_not_affect_others(fixture: StoreFixture) {
    fixture.set_limits(slots(1), Limits::default()).await;
    let enqueued = fixture.enqueue_some(2).await;
    let other = fixture.enqueue(NewJob { queue: queue("b"), ..fixture.new_job() }).await;
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[0], other]);
    let later = fixture.enqueue(NewJob { queue: queue("b"), ..fixture.new_job() }).await;
    assert_eq!(ids(&fixture.claim(1).await), [later]);
}

async fn a_queue_starts_no_more_often_than_its_rate(fixture: StoreFixture) {
    fixture.set_limits(rate(2, 1_000), Limits::default()).await;
    let enqueued = fixture.enqueue_some(5).await;
    let first = fixture.claim(1).await;
    fixture.complete(&first[0]).await;
    fixture.clock.advance(ms(400));
    let claimed = fixture.claim_by(claim_request(9)).await;
    assert_eq!(ids(&claimed.jobs), [enqueued[1]]);
    assert_eq!(claimed.next_due, Some(fixture.now().after(ms(600))));
    fixture.clock.advance(ms(599));
    assert_eq!(fixture.claim(9).await, []);
    fixture.clock.advance(ms(1));
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[2]]);
    fixture.clock.advance(ms(400));
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[3]]);
}

async fn a_key_runs_no_more_jobs_than_its_limit(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(2)).await;
    let a = fixture.enqueue_in(key("a", Order::Any), 3).await;
    let b = fixture.enqueue_in(key("b", Order::Any), 1).await;
    let free = fixture.enqueue_some(3).await;
    let expected = [&a[..2], &b[..], &free[..]].concat();
    assert_eq!(ids(&fixture.claim(9).await), expected);
}

async fn a_key_starts_no_more_often_than_its_rate(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), rate(1, 1_000)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Any), 2).await;
    let claimed = fixture.claim_by(claim_request(9)).await;
    assert_eq!(ids(&claimed.jobs), [enqueued[0]]);
    let delayed = fixture.job(enqueued[1]).await;
    assert_eq!(
        (delayed.state, delayed.next_run_at, delayed.attempt),
        (State::Pending, fixture.now().after(ms(1_000)), 0)
    );
    assert_eq!(claimed.next_due, Some(delayed.next_run_at));
    fixture.complete(&claimed.jobs[0]).await;
    fixture.clock.advance(ms(999));
    assert_eq!(fixture.claim(9).await, []);
    fixture.clock.advance(ms(1));
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[1]]);
}

async fn a_job_without_a_slot_waits_and_is_charged_no_attempt(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(1)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Any), 2).await;
    let before = fixture.job(enqueued[1]).await;
    let claimed = fixture.claim_by(claim_request(9)).await;
    assert_eq!((claimed.jobs.len(), claimed.next_due), (1, None));
    let waiting = Job { state: State::Waiting, awaits: Some(WaitCondition::FreeSlot), ..before };
    assert_eq!(fixture.job(enqueued[1]).await, waiting);
    assert_eq!(fixture.store.resume(vec![enqueued[1]]).await.expect("resume"), [false]);
}

async fn the_end_of_a_job_frees_a_slot_for_the_next(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(1)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Any), 3).await;
    let urgent = NewJob { priority: Priority::MAX, partition: key("a", Order::Any), ..fixture.new_job() };
    let first = only(fixture.claim(1).await);
    let urgent = fixture.enqueue(urgent).await;
    assert_eq!(fixture.claim(9).await, []);
    let before = fixture.job(urgent).await;
    fixture.clock.advance(ms(5));
    fixture.complete(&first).await;
    let states = [State::Waiting, State::Waiting, State::Pending];
    assert_eq!(fixture.states(&[enqueued[1], enqueued[2], urgent]).await, states);
    let due = Job { state: State::Pending, awaits: None, ..before };
    assert_eq!(fixture.job(urgent).await, due);
    assert_eq!(ids(&fixture.claim(9).await), [urgent]);
}

async fn a_retry_frees_a_slot_too(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(1)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Any), 2).await;
    let first = only(fixture.claim(9).await);
    fixture.settle(first.lease(), Verdict::Retry(ms(100))).await;
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[1]]);
}

async fn a_cancel_of_the_first_resumes_the_next(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_in(key("a", Order::Strict), 3).await;
    let first = only(fixture.claim(9).await);
    fixture.settle(first.lease(), Verdict::Retry(ms(100_000))).await;
    assert_eq!(fixture.claim(9).await, []);
    fixture.cancel(first.id).await;
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[1]]);
}

async fn a_crashed_job_frees_its_slot_once_it_is_settled(fixture: StoreFixture) {
    fixture.set_limits(slots(1), slots(1)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Any), 2).await;
    fixture.claim(9).await;
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.claim(9).await, []);
    let orphan = only(fixture.reclaim(9).await);
    assert_eq!(fixture.claim(9).await, []);
    fixture.settle(orphan.lease(), Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[1]]);
}

async fn strict_order_holds_through_retries(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_in(key("a", Order::Strict), 3).await;
    for id in enqueued {
        let job = only(fixture.claim(9).await);
        assert_eq!(job.id, id);
        fixture.settle(job.lease(), Verdict::Retry(ms(50))).await;
        assert_eq!(fixture.claim(9).await, []);
        fixture.clock.advance(ms(50));
        let job = only(fixture.claim(9).await);
        assert_eq!((job.id, job.attempt), (id, 2));
        fixture.complete(&job).await;
    }
}

async fn strict_order_is_by_id_and_not_by_time_or_priority(fixture: StoreFixture) {
    let start = redrive_core::Start::After(ms(100));
    let partition = key("a", Order::Strict);
    let first = fixture.enqueue(NewJob { start, partition: partition.clone(), ..fixture.new_job() }).await;
    let priority = Priority::MAX;
    let second = fixture.enqueue(NewJob { priority, partition, ..fixture.new_job() }).await;
    assert_eq!(fixture.claim(9).await, []);
    fixture.clock.advance(ms(100));
    let job = only(fixture.claim(9).await);
    assert_eq!(job.id, first);
    fixture.complete(&job).await;
    assert_eq!(ids(&fixture.claim(9).await), [second]);
}

async fn strict_order_applies_per_queue_and_key(fixture: StoreFixture) {
    let first = fixture.enqueue_in(key("a", Order::Strict), 1).await;
    let other_key = fixture.enqueue_in(key("b", Order::Strict), 1).await;
    let partition = key("a", Order::Strict);
    let other_queue = fixture.enqueue(NewJob { queue: queue("b"), partition, ..fixture.new_job() }).await;
    let any = fixture.enqueue_in(key("a", Order::Any), 1).await;
    assert_eq!(ids(&fixture.claim(9).await), [first[0], other_key[0], other_queue, any[0]]);
}

async fn a_dead_job_frees_its_slot(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_in(key("a", Order::Strict), 2).await;
    let first = only(fixture.claim(9).await);
    fixture.settle(first.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    let only_b = ClaimRequest { queues: vec![queue("b")], ..claim_request(9) };
    assert_eq!(fixture.claim_by(only_b).await.jobs, []);
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[1]]);
}

async fn strict_order_continues_while_new_jobs_arrive(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(2)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Strict), 2).await;
    let first = only(fixture.claim(9).await);
    fixture.enqueue_in(key("a", Order::Strict), 2).await;
    fixture.complete(&first).await;
    assert_eq!(ids(&fixture.claim(9).await), [enqueued[1]]);
}

async fn a_sweep_notices_a_raised_limit(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(1)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Any), 4).await;
    fixture.claim(9).await;
    fixture.set_limits(Limits::default(), slots(3)).await;
    let swept = fixture.store.sweep(None, 9).await.expect("sweep");
    assert_eq!(swept.resumed, enqueued[1..3]);
    assert_eq!(ids(&fixture.claim(9).await), enqueued[1..3]);
}

async fn a_batch_of_settlements_frees_every_slot(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(4)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Any), 9).await;
    let first = fixture.claim(9).await;
    assert_eq!(ids(&first), enqueued[..4]);
    let verdicts = [
        Verdict::Complete(None),
        Verdict::Retry(ms(100_000)),
        Verdict::DeadLetter(Reason::NotRetryable),
        Verdict::Snooze(ms(0)),
    ];
    let settlements = first.iter().zip(verdicts).map(|(job, verdict)| Settlement::new(job.lease(), verdict));
    fixture.store.settle(settlements.collect()).await.expect("settled");
    // The job that is due again at once has a slot before the jobs that wait for one.
    let second = fixture.claim(9).await;
    let mut expected = vec![enqueued[3]];
    expected.extend(&enqueued[4..7]);
    assert_eq!(sorted_ids(&second), expected);
    assert_eq!(fixture.claim(9).await, [], "four jobs run");
}

async fn a_batch_of_cancels_frees_every_slot(fixture: StoreFixture) {
    let strict = fixture.enqueue_in(key("a", Order::Strict), 4).await;
    fixture.set_limits(Limits::default(), slots(2)).await;
    let any = fixture.enqueue_in(key("b", Order::Any), 5).await;
    let running = fixture.claim(9).await;
    assert_eq!(sorted_ids(&running), [strict[0], any[0], any[1]]);
    let first = running.iter().find(|job| job.id == strict[0]).expect("it runs");
    fixture.settle(first.lease(), Verdict::Retry(ms(100_000))).await;
    assert_eq!(fixture.claim(9).await, []);
    fixture.store.cancel(vec![strict[0], strict[1], any[2]]).await.expect("cancelled");
    assert_eq!(ids(&fixture.claim(9).await), [strict[2]], "the first that is left, and no slot of b is free");
    for job in running.iter().filter(|job| job.id != strict[0]) {
        fixture.complete(job).await;
    }
    assert_eq!(ids(&fixture.claim(9).await), any[3..]);
}

async fn a_follow_up_and_a_waiting_job_share_one_slot(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(1)).await;
    let enqueued = fixture.enqueue_in(key("a", Order::Any), 2).await;
    let first = only(fixture.claim(9).await);
    let follow_up = NewJob { partition: key("a", Order::Any), ..fixture.new_job() };
    let mut left = vec![enqueued[1], follow_up.id];
    let done = Settlement::new(first.lease(), Verdict::Complete(None));
    let settlement = Settlement { follow_ups: vec![follow_up], ..done };
    fixture.store.settle(vec![settlement]).await.expect("settled");
    while !left.is_empty() {
        let next = only(fixture.claim(9).await);
        assert!(left.contains(&next.id), "{:?}", next.id);
        left.retain(|id| *id != next.id);
        fixture.complete(&next).await;
    }
}

fn sorted_ids(jobs: &[Job]) -> Vec<JobId> {
    let mut ids = ids(jobs);
    ids.sort();
    ids
}

/// Makes one claim in each of sixteen concurrent tasks, and counts the claimed jobs.
async fn claim_by_sixteen(fixture: &StoreFixture) -> usize {
    let claims = concurrently(16, |_| {
        let store = fixture.store.clone();
        async move { store.claim(claim_request(3)).await.expect("claim").jobs.len() }
    });
    claims.await.into_iter().sum()
}

async fn sixteen_claimers_respect_the_limit_of_a_key(fixture: StoreFixture) {
    fixture.set_limits(Limits::default(), slots(3)).await;
    fixture.enqueue_in(key("a", Order::Any), 30).await;
    fixture.enqueue_in(key("b", Order::Strict), 10).await;
    assert_eq!(claim_by_sixteen(&fixture).await + claim_by_sixteen(&fixture).await, 4);
}

async fn sixteen_claimers_respect_the_limit_of_a_queue(fixture: StoreFixture) {
    fixture
        .set_limits(
            Limits { concurrency: Some(5), rate: Some(Rate { count: 7, per_ms: 1_000 }) },
            Limits::default(),
        )
        .await;
    fixture.enqueue_some(40).await;
    assert_eq!(claim_by_sixteen(&fixture).await + claim_by_sixteen(&fixture).await, 5);
    for job in fixture.content().await.into_iter().map(|(job, _)| job) {
        if job.state == State::Running {
            fixture.complete(&job).await;
        }
    }
    assert_eq!(claim_by_sixteen(&fixture).await, 2);
}
