//! The size of a store is bounded: the attempt log by its length, jobs by their retention. Removed jobs leave no keys behind.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::steps::{NewStep, Signal, Step, StepKind, Steps};
use redrive_core::store::{ClaimRequest, PageRequest, Retention, Settlement};
use redrive_core::{
    AttemptReport, IdempotencyKey, Job, JobId, Kind, NewJob, Order, Parent, Partition, PartitionKey,
    SignalName, StepName, Store, Unique, UniqueKey, UniqueRule, Verdict, WorkerId, catalog,
};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::Redis;
use uuid::Uuid;

#[tokio::test]
async fn a_job_keeps_its_last_attempts() {
    let server = Redis::start();
    let options = Options { attempts_kept: 3, ..Options::default() };
    let store = RedisStore::open(&server.address(), options).await.expect("the store opens");
    let job = new_job(&store).await;
    store.enqueue(vec![job.clone()]).await.expect("enqueued");
    for _ in 0..5 {
        let claimed = claim(&store).await;
        settle(&store, &claimed, Verdict::Retry(Duration::ZERO)).await;
    }
    let page = store.attempts(job.id, PageRequest::first(10)).await.expect("attempts");
    assert_eq!(page.items.iter().map(|attempt| attempt.epoch).collect::<Vec<_>>(), [5, 4, 3]);
}

#[tokio::test]
async fn removed_jobs_leave_no_keys_behind() {
    let server = Redis::start();
    let store = RedisStore::open(&server.address(), Options::default()).await.expect("the store opens");
    let plain = new_job(&store).await;
    let keys = || -> Vec<String> { server.run(&["KEYS", "*"]).lines().map(str::to_owned).collect() };
    let mut before = keys();
    let key = IdempotencyKey::new("k").expect("legal");
    let unique = Unique { key: UniqueKey::new("u").expect("legal"), rule: UniqueRule::Live };
    let partition = Partition { key: PartitionKey::new("p").expect("legal"), order: Order::Strict };
    let again = || NewJob { id: JobId(Uuid::now_v7()), ..plain.clone() };
    let child = NewJob { parent: Some(Parent::new(plain.id, 0)), ..again() };
    let jobs = vec![
        plain.clone(),
        child,
        again().with_key(key),
        NewJob { unique: Some(unique), ..again() },
        NewJob { partition: Some(partition), ..again() },
    ];
    store.enqueue(jobs.clone()).await.expect("enqueued");
    for _ in &jobs {
        let job = claim(&store).await;
        let step =
            Step { place: 0, name: StepName::new("s").expect("legal"), kind: StepKind::Done, value: vec![1] };
        store.remember(vec![NewStep::new(job.lease(), step)]).await.expect("remembered");
        let name = SignalName::new("go").expect("legal");
        let signal = Signal { job: job.id, id: Uuid::now_v7(), name, value: vec![2] };
        store.signal(vec![signal]).await.expect("signalled");
        settle(&store, &job, Verdict::Complete(None)).await;
    }
    let now = Duration::ZERO;
    let retention = Retention { succeeded: now, dead: now, cancelled: now };
    assert_eq!(store.prune(retention, 1000).await.expect("pruned"), jobs.len());
    // A claim drops empty lanes.
    store.stats().await.expect("stats");
    let mut after = keys();
    before.sort();
    // The fence of claims under limits stays: one small number per shard.
    after.retain(|key| !key.ends_with(":fence") && !key.ends_with(":locks"));
    after.sort();
    assert_eq!(after, before);
}

async fn new_job(store: &RedisStore) -> NewJob {
    let policy = catalog::put_inline(store, &presets::once(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    NewJob::new(JobId(Uuid::now_v7()), Kind::new("work").expect("legal"), policy, b"payload".to_vec())
}

async fn claim(store: &RedisStore) -> Job {
    let request = ClaimRequest {
        worker: WorkerId::new("w").expect("legal"),
        queues: vec![],
        kinds: vec![],
        limit: 1,
        lease: Duration::from_secs(60),
    };
    store.claim(request).await.expect("claimed").jobs.pop().expect("a job is due")
}

async fn settle(store: &RedisStore, job: &Job, verdict: Verdict) {
    let entry = AttemptReport {
        run: job.run,
        attempt: job.attempt,
        started_at: job.started_at.expect("the job runs"),
        duration: Duration::ZERO,
        outcome: "x".to_owned(),
        error: None,
        detail: None,
    };
    let settlement = Settlement { entry: Some(entry), ..Settlement::new(job.lease(), verdict) };
    store.settle(vec![settlement]).await.expect("settled");
}
