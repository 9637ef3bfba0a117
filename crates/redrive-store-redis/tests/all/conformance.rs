//! The Redis store passes the suite that every store passes, on a private server.

use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::ManualClock;
use redrive_testkit::servers::Redis;

/// A store with nothing in it, spread over so many partitions.
async fn store(server: &Redis, partitions: usize, clock: ManualClock) -> RedisStore {
    server.run(&["FLUSHALL"]);
    let address = format!("{}?partitions={partitions}", server.address());
    RedisStore::open(&address, Options::default().with_clock(clock)).await.expect("the store opens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_conforms() {
    let server = Redis::start();
    redrive_testkit::exercise(|clock| store(&server, 16, clock)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_loses_no_wake_up_whatever_the_order() {
    let server = Redis::start();
    redrive_testkit::interleave(|clock| store(&server, 4, clock)).await;
}

#[test]
fn redis_agrees_with_the_model() {
    let server = Redis::start();
    redrive_testkit::check_against_model(128, |clock| store(&server, 1, clock));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_pages_go_on_behind_a_damaged_row() {
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
