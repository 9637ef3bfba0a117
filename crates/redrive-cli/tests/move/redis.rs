//! Moves to Redis and from it: a store that spreads its jobs gives and takes the same.

use std::time::Duration;

use redrive_core::State;
use redrive_testkit::servers::{Postgres, Redis, RedisCluster};

use crate::stage::{Folder, content, fill, open, printed, request, run, same};
use crate::{doctor, survives_kills};

/// Enough that jobs of every sort and state are there and several batches travel.
const SOME: u128 = 900;

#[tokio::test(flavor = "multi_thread")]
async fn everything_comes_over_to_redis_and_from_there_to_a_server_and_a_file() {
    let (folder, redis, server) = (Folder::new(), Redis::start(), Postgres::start());
    let (file, back) = (folder.store("first.db"), folder.store("back.db"));
    let spread = |by: &str| format!("{}?prefix={by}&spread_by={by}", redis.address());
    fill(&file, SOME).await;
    let was = content(&*open(&file).await).await;
    let mut from = file;
    // From one spread to another is a move too, and the only way there is.
    for to in [spread("tenant"), spread("key"), server.address(), spread("policy"), back] {
        let text = printed(&run(&from, &to, &[]));
        assert!(text.contains(&format!("{SOME} jobs and ")), "{from} to {to}: {text}");
        let source = open(&from).await;
        assert_eq!(
            source.claim(request(9, Duration::ZERO)).await.expect("claim").jobs,
            [],
            "{from} is sealed"
        );
        drop(source);
        assert!(doctor(&from).contains(&format!("was moved to {to}")), "{}", doctor(&from));
        same(&was, &content(&*open(&to).await).await);
        from = to;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_on_redis_comes_over_and_is_worked_on_there() {
    let (folder, redis) = (Folder::new(), Redis::start());
    let (from, to) = (redis.address(), folder.store("target.db"));
    fill(&from, SOME).await;
    let was = content(&*open(&from).await).await;
    let states: Vec<State> = was.parcels.values().map(|parcel| parcel.job.state).collect();
    assert!(State::ALL.iter().all(|state| states.contains(state)), "every state is there");
    assert_eq!(was.promises.len(), 1);
    printed(&run(&from, &to, &[]));
    let target = open(&to).await;
    same(&was, &content(&*target).await);
    let counted: u64 = target.stats().await.expect("stats").counts.values().sum();
    assert_eq!(counted, SOME as u64);
    assert!(!target.claim(request(10, Duration::from_secs(30))).await.expect("claim").jobs.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_goes_on_to_redis_and_from_redis() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (folder, redis) = (Folder::new(), Redis::start());
    let (file, back) = (folder.store("source.db"), folder.store("back.db"));
    fill(&file, SOME).await;
    let was = content(&*open(&file).await).await;
    survives_kills(&mut rng, &file, &redis.address(), &was).await;
    survives_kills(&mut rng, &redis.address(), &back, &was).await;
    assert!(!open(&back).await.claim(request(9, Duration::ZERO)).await.expect("claim").jobs.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_takes_and_gives_everything_too() {
    let (folder, cluster) = (Folder::new(), RedisCluster::start(3, 0, &[]));
    let (file, back) = (folder.store("first.db"), folder.store("back.db"));
    fill(&file, SOME).await;
    let was = content(&*open(&file).await).await;
    for (from, to) in [(&file, &cluster.address()), (&cluster.address(), &back)] {
        printed(&run(from, to, &[]));
        same(&was, &content(&*open(to).await).await);
    }
}
