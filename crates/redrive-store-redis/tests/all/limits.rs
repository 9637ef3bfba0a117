//! A claim under limits that stalls while it holds the lock is shut out by the next holder.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::queue_limits::QUEUE_LIMITS;
use redrive_core::records::{Precondition, RecordStore, RecordWrite};
use redrive_core::store::{ClaimRequest, ClaimedJobs, Settlement};
use redrive_core::{JobId, Kind, NewJob, Store, Verdict, WorkerId, catalog};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::{Proxy, Redis};
use tokio::time::sleep;

/// The delay in each direction. The lock lasts two seconds: the stalled claim can still read candidates, but it applies its
/// decisions too late.
const DELAY: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_claim_does_not_exceed_the_limits() {
    let server = Redis::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let slow = RedisStore::open(&format!("redis://{}", proxy.address()), Options::default())
        .await
        .expect("the store opens");
    let quick = RedisStore::open(&server.address(), Options::default()).await.expect("the store opens");
    let limits = RecordWrite {
        kind: QUEUE_LIMITS.to_owned(),
        id: "default".to_owned(),
        expect: Precondition::Any,
        value: Some(br#"{"concurrency":1}"#.to_vec()),
    };
    quick.write(limits).await.expect("written");
    let policy = catalog::put_inline(&quick, &presets::once(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    let job = |kind| NewJob::new(JobId(uuid::Uuid::now_v7()), kind, policy.clone(), vec![]);
    let jobs = ["before", "a", "b"].map(|name| job(kind(name)));
    quick.enqueue(jobs.to_vec()).await.expect("enqueued");
    // From here on the server has cached the scripts, so that each call is one round trip.
    let before = claim(quick.clone(), "before").await.jobs.remove(0);
    let ended = Settlement::new(before.lease(), Verdict::Complete(None));
    quick.settle(vec![ended]).await.expect("settled");

    proxy.set_delay(DELAY);
    let late = tokio::spawn(claim(slow, "a"));
    // Each claim asks for another kind, so that only the limit keeps them apart.
    while server.run(&["EXISTS", "{redrive:records}:lock"]) != "1" {
        sleep(Duration::from_millis(5)).await;
    }
    let taken = claim(quick, "b").await;
    assert_eq!(taken.jobs.len(), 1, "the lock expires, and a slot is free");
    let late = late.await.expect("no panic");
    assert_eq!(late.jobs, [], "beside {:?}", taken.jobs);
}

async fn claim(store: RedisStore, of: &str) -> ClaimedJobs {
    let request = ClaimRequest {
        worker: WorkerId::new(of).expect("legal"),
        queues: vec![],
        kinds: vec![kind(of)],
        limit: 1,
        lease: Duration::from_secs(600),
    };
    store.claim(request).await.expect("claimed")
}

fn kind(name: &str) -> Kind {
    Kind::new(name).expect("legal")
}
