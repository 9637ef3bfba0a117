//! The Redis store passes the conformance suite of all stores, on a private server.

use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::ManualClock;
use redrive_testkit::servers::Redis;

/// An empty store with this number of shards.
async fn store(server: &Redis, shards: usize, clock: ManualClock) -> RedisStore {
    server.run(&["FLUSHALL"]);
    let address = format!("{}?shards={shards}", server.address());
    RedisStore::open(&address, Options::default().with_clock(clock)).await.expect("the store opens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_conforms() {
    let server = Redis::start();
    redrive_testkit::exercise(|clock| store(&server, 16, clock)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_loses_no_wake_up_in_any_interleaving() {
    let server = Redis::start();
    redrive_testkit::interleave(|clock| store(&server, 4, clock)).await;
}

#[test]
fn redis_agrees_with_the_model() {
    let server = Redis::start();
    redrive_testkit::check_against_model(128, |clock| store(&server, 1, clock));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_lists_continue_after_a_damaged_row() {
    let server = Redis::start();
    let damages: [&[&str]; 3] =
        [&["HSET", "policy", "nonsense"], &["HDEL", "lane"], &["HSET", "created", "soon"]];
    for damage in damages {
        let store = store(&server, 4, ManualClock::new()).await;
        for id in redrive_testkit::enqueue_rows_to_damage(&store).await {
            let key = server.run(&["KEYS", &format!("*:job:{}", id.0.simple())]);
            let words: Vec<&str> = [&[damage[0], &*key], &damage[1..]].concat();
            server.run(&words);
        }
        redrive_testkit::check_damaged_rows(&store).await;
    }
}
