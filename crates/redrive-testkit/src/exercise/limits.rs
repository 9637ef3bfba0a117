//! Limits: how much of a queue or of a key runs at once, how often, and in which order.

use redrive_core::quota::{Bounds, QUOTA, Rate};
use redrive_core::records::Expect;
use redrive_core::store::ClaimRequest;
use redrive_core::{
    Await, Job, JobId, NewJob, Order, Partition, PartitionKey, Priority, Quota, Reason, State, Verdict,
};

use super::chapter;
use super::stage::{LEASE, Stage, at_once, claim_request, ids, ms, only, queue};

chapter!("limits":
    a_queue_runs_no_more_than_its_quota,
    a_queue_that_is_full_leaves_others_alone,
    a_queue_starts_no_more_often_than_its_rate,
    a_key_runs_no_more_than_its_quota,
    a_key_starts_no_more_often_than_its_rate,
    what_has_no_room_is_set_aside_without_an_attempt,
    an_end_makes_room_for_the_next_in_order,
    a_retry_makes_room_too,
    a_cancel_of_the_first_lets_the_next_go_on,
    a_crash_makes_room_once_it_is_settled,
    strict_order_holds_through_retries,
    strict_order_goes_by_id_and_not_by_time_or_priority,
    strict_order_is_of_its_queue_and_key,
    a_dead_job_ends_its_turn,
    strict_order_goes_on_beside_new_jobs,
    a_raised_quota_is_noticed_by_a_sweep,
    sixteen_claimers_keep_to_a_key,
    sixteen_claimers_keep_to_a_queue,
);

fn key(name: &str, order: Order) -> Option<Partition> {
    Some(Partition { key: PartitionKey::new(name).expect("a legal name"), order })
}

fn slots(concurrency: u32) -> Bounds {
    Bounds { concurrency: Some(concurrency), rate: None }
}

fn rate(count: u32, per_ms: u64) -> Bounds {
    Bounds { concurrency: None, rate: Some(Rate { count, per_ms }) }
}

impl Stage {
    /// Bounds the default queue.
    async fn bound(&self, whole: Bounds, per_key: Bounds) {
        let quota = Quota { concurrency: whole.concurrency, rate: whole.rate, per_key };
        let value = serde_json::to_vec(&quota).expect("a quota is JSON");
        self.write(QUOTA, "default", Expect::Any, Some(value)).await;
    }

    async fn enqueue_in(&self, partition: Option<Partition>, count: usize) -> Vec<JobId> {
        let mut made = Vec::new();
        for _ in 0..count {
            made.push(self.enqueue(NewJob { partition: partition.clone(), ..self.new_job() }).await);
        }
        made
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

async fn a_queue_runs_no_more_than_its_quota(stage: Stage) {
    stage.bound(slots(2), Bounds::default()).await;
    let made = stage.enqueue_some(4).await;
    let claimed = stage.claim_by(claim_request(9)).await;
    assert_eq!((ids(&claimed.jobs), claimed.next_due), (made[..2].to_vec(), None));
    assert_eq!(stage.claim(9).await, []);
    assert_eq!(stage.states(&made[2..]).await, [State::Pending; 2]);
    stage.complete(&claimed.jobs[0]).await;
    assert_eq!(ids(&stage.claim(9).await), [made[2]]);
}

async fn a_queue_that_is_full_leaves_others_alone(stage: Stage) {
    stage.bound(slots(1), Bounds::default()).await;
    let made = stage.enqueue_some(2).await;
    let other = stage.enqueue(NewJob { queue: queue("b"), ..stage.new_job() }).await;
    assert_eq!(ids(&stage.claim(9).await), [made[0], other]);
    let later = stage.enqueue(NewJob { queue: queue("b"), ..stage.new_job() }).await;
    assert_eq!(ids(&stage.claim(1).await), [later]);
}

async fn a_queue_starts_no_more_often_than_its_rate(stage: Stage) {
    stage.bound(rate(2, 1_000), Bounds::default()).await;
    let made = stage.enqueue_some(5).await;
    let first = stage.claim(1).await;
    stage.complete(&first[0]).await;
    stage.clock.advance(ms(400));
    let claimed = stage.claim_by(claim_request(9)).await;
    assert_eq!(ids(&claimed.jobs), [made[1]]);
    assert_eq!(claimed.next_due, Some(stage.now().after(ms(600))));
    stage.clock.advance(ms(599));
    assert_eq!(stage.claim(9).await, []);
    stage.clock.advance(ms(1));
    assert_eq!(ids(&stage.claim(9).await), [made[2]]);
    stage.clock.advance(ms(400));
    assert_eq!(ids(&stage.claim(9).await), [made[3]]);
}

async fn a_key_runs_no_more_than_its_quota(stage: Stage) {
    stage.bound(Bounds::default(), slots(2)).await;
    let a = stage.enqueue_in(key("a", Order::Any), 3).await;
    let b = stage.enqueue_in(key("b", Order::Any), 1).await;
    let free = stage.enqueue_some(3).await;
    let expected = [&a[..2], &b[..], &free[..]].concat();
    assert_eq!(ids(&stage.claim(9).await), expected);
}

async fn a_key_starts_no_more_often_than_its_rate(stage: Stage) {
    stage.bound(Bounds::default(), rate(1, 1_000)).await;
    let made = stage.enqueue_in(key("a", Order::Any), 2).await;
    let claimed = stage.claim_by(claim_request(9)).await;
    assert_eq!(ids(&claimed.jobs), [made[0]]);
    let off = stage.job(made[1]).await;
    assert_eq!((off.state, off.next_run_at, off.attempt), (State::Pending, stage.now().after(ms(1_000)), 0));
    assert_eq!(claimed.next_due, Some(off.next_run_at));
    stage.complete(&claimed.jobs[0]).await;
    stage.clock.advance(ms(999));
    assert_eq!(stage.claim(9).await, []);
    stage.clock.advance(ms(1));
    assert_eq!(ids(&stage.claim(9).await), [made[1]]);
}

async fn what_has_no_room_is_set_aside_without_an_attempt(stage: Stage) {
    stage.bound(Bounds::default(), slots(1)).await;
    let made = stage.enqueue_in(key("a", Order::Any), 2).await;
    let before = stage.job(made[1]).await;
    let claimed = stage.claim_by(claim_request(9)).await;
    assert_eq!((claimed.jobs.len(), claimed.next_due), (1, None));
    let aside = Job { state: State::Waiting, awaits: Some(Await::Turn), ..before };
    assert_eq!(stage.job(made[1]).await, aside);
    assert_eq!(stage.store.resume(vec![made[1]]).await.expect("resume"), [false]);
}

async fn an_end_makes_room_for_the_next_in_order(stage: Stage) {
    stage.bound(Bounds::default(), slots(1)).await;
    let made = stage.enqueue_in(key("a", Order::Any), 3).await;
    let urgent = NewJob { priority: Priority::MAX, partition: key("a", Order::Any), ..stage.new_job() };
    let first = only(stage.claim(1).await);
    let urgent = stage.enqueue(urgent).await;
    assert_eq!(stage.claim(9).await, []);
    let before = stage.job(urgent).await;
    stage.clock.advance(ms(5));
    stage.complete(&first).await;
    let states = [State::Waiting, State::Waiting, State::Pending];
    assert_eq!(stage.states(&[made[1], made[2], urgent]).await, states);
    let due = Job { state: State::Pending, awaits: None, ..before };
    assert_eq!(stage.job(urgent).await, due);
    assert_eq!(ids(&stage.claim(9).await), [urgent]);
}

async fn a_retry_makes_room_too(stage: Stage) {
    stage.bound(Bounds::default(), slots(1)).await;
    let made = stage.enqueue_in(key("a", Order::Any), 2).await;
    let first = only(stage.claim(9).await);
    stage.settle(first.lease(), Verdict::Retry(ms(100))).await;
    assert_eq!(ids(&stage.claim(9).await), [made[1]]);
}

async fn a_cancel_of_the_first_lets_the_next_go_on(stage: Stage) {
    let made = stage.enqueue_in(key("a", Order::Strict), 3).await;
    let first = only(stage.claim(9).await);
    stage.settle(first.lease(), Verdict::Retry(ms(100_000))).await;
    assert_eq!(stage.claim(9).await, []);
    stage.cancel(first.id).await;
    assert_eq!(ids(&stage.claim(9).await), [made[1]]);
}

async fn a_crash_makes_room_once_it_is_settled(stage: Stage) {
    stage.bound(slots(1), slots(1)).await;
    let made = stage.enqueue_in(key("a", Order::Any), 2).await;
    stage.claim(9).await;
    stage.clock.advance(LEASE);
    assert_eq!(stage.claim(9).await, []);
    let orphan = only(stage.reclaim(9).await);
    assert_eq!(stage.claim(9).await, []);
    stage.settle(orphan.lease(), Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
    assert_eq!(ids(&stage.claim(9).await), [made[1]]);
}

async fn strict_order_holds_through_retries(stage: Stage) {
    let made = stage.enqueue_in(key("a", Order::Strict), 3).await;
    for id in made {
        let job = only(stage.claim(9).await);
        assert_eq!(job.id, id);
        stage.settle(job.lease(), Verdict::Retry(ms(50))).await;
        assert_eq!(stage.claim(9).await, []);
        stage.clock.advance(ms(50));
        let job = only(stage.claim(9).await);
        assert_eq!((job.id, job.attempt), (id, 2));
        stage.complete(&job).await;
    }
}

async fn strict_order_goes_by_id_and_not_by_time_or_priority(stage: Stage) {
    let start = redrive_core::Start::After(ms(100));
    let partition = key("a", Order::Strict);
    let first = stage.enqueue(NewJob { start, partition: partition.clone(), ..stage.new_job() }).await;
    let priority = Priority::MAX;
    let second = stage.enqueue(NewJob { priority, partition, ..stage.new_job() }).await;
    assert_eq!(stage.claim(9).await, []);
    stage.clock.advance(ms(100));
    let job = only(stage.claim(9).await);
    assert_eq!(job.id, first);
    stage.complete(&job).await;
    assert_eq!(ids(&stage.claim(9).await), [second]);
}

async fn strict_order_is_of_its_queue_and_key(stage: Stage) {
    let first = stage.enqueue_in(key("a", Order::Strict), 1).await;
    let other_key = stage.enqueue_in(key("b", Order::Strict), 1).await;
    let partition = key("a", Order::Strict);
    let other_queue = stage.enqueue(NewJob { queue: queue("b"), partition, ..stage.new_job() }).await;
    let any = stage.enqueue_in(key("a", Order::Any), 1).await;
    assert_eq!(ids(&stage.claim(9).await), [first[0], other_key[0], other_queue, any[0]]);
}

async fn a_dead_job_ends_its_turn(stage: Stage) {
    let made = stage.enqueue_in(key("a", Order::Strict), 2).await;
    let first = only(stage.claim(9).await);
    stage.settle(first.lease(), Verdict::DeadLetter(Reason::NotRetryable)).await;
    let only_b = ClaimRequest { queues: vec![queue("b")], ..claim_request(9) };
    assert_eq!(stage.claim_by(only_b).await.jobs, []);
    assert_eq!(ids(&stage.claim(9).await), [made[1]]);
}

async fn strict_order_goes_on_beside_new_jobs(stage: Stage) {
    stage.bound(Bounds::default(), slots(2)).await;
    let made = stage.enqueue_in(key("a", Order::Strict), 2).await;
    let first = only(stage.claim(9).await);
    stage.enqueue_in(key("a", Order::Strict), 2).await;
    stage.complete(&first).await;
    assert_eq!(ids(&stage.claim(9).await), [made[1]]);
}

async fn a_raised_quota_is_noticed_by_a_sweep(stage: Stage) {
    stage.bound(Bounds::default(), slots(1)).await;
    let made = stage.enqueue_in(key("a", Order::Any), 4).await;
    stage.claim(9).await;
    stage.bound(Bounds::default(), slots(3)).await;
    let swept = stage.store.sweep(None, 9).await.expect("sweep");
    assert_eq!(swept.resumed, made[1..3]);
    assert_eq!(ids(&stage.claim(9).await), made[1..3]);
}

/// Claims by sixteen at once until nobody gets anything, and counts.
async fn claim_by_sixteen(stage: &Stage) -> usize {
    let claims = at_once(16, |_| {
        let store = stage.store.clone();
        async move { store.claim(claim_request(3)).await.expect("claim").jobs.len() }
    });
    claims.await.into_iter().sum()
}

async fn sixteen_claimers_keep_to_a_key(stage: Stage) {
    stage.bound(Bounds::default(), slots(3)).await;
    stage.enqueue_in(key("a", Order::Any), 30).await;
    stage.enqueue_in(key("b", Order::Strict), 10).await;
    assert_eq!(claim_by_sixteen(&stage).await + claim_by_sixteen(&stage).await, 4);
}

async fn sixteen_claimers_keep_to_a_queue(stage: Stage) {
    stage
        .bound(
            Bounds { concurrency: Some(5), rate: Some(Rate { count: 7, per_ms: 1_000 }) },
            Bounds::default(),
        )
        .await;
    stage.enqueue_some(40).await;
    assert_eq!(claim_by_sixteen(&stage).await + claim_by_sixteen(&stage).await, 5);
    for job in stage.content().await.into_iter().map(|(job, _)| job) {
        if job.state == State::Running {
            stage.complete(&job).await;
        }
    }
    assert_eq!(claim_by_sixteen(&stage).await, 2);
}
