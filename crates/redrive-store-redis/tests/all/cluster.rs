//! The store on a cluster: the conformance suite, and a failover that shuts stale workers out.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::{ClaimRequest, SettleResult, Settlement};
use redrive_core::{Job, JobId, Kind, NewJob, State, Store, Verdict, WorkerId, catalog};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::RedisCluster;
use tokio::sync::Mutex;

/// The longest wait of a test.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_conforms() {
    let cluster = Mutex::new(RedisCluster::start(3, 0, &[]));
    redrive_testkit::exercise(|clock| async {
        let mut cluster = cluster.lock().await;
        for n in 0..3 {
            cluster.node(n).run(&["FLUSHALL"]);
        }
        RedisStore::open(&cluster.address(), Options::default().with_clock(clock))
            .await
            .expect("the store opens")
    })
    .await;
}

/// After a failover to a replica that has not received a claim, the job is claimed again with the same epoch. The first worker must
/// not settle it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_shuts_out_a_worker_whose_claim_was_lost() {
    let mut cluster = RedisCluster::start(3, 1, &[("min-replicas-to-write", "0")]);
    let address = format!("{}&shards=1", cluster.address());
    let stale = RedisStore::open(&address, Options::default()).await.expect("the store opens");
    let id = enqueue(&stale).await;
    let (primary, replica) = servers_of(&mut cluster, id);
    cluster.node(primary).run(&["WAIT", "1", "10000"]);
    cluster.node(replica).freeze();
    // Otherwise the replica would still read what is in its socket.
    cluster.node(primary).run(&["CLIENT", "KILL", "TYPE", "replica"]);
    let first = claim(&stale, "stale").await.expect("the job is due");
    cluster.node(primary).kill();
    cluster.node(replica).thaw();
    let other = RedisStore::open(&address, Options::default()).await;
    let other = match other {
        Ok(store) => store,
        // The cluster may not have noticed the failure yet.
        Err(_) => retry(async || RedisStore::open(&address, Options::default()).await.ok()).await,
    };
    let second = retry(async || claim(&other, "other").await).await;
    assert_eq!((first.id, first.epoch), (second.id, second.epoch), "the replica has seen the first claim");
    let settle = |store: RedisStore, job: Job| async move {
        retry(async || {
            let settlement = Settlement::new(job.lease(), Verdict::Complete(None));
            store.settle(vec![settlement]).await.ok().and_then(|mut settled| settled.pop())
        })
        .await
    };
    assert_eq!(settle(stale.clone(), first).await, SettleResult::LeaseLost);
    assert_eq!(settle(other.clone(), second).await, SettleResult::Applied(State::Succeeded));
}

/// Calls `act` until it returns a value.
async fn retry<T>(mut act: impl AsyncFnMut() -> Option<T>) -> T {
    let trying = async {
        loop {
            if let Some(done) = act().await {
                return done;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, trying).await.expect("the call succeeds in time")
}

async fn enqueue(store: &RedisStore) -> JobId {
    let policy = catalog::put_inline(store, &presets::once(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    let id = JobId(uuid::Uuid::now_v7());
    let job = NewJob::new(id, Kind::new("work").expect("legal"), policy, vec![]);
    store.enqueue(vec![job]).await.expect("enqueued");
    id
}

/// `None` while the cluster is down.
async fn claim(store: &RedisStore, worker: &str) -> Option<Job> {
    let request = ClaimRequest {
        worker: WorkerId::new(worker).expect("legal"),
        queues: vec![],
        kinds: vec![],
        limit: 1,
        lease: Duration::from_secs(600),
    };
    store.claim(request).await.ok()?.jobs.pop()
}

/// The primary that stores a job, and its replica.
fn servers_of(cluster: &mut RedisCluster, id: JobId) -> (usize, usize) {
    let key = format!("{{redrive:0}}:job:{}", id.0.simple());
    let slot: u16 = cluster.node(0).run(&["CLUSTER", "KEYSLOT", &key]).parse().expect("a slot");
    let mut of_primary = None;
    for n in 0..3 {
        let nodes = cluster.node(n).run(&["CLUSTER", "NODES"]);
        let me = nodes.lines().find(|line| line.contains("myself")).expect("a node lists itself").to_owned();
        let mut words = me.split_whitespace();
        let name = words.next().expect("a name").to_owned();
        let serves = words.skip(7).any(|range| match range.split_once('-') {
            Some((from, to)) => (from.parse().unwrap_or(u16::MAX)..=to.parse().unwrap_or(0)).contains(&slot),
            None => range.parse() == Ok(slot),
        });
        if serves {
            of_primary = Some((n, name));
        }
    }
    let (primary, name) = of_primary.expect("a primary serves the slot");
    let follows = |n: &usize, cluster: &mut RedisCluster| {
        let nodes = cluster.node(*n).run(&["CLUSTER", "NODES"]);
        nodes.lines().any(|line| line.contains("myself") && line.contains(&name))
    };
    let replica = (3..6).find(|n| follows(n, cluster)).expect("the primary has a replica");
    (primary, replica)
}
