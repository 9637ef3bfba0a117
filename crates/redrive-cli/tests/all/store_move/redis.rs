//! Moves to Redis and from Redis, with different shardings.

use std::time::Duration;

use redrive_core::State;
use redrive_testkit::servers::{Postgres, Redis, RedisCluster};

use super::fixtures::{Folder, assert_same, claim_request, fill, open, read_content, run, stdout};
use super::{check_killed_move, doctor};

/// Enough jobs for every kind and state, and for several batches.
const JOBS: u128 = 900;

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_moved_to_redis_and_from_there_to_postgres_and_sqlite() {
    let (folder, redis, server) = (Folder::new(), Redis::start(), Postgres::start());
    let (file, back) = (folder.store("first.db"), folder.store("back.db"));
    let spread = |by: &str| format!("{}?prefix={by}&spread_by={by}", redis.address());
    fill(&file, JOBS).await;
    let expected = read_content(&*open(&file).await).await;
    let mut from = file;
    // A move is also the only way to change how Redis shards its keys.
    for to in [spread("tenant"), spread("key"), server.address(), spread("policy"), back] {
        let text = stdout(&run(&from, &to, &[]));
        assert!(text.contains(&format!("{JOBS} jobs and ")), "{from} to {to}: {text}");
        let source = open(&from).await;
        assert_eq!(
            source.claim(claim_request(9, Duration::ZERO)).await.expect("claim").jobs,
            [],
            "{from} is not sealed"
        );
        drop(source);
        assert!(doctor(&from).contains(&format!("was moved to {to}")), "{}", doctor(&from));
        assert_same(&expected, &read_content(&*open(&to).await).await);
        from = to;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_were_created_on_redis_can_be_moved_and_claimed() {
    let (folder, redis) = (Folder::new(), Redis::start());
    let (from, to) = (redis.address(), folder.store("target.db"));
    fill(&from, JOBS).await;
    let expected = read_content(&*open(&from).await).await;
    let states: Vec<State> = expected.jobs.values().map(|snapshot| snapshot.job.state).collect();
    assert!(State::ALL.iter().all(|state| states.contains(state)), "the store lacks a state");
    assert_eq!(expected.reserved_keys.len(), 1);
    stdout(&run(&from, &to, &[]));
    let target = open(&to).await;
    assert_same(&expected, &read_content(&*target).await);
    let counted: u64 = target.stats().await.expect("stats").counts.values().sum();
    assert_eq!(counted, JOBS as u64);
    assert!(!target.claim(claim_request(10, Duration::from_secs(30))).await.expect("claim").jobs.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_or_from_redis_that_is_killed_continues() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (folder, redis) = (Folder::new(), Redis::start());
    let (file, back) = (folder.store("source.db"), folder.store("back.db"));
    fill(&file, JOBS).await;
    let expected = read_content(&*open(&file).await).await;
    check_killed_move(&mut rng, &file, &redis.address(), &expected).await;
    check_killed_move(&mut rng, &redis.address(), &back, &expected).await;
    assert!(!open(&back).await.claim(claim_request(9, Duration::ZERO)).await.expect("claim").jobs.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_moved_to_a_cluster_and_back() {
    let (folder, cluster) = (Folder::new(), RedisCluster::start(3, 0, &[]));
    let (file, back) = (folder.store("first.db"), folder.store("back.db"));
    fill(&file, JOBS).await;
    let expected = read_content(&*open(&file).await).await;
    for (from, to) in [(&file, &cluster.address()), (&cluster.address(), &back)] {
        stdout(&run(from, to, &[]));
        assert_same(&expected, &read_content(&*open(to).await).await);
    }
}
