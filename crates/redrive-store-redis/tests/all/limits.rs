//! A bounded claim that stands still while it holds the lock: whoever takes the lock after it shuts it out.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::quota::QUOTA;
use redrive_core::records::{Change, Expect, Records};
use redrive_core::store::{ClaimRequest, Claimed, Settlement};
use redrive_core::{JobId, Kind, NewJob, Store, Verdict, WorkerId, catalog};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::{Proxy, Redis};
use tokio::time::sleep;

/// On the way to the server and back. The lock lasts two seconds: a look comes in time after that, what follows it does not.
const DELAY: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_stood_still_takes_nothing_beyond_the_quota() {
    let server = Redis::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let slow = RedisStore::open(&format!("redis://{}", proxy.address()), Options::default())
        .await
        .expect("it opens");
    let quick = RedisStore::open(&server.address(), Options::default()).await.expect("it opens");
    let quota = Change {
        kind: QUOTA.to_owned(),
        id: "default".to_owned(),
        expect: Expect::Any,
        value: Some(br#"{"concurrency":1}"#.to_vec()),
    };
    quick.write(quota).await.expect("written");
    let policy = catalog::put_inline(&quick, &presets::once()).await.expect("stored");
    let job = |kind| NewJob::new(JobId(uuid::Uuid::now_v7()), kind, policy.clone(), vec![]);
    let jobs = ["before", "a", "b"].map(|name| job(kind(name)));
    quick.enqueue(jobs.to_vec()).await.expect("enqueued");
    // The server knows the scripts from here on, so that each call below is one round trip.
    let before = claim(quick.clone(), "before").await.jobs.remove(0);
    let ended = Settlement::new(before.lease(), Verdict::Complete(None));
    quick.settle(vec![ended]).await.expect("settled");

    proxy.delay(DELAY);
    let late = tokio::spawn(claim(slow, "a"));
    // Each takes jobs of its own kind, so that nothing but the quota stands between them.
    while server.run(&["EXISTS", "{redrive:records}:lock"]) != "1" {
        sleep(Duration::from_millis(5)).await;
    }
    let taken = claim(quick, "b").await;
    assert_eq!(taken.jobs.len(), 1, "the lock runs out, and there is room");
    let late = late.await.expect("no panic");
    assert_eq!(late.jobs, [], "beside {:?}", taken.jobs);
}

async fn claim(store: RedisStore, of: &str) -> Claimed {
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
